# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a card says, what it must not say, and whether what is to be copied is sound."""

from __future__ import annotations

import json
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.client_card import (
    Place,
    card_lines,
    client_card,
    client_url,
    fallback_of,
    key_name,
    key_variable,
    recorded_class,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.models import Effort, Model

ALIASES = {"high": "xhigh", "max": "xhigh", "minimal": "low", "none": "none", "ultra": "xhigh"}

MODEL = Model(
    "profiles/models/m.yml",
    "m",
    "modelscope",
    "org/M",
    "master",
    "M",
    {},
    {},
    sampling={"thinking": {"temperature": 1.0, "top_k": 20}, "quick": {"temperature": 0.7}},
    effort=Effort(("xhigh", "medium", "low"), "xhigh", {"xhigh": ALIASES}),
    capabilities=("chat", "tools", "vision"),
)


def plan_of(**changes: Any) -> dict[str, Any]:
    host = changes.pop("bound", "192.0.2.20")
    more = changes.pop("sources", {"enable-auto-tool-choice": {"value": True}})
    return {
        "host": "gpu1",
        "instance": "agents-fp8",
        "vllm_version": "0.26.0",
        "served_names": ["M", "second"],
        "port": 8003,
        "max_model_len": 262144,
        "api_key_required": True,
        "effort_aliases": None,
        "chat_template_overlay": None,
        "capacity": {"kv_tokens": 1000000},
        "sources": {"host": {"value": host}, **more},
        **changes,
    }


def card_of(place: Place | None = None, model: Model = MODEL, **more: Any) -> dict[str, Any]:
    context = {name: more.pop(name) for name in ("state", "fallback") if name in more}
    return client_card(plan_of(**more), model, place or Place("gpu1.example"), "vault_agents_api_key", **context)


def test_each_kind_of_client_gets_the_address_that_it_wants() -> None:
    assert card_of()["urls"] == {
        "openai": "http://192.0.2.20:8003/v1",
        "anthropic": "http://192.0.2.20:8003",
        "responses": "http://192.0.2.20:8003/v1/responses",
        "models": "http://192.0.2.20:8003/v1/models",
    }


@pytest.mark.parametrize(
    ("bound", "place", "url", "no_proxy"),
    [
        ("0.0.0.0", Place("192.0.2.7"), "http://192.0.2.7:8003", "192.0.2.7"),
        ("0.0.0.0", Place("gpu1.example"), "http://gpu1.example:8003", "gpu1.example"),
        ("2001:db8::1", Place("gpu1"), "http://[2001:db8::1]:8003", "2001:db8::1"),
        ("127.0.0.1", Place("gpu1", "https://llm.example"), "https://llm.example", "llm.example"),
    ],
)
def test_the_address_is_the_one_that_clients_reach(bound: str, place: Place, url: str, no_proxy: str) -> None:
    card = card_of(place, bound=bound)
    assert (card["urls"]["anthropic"], card["no_proxy"], card["tunnel"]) == (url, no_proxy, None)


def test_an_instance_on_loopback_comes_with_a_tunnel() -> None:
    card = card_of(bound="127.0.0.1")
    assert card["tunnel"] == "ssh -N -L 8003:127.0.0.1:8003 gpu1.example"
    assert any(card["tunnel"] in note for note in card["notes"])


def test_claude_code_gets_settings_without_a_key_in_them() -> None:
    settings = json.loads("\n".join(card_of()["clients"]["claude_code"]["lines"]))
    assert settings["apiKeyHelper"] == "printenv AGENTS_FP8_API_KEY"
    assert settings["env"]["ANTHROPIC_BASE_URL"] == "http://192.0.2.20:8003"
    assert {settings["env"][f"ANTHROPIC_DEFAULT_{name}_MODEL"] for name in ("OPUS", "SONNET", "HAIKU")} == {"M"}
    assert settings["env"]["NO_PROXY"] == "192.0.2.20"
    assert "ANTHROPIC_AUTH_TOKEN" not in settings["env"]
    assert all(isinstance(value, str) for value in settings["env"].values())


def test_without_a_key_clients_get_a_word_in_its_place() -> None:
    card = card_of(api_key_required=False)
    assert card["key"] == {"required": False, "name": None, "variable": None}
    settings = card["clients"]["claude_code"]["settings"]
    assert settings["env"]["ANTHROPIC_AUTH_TOKEN"] and "apiKeyHelper" not in settings
    assert "env_key" not in card["clients"]["openai_agent"]["codex"]
    assert any("no key is asked for" in note for note in card["notes"])


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, "medium"),
        ({"vllm_version": "0.32.0"}, "medium"),
        ({"effort_aliases": ALIASES}, None),
        (
            {
                "vllm_version": "0.33.0",
                "effort_aliases": ALIASES,
                "sources": {"reasoning-effort-map": {"value": {"high": "xhigh"}}},
            },
            None,
        ),
        ({"vllm_version": "0.19.1"}, None),
    ],
)
def test_claude_code_is_told_a_level_where_its_own_is_refused(changes: dict[str, Any], level: str | None) -> None:
    card = card_of(**changes)
    assert card["clients"]["claude_code"]["settings"]["env"].get("CLAUDE_CODE_EFFORT_LEVEL") == level
    assert any("settings below ask for medium" in note for note in card["notes"]) is (level is not None)


