# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the double answers where a model would have to understand: tools, pictures, code words, thoughts."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Faulty = Callable[[str], bool]

COLOURS = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1), "yellow": (1, 1, 0)}
"""By which channels are strong."""

EFFORT_TOKENS = {"low": 1, "medium": 2, "xhigh": 3}
OFF_TOKENS = 4
"""What the template adds to a prompt."""

THOUGHTS = "Seventeen and twenty-five make forty-two."


@dataclass
class Said:
    """An answer: thoughts, text, and calls as (name, arguments)."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


KNOWN = {
    "12 times 12": "144",
    "leap year": "366",
    "nearest to the Sun": "Mercury",
    "symbol of gold": "Au",
    "Kyoto": "Japan",
    "square root of 81": "9",
    "hexagon": "six",
    "between Europe and America": "the Atlantic",
    "\u6cd5\u56fd": "\u5df4\u9ece",
    "plural of mouse": "mice",
    "photosynthesis": "carbon dioxide",
    "two hours": "120",
}


def soaked(body: dict[str, Any]) -> bool:
    """One of many conversations, and one of those that faults of them hit."""
    return "no importance" in str(body["messages"][0].get("content")) and "Lima" in str(body["messages"][1]["content"])


def answer(body: dict[str, Any], faulty: Faulty, loaded: bool = False) -> Said | None:
    """What the double says to a chat request; None where any words will do."""
    messages, tools = body["messages"], _tools(body.get("tools"))
    results = [str(message["content"]) for message in messages if message.get("role") == "tool"]
    if results:
        return Said("I do not know." if faulty("result_dropped") else f"The tool says: {' '.join(results)}")
    content, images = _content(messages[-1]) if messages else ("", [])
    if tools:
        said = _with_tools(content, tools, body.get("tool_choice"), faulty)
        return _soaked(said, faulty) if soaked(body) else said
    if images:
        return Said(_seen(images, faulty))
    code = re.search(r"The code word is (\S+)\.", content)
    if code:
        lost = faulty("needle_lost") and len(content.split()) > 250
        return Said("There is none." if lost else code.group(1))
    known = next((right for part, right in KNOWN.items() if part in content), None)
    if known is not None:
        return Said("fifty-five" if faulty("knows_little") or (loaded and faulty("forgets")) else known)
    if "17 + 25" in content:
        return _sum(body.get("chat_template_kwargs") or {}, faulty)
    return None


def _soaked(said: Said, faulty: Faulty) -> Said:
    name, arguments = said.calls[0] if said.calls else ("", "")
    if faulty("soak_null"):
        return Said(calls=[(name, json.dumps(dict.fromkeys(json.loads(arguments))))])
    if faulty("soak_half"):
        return Said(calls=[(name, arguments[: len(arguments) // 2])])
    return Said() if faulty("soak_empty") else said


def _sum(options: dict[str, Any], faulty: Faulty) -> Said:
    thinks = options.get("enable_thinking", False) or (
        faulty("thinking_stuck") and options.get("enable_thinking") is False
    )
    if not thinks:
        return Said("42")
    if faulty("thoughts_missing"):
        return Said("42")
    return Said(f"<think>{THOUGHTS}</think>42") if faulty("thoughts_in_text") else Said("42", THOUGHTS)


def _content(message: dict[str, Any]) -> tuple[str, list[bytes]]:
    """Text and PNG files of a message of any API."""
    raw = message["content"]
    if isinstance(raw, str):
        return raw, []
    text, images = "", []
    for part in raw:
        kind = part["type"]
        if kind in ("text", "input_text"):
            text += part["text"]
        elif kind == "image":
            images.append(base64.b64decode(part["source"]["data"]))
        elif kind in ("image_url", "input_image"):
            url = part["image_url"]
            images.append(base64.b64decode((url if isinstance(url, str) else url["url"]).partition(",")[2]))
    return text, images


def count_images(messages: list[dict[str, Any]]) -> int:
    return sum(len(_content(message)[1]) for message in messages if isinstance(message.get("content"), list))


def _tools(raw: Any) -> dict[str, dict[str, Any]]:
    """{name: schema of the arguments} of the tools of any API."""
    tools = {}
    for each in raw or []:
        function = each.get("function", each)
        tools[function["name"]] = function.get("parameters") or function.get("input_schema")
    return tools


def _with_tools(content: str, tools: dict[str, dict[str, Any]], choice: Any, faulty: Faulty) -> Said:
    kind = choice if isinstance(choice, str) else (choice or {}).get("type", "auto")
    given: dict[str, Any] = {} if isinstance(choice, str) else choice or {}
    named = given.get("name") or given.get("function", {}).get("name")
    calls: list[tuple[str, dict[str, Any]]] = []
    if named:
        name = next(each for each in tools if each != named) if faulty("named_ignored") else named
        calls.append((name, _arguments(tools[name])))
    elif kind in ("required", "any"):
        if not faulty("required_ignored"):
            calls.append(("set_lamp", _arguments(tools["set_lamp"])))
    elif "one step" in content:
        cities = ["Paris"] if faulty("parallel_one") else ["Paris", "Rome"]
        calls += [("get_weather", {"city": city}) for city in cities]
    elif "Use the tool" in content or (faulty("auto_always") and "get_weather" in tools and "lines" not in content):
        asked = re.search(r"temperature in (\w+)", content)
        city = asked.group(1) if asked else "Paris"
        calls.append(("get_weather", {"city": "Berlin" if faulty("wrong_city") and not asked else city}))
    elif "Write exactly these lines" in content:
        calls.append(("write_file", {"path": "notes.txt", "lines": content.splitlines()[1:]}))
    if faulty("auto_never") and not named and kind == "auto":
        calls = []
    if not calls:
        return Said("I would rather talk.")
    if faulty("arguments_null"):
        calls = [(name, dict.fromkeys(arguments)) for name, arguments in calls]
    if faulty("tool_unknown"):
        calls = [("no_such_tool", arguments) for _name, arguments in calls]
    said = Said(calls=[(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls])
    if faulty("call_in_text"):
        return Said("<tool_call>" + json.dumps({"name": calls[0][0], "arguments": calls[0][1]}) + "</tool_call>")
    return said


def _arguments(schema: dict[str, Any]) -> dict[str, Any]:
    values = {"boolean": True, "string": "x", "integer": 1}
    return {
        name: each["enum"][0] if "enum" in each else values[each["type"]] for name, each in schema["properties"].items()
    }


def _seen(images: list[bytes], faulty: Faulty) -> str:
    if faulty("images_blind"):
        return "red"
    pictures = [pixels(image) for image in images]
    if len(pictures) > 1 or pictures[0][0][:3] != b"\xff\xff\xff":
        colours = [_colour(picture[0][:3]) for picture in pictures]
        return ", ".join(reversed(colours) if faulty("images_mixed") else colours)
    digits = _digits(pictures[0])
    return digits[::-1] if faulty("images_mirrored") else digits


def _colour(pixel: bytes) -> str:
    strong = tuple(int(channel > 128) for channel in pixel)
    return next(name for name, channels in COLOURS.items() if channels == strong)


def pixels(image: bytes) -> list[bytes]:
    """Rows of a PNG of eight bits a channel without filters; its checksums are looked at."""
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    place, width, data = 8, 0, b""
    while place < len(image):
        (length,) = struct.unpack_from(">I", image, place)
        kind, body = image[place + 4 : place + 8], image[place + 8 : place + 8 + length]
        assert zlib.crc32(kind + body) == struct.unpack_from(">I", image, place + 8 + length)[0]
        if kind == b"IHDR":
            (width,) = struct.unpack_from(">I", body)
        data += body if kind == b"IDAT" else b""
        place += 12 + length
    raw, stride = zlib.decompress(data), 1 + 3 * width
    rows = []
    for start in range(0, len(raw), stride):
        assert raw[start] == 0
        rows.append(raw[start + 1 : start + stride])
    return rows


_SHAPES = {
    (1, 1, 1, 1, 1, 1, 0): "0", (0, 1, 1, 0, 0, 0, 0): "1", (1, 1, 0, 1, 1, 0, 1): "2", (1, 1, 1, 1, 0, 0, 1): "3",
    (0, 1, 1, 0, 0, 1, 1): "4", (1, 0, 1, 1, 0, 1, 1): "5", (1, 0, 1, 1, 1, 1, 1): "6", (1, 1, 1, 0, 0, 0, 0): "7",
    (1, 1, 1, 1, 1, 1, 1): "8", (1, 1, 1, 1, 0, 1, 1): "9",
}  # fmt: skip
"""Digits by what is dark on a display: top, upper right, lower right, bottom, lower left, upper left, middle."""


def _digits(rows: list[bytes]) -> str:
    """Read off where a display of 40 by 80 pixels a digit, 20 apart, in the middle, is dark."""
    side, digits = len(rows), ""
    left, top = (side - 160) // 2, (side - 80) // 2
    spots = ((20, 5), (35, 20), (35, 60), (20, 75), (5, 60), (5, 20), (20, 40))
    for place in range(3):
        x = left + place * 60
        dark = tuple(int(rows[top + down][3 * (x + right)] < 128) for right, down in spots)
        digits += _SHAPES[dark]
    return digits
