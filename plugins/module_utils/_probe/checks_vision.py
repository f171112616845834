# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of images, by all three APIs. Private to socle.inference."""

from __future__ import annotations

import random
import secrets
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._probe import pictures
from ansible_collections.socle.inference.plugins.module_utils._probe.asking import Asked, ask_by_all, unplanned
from ansible_collections.socle.inference.plugins.module_utils._probe.dialects import DIALECTS, Question
from ansible_collections.socle.inference.plugins.module_utils._probe.judge import Context, Outcome, judge, no_thoughts

SMALL = 64
"""Pixels of a side, where the number of images is what is asked about."""


def image_number(context: Context, params: dict[str, Any]) -> Outcome:
    """A number that was made for this request, so that neither guess nor cache can know it."""
    # No digit twice: read from the right, it must be another number.
    digits = "".join(random.SystemRandom().sample("0123456789", 3))

    def faults(asked: Asked) -> list[str]:
        return [] if digits in asked.reply.text else [f"it reads {asked.reply.text.strip()[:60]!r}, not {digits}"]

    return ask_by_all(
        context,
        "vision",
        Question(
            "Which number does the picture show? Answer with its digits only.",
            params["max_tokens"],
            images=[pictures.number(digits)],
            options={"temperature": 0, **no_thoughts(context)},
        ),
        faults,
        f"the number {digits} read from a picture",
        "The picture does not reach the model as it is: look whether the processor's files belong to the model, and at "
        "mm-processor-kwargs.",
    )


def images_in_order(context: Context, params: dict[str, Any]) -> Outcome:
    colours = random.Random(secrets.randbits(32)).sample(["red", "green", "blue", "yellow"], 3)

    def faults(asked: Asked) -> list[str]:
        text = asked.reply.text.lower()
        places = [text.find(colour) for colour in colours]
        right = -1 not in places and places == sorted(places)
        return [] if right else [f"it says {text.strip()[:60]!r}, not {', '.join(colours)}"]

    return ask_by_all(
        context,
        "vision",
        Question(
            "Name the colour of each of the three pictures, in their order, one word each.",
            params["max_tokens"],
            images=[pictures.plain(colour) for colour in colours],
            options={"temperature": 0, **no_thoughts(context)},
        ),
        faults,
        f"the colours {', '.join(colours)} of three pictures, in this order",
        "Pictures of one request are mixed up or lost: look at the unit's log, and try without the processor's cache.",
    )


def images_most(context: Context, params: dict[str, Any]) -> Outcome:
    """As many images as are planned pass, and one more is the client's fault."""
    promised = context.planned.promised
    most = promised.images if promised else None
    expected = f"{most or 'the planned number of'} images accepted by each API, and one more refused with 400"
    reason = unplanned(context, "vision")
    if reason or most is None:
        return Outcome("skipped", expected, reason or "the plan sets no maximum (flag limit-mm-per-prompt)")
    answers, faults = [], []
    picture = pictures.plain("blue", SMALL)
    for dialect in DIALECTS.values():
        for count, right in ((most, (200,)), (most + 1, (400, 422))):
            question = Question(
                "What is shown?", 1, images=[picture] * count, options={"temperature": 0, **no_thoughts(context)}
            )
            answer = context.client.post(dialect.path, dialect.ask(context.model, question))
            if answer.status not in right:
                answers.append(answer)
                faults.append(f"{dialect.name} with {count}: {answer.status}, {answer.text[:120]}")
    return judge(
        not faults,
        expected,
        "; ".join(faults) or f"{most} were accepted and {most + 1} refused, by each API",
        "Another limit is in force than was planned (flag limit-mm-per-prompt), or the pictures of one request do not "
        "fit max-model-len.",
        *answers,
    )