def test_what_each_level_gets_is_on_the_card() -> None:
    answers = card_of(effort_aliases=ALIASES)["effort"]["answers"]
    assert (answers["high"]["messages"], answers["none"]["chat"]) == ("200 xhigh", "200 off")
    text = "\n".join(card_lines(card_of()))
    assert (
        "    HTTP status, and the level that the model works with; off is no thinking, ? is not known\n    level "
        in text
    )
    assert "high     400          400          500\n" in text


@pytest.mark.parametrize("aliases", [None, ALIASES])
def test_a_map_that_somebody_wrote_is_what_the_card_tells(aliases: dict[str, str] | None) -> None:
    """With aliases of the instance or without: the flag is what the engine does."""
    sources = {"reasoning-effort-map": {"value": {"high": "medium"}}}
    effort = card_of(vllm_version="0.33.0", effort_aliases=aliases, sources=sources)["effort"]
    answers = effort["answers"]
    assert (answers["high"]["messages"], answers["max"]["chat"]) == ("200 medium", "400")
    assert (effort["by"], effort["aliases"]) == ("flag", {"high": "medium"})


@pytest.mark.parametrize("aliases", [None, ALIASES])
def test_a_template_of_the_user_decides_what_levels_mean(aliases: dict[str, str] | None) -> None:
    own = {"chat-template": {"value": "/etc/socle/chat_template.jinja"}}
    assert any("up to the chat template" in note for note in card_of(effort_aliases=aliases, sources=own)["notes"])
    assert not any("up to the chat template" in note for note in card_of()["notes"])


def test_a_model_without_levels_says_nothing_of_them() -> None:
    model = Model("f", "m", "modelscope", "org/M", "master", "M", {}, {})
    card = card_of(model=model)
    assert card["effort"] is None
    assert "effort" not in "\n".join(card_lines(card))
    assert card["sampling"] == {}


def test_the_agent_s_files_are_sound() -> None:
    agent = card_of()["clients"]["openai_agent"]
    codex = tomllib.loads(agent["codex"])
    provider = codex["model_providers"][codex["model_provider"]]
    assert (codex["model"], codex["model_context_window"]) == ("M", 262144)
    assert (provider["base_url"], provider["env_key"]) == ("http://192.0.2.20:8003/v1", "AGENTS_FP8_API_KEY")
    exports = "\n".join(line for line in agent["lines"] if line.startswith("export "))
    shown = subprocess.run(
        ["bash", "-uc", f'{exports}\necho "$OPENAI_BASE_URL $OPENAI_API_KEY $OPENAI_MODEL $NO_PROXY"'],
        env={"AGENTS_FP8_API_KEY": "k", "NO_PROXY": "intranet"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown == "http://192.0.2.20:8003/v1 k M intranet,192.0.2.20\n"


HOSTILE = [
    "$HOME",
    "${NO_PROXY:-x}",
    "$(touch pwned)",
    "`touch pwned`",
    "a; touch pwned; #",
    """quote " and ' and \\ end""",
    "'$(touch pwned)'",
    "-rf * ? [a] ~ !! & | < >",
    "# no comment",
    "a: b, {c: d}",
    "\N{GRINNING FACE} \N{LATIN SMALL LETTER E WITH ACUTE}",
    "a\"\"\"b'''c",
    'key = "x"]',
]


def values_of(lines: list[str], folder: Path, names: list[str]) -> list[str]:
    """What a shell that takes the export *lines* has in the variables *names* then; nothing in them is run."""
    exports = "\n".join(line for line in lines if line.startswith("export "))
    shown = " ".join(f'"${name}"' for name in names)
    done = subprocess.run(
        ["bash", "-uc", f"{exports}\nprintf '%s\\0' {shown}"],
        env={"AGENTS_FP8_API_KEY": "$(touch pwned)", "NO_PROXY": "intranet"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert list(folder.iterdir()) == [] and done.stderr == ""
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_copied_means_the_name_itself(name: str, tmp_path: Path) -> None:
    fallback = fallback_of({"url": "https://other.example/$(id)';x", "model": name, "key": name})
    card = card_of(served_names=[name], host=name, fallback=fallback)
    agent = card["clients"]["openai_agent"]
    again = agent["lines"].index("to fall back, change these:")
    wanted = ["OPENAI_MODEL", "OPENAI_API_KEY", "NO_PROXY"]
    assert values_of(agent["lines"][:again], tmp_path, wanted) == [name, "$(touch pwned)", "intranet,192.0.2.20"]
    changed = values_of(agent["lines"][again:], tmp_path, ["OPENAI_BASE_URL", "OPENAI_MODEL"])
    assert changed == ["https://other.example/$(id)';x/v1", name]
    codex = tomllib.loads(agent["codex"])
    assert codex["model"] == name
    assert codex["model_providers"]["socle-agents-fp8"]["name"] == f"{name} agents-fp8"
    claude = card["clients"]["claude_code"]["lines"]
    end = claude.index("to fall back, change these:")
    assert json.loads("\n".join(claude[:end]))["env"]["ANTHROPIC_MODEL"] == name
    assert json.loads("\n".join(claude[end + 1 :]))["env"]["ANTHROPIC_DEFAULT_OPUS_MODEL"] == name
    assert json.loads(json.dumps(card))["fallback"]["model"] == name


def test_a_character_that_toml_does_not_take_is_escaped() -> None:
    card = card_of(served_names=["a\x7fb\tc"])
    assert tomllib.loads(card["clients"]["openai_agent"]["codex"])["model"] == "a\x7fb\tc"


@pytest.mark.parametrize("address", ["-oProxyCommand=touch pwned", "gpu1;touch pwned", "$(touch pwned)", "`id`"])
def test_the_command_of_a_tunnel_has_the_address_as_one_word(address: str) -> None:
    address = address.replace(" ", "_")
    words = shlex.split(card_of(Place(address), bound="127.0.0.1")["tunnel"])
    assert words[:4] == ["ssh", "-N", "-L", "8003:127.0.0.1:8003"]
    assert words[4:] == (["--", address] if address.startswith("-") else [address])


@pytest.mark.parametrize("address", ["gpu1\nexport X=1", "gpu1 gpu2", "\x1b[2J"])
def test_an_address_that_is_none_makes_no_card(address: str) -> None:
    with pytest.raises(PlanError, match=r"^ansible_host of gpu1 .* is no address for clients; correct it\.$"):
        card_of(Place(address))


@pytest.mark.parametrize(
    ("key", "value"), [("model", "a\nb"), ("model", ["N"]), ("key", "\x1b[2J"), ("model", "m" * 501)]
)
def test_a_name_of_the_fallback_that_is_none_is_refused(key: str, value: Any) -> None:
    with pytest.raises(PlanError, match=rf"^endpoint_fallback\.{key} must be the name of") as refused:
        fallback_of({"url": "https://other.example", key: value})
    assert len(refused.value.message) < 400


def test_a_key_in_the_place_of_its_name_is_not_repeated() -> None:
    with pytest.raises(PlanError, match=r"but is a string; correct it\.$") as refused:
        fallback_of({"url": "https://other.example", "key": "eyJhbGciOi" + "x" * 700})
    assert "eyJ" not in refused.value.message


def test_a_fallback_is_one_change_for_each_client() -> None:
    card = card_of(fallback={"url": "https://other.example", "model": "N", "key": "vault_other"})
    assert card["clients"]["claude_code"]["fallback"]["env"]["ANTHROPIC_BASE_URL"] == "https://other.example"
    assert card["clients"]["openai_agent"]["fallback"] == {
        "OPENAI_BASE_URL": "https://other.example/v1",
        "OPENAI_MODEL": "N",
    }
    assert card["clients"]["desktop_chat"]["fallback"] == {"API host": "https://other.example/v1", "model": "N"}
    assert "  fallback           https://other.example, model N, key vault_other" in card_lines(card)


def test_a_desktop_program_gets_the_fields_of_its_form() -> None:
    fields = card_of()["clients"]["desktop_chat"]["fields"]
    assert fields["API host"] == "http://192.0.2.20:8003/v1"
    assert (fields["temperature"], fields["images"]) == (1.0, "yes")
    assert fields["API key"] == "the one called vault_agents_api_key"


def test_what_was_measured_wins_over_what_was_predicted() -> None:
    state = {"accepted": True, "accepted_at": "2026-11-30T10:00:00Z", "capacity": {"kv_cache_size_tokens": 2595079}}
    lines = card_lines(card_of(state=state))
    assert "  context            262,144 tokens for prompt and answer, 2,595,079 for all requests at once" in lines
    assert "  accepted           since 2026-11-30T10:00:00Z" in lines
    assert "about 1,000,000 for all" in "\n".join(card_lines(card_of()))


def test_an_instance_without_tools_says_so() -> None:
    assert any("enable-auto-tool-choice" in note for note in card_of(sources={})["notes"])


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("{{ vault_agents_api_key }}", "vault_agents_api_key"),
        ("{{vault.agents.key}}", "vault.agents.key"),
        ("{{ vault_key | default('sk-literal') }}", "vault_key"),
        ("sk-literal", "there"),
        ("{{ 'sk-literal' }}", "there"),
        ("{{ lookup('file', 'k') }}", "there"),
        ("x{{ vault_key }}", "there"),
        (None, "there"),
        ({"__ansible_vault": "secret"}, "there"),
    ],
)
def test_a_key_is_called_by_its_variable_and_never_repeated(written: Any, name: str) -> None:
    assert key_name(written, "there") == name


@pytest.mark.parametrize(
    ("instance", "variable"), [("chat", "CHAT_API_KEY"), ("a-b", "A_B_API_KEY"), ("27b", "VLLM_27B_API_KEY")]
)
def test_the_variable_of_a_key_is_one_that_shells_take(instance: str, variable: str) -> None:
    assert key_variable(instance) == variable


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("llm.example", "has no scheme"),
        ("ftp://llm.example", "has another scheme"),
        ("https://user:secret@llm.example", "has a user or password"),
        ("https://llm.example/?a=secret", "has a query"),
    ],
)
def test_an_address_for_clients_is_checked_and_not_repeated(url: str, said: str) -> None:
    with pytest.raises(PlanError, match=said) as refused:
        client_url(url, "endpoint_urls.chat")
    assert "secret" not in str(refused.value)


def test_an_address_is_taken_with_and_without_v1() -> None:
    assert client_url("https://llm.example/v1/", "u") == client_url("https://llm.example", "u") == "https://llm.example"


@pytest.mark.parametrize("given", [[], "x", {"model": "m"}, {"url": "https://a.example", "api_key": "sk"}])
def test_a_fallback_that_is_none_is_refused_or_left_out(given: Any) -> None:
    if not given:
        assert fallback_of(given) is None
        return
    with pytest.raises(PlanError, match="endpoint_fallback must be a map"):
        fallback_of(given)


@pytest.mark.parametrize(
    ("classes", "instances", "found"),
    [
        ({"a": "a800_pcie_80g"}, {"a": {"gpus": [0]}}, "a800_pcie_80g"),
        ({"a": "a800_pcie_80g"}, {"a": {}}, None),
        ({"a": "cpu"}, {"a": {}}, "cpu"),
        ({"a": "cpu"}, {"a": {}, "b": {}}, None),
        ({"a": "cpu", "b": "a800_pcie_80g"}, {"a": {}, "b": {"gpus": [0]}}, None),
        ({}, {"a": {}}, None),
    ],
)
def test_records_stand_in_for_the_host_only_where_they_tell_enough(
    classes: dict[str, str], instances: dict[str, Any], found: str | None
) -> None:
    state = {"instances": {name: {"environment": {"host_class": each}} for name, each in classes.items()}}
    assert recorded_class(state, instances) == found
    assert recorded_class(None, instances) is None
