# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Effort aliases on a running engine: all levels on all APIs before and after, and a model whose template changes.

The model has the lab's weights and a template of three levels, and is deployed as any other. The tests run in this
order, each on what the one before left.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from ansible_collections.socle.inference.plugins.module_utils._plan.effort import APIS, TEMPLATE, Answer, effort_table
from ansible_collections.socle.inference.plugins.module_utils._plan.models import EFFORTS, THINKING_OFF
from ansible_collections.socle.inference.plugins.module_utils._plan.template_overlay import overlay

from tests.simulators.hub.server import HubSimulator
from tests.support import effort_model, lab
from tests.support.effort_model import EFFORT, LEVELS, MEDIUM, THREE_LEVELS, XHIGH
from tests.support.lab_site import LabSite

HINTS = {"xhigh": "[take your time]<think>", "low": "[be quick]<think>", "medium": "<assistant><think>"}
"""How the prompt of a level ends, apart from no thinking."""

Table = dict[str, dict[str, Answer]]


def overlays() -> list[str]:
    """Of the host: the chat templates that were made."""
    return lab.on_host("grep -ls '^{# socle' /var/lib/socle/chat_templates/*.jinja || true").split()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubSimulator]:
    lab.play("playbooks/lab.yml").expect_success()
    gateway = json.loads(lab.on_host("ip -json -4 route show default"))[0]["gateway"]
    root = tmp_path_factory.mktemp("hub")
    effort_model.make_model(root)
    with HubSimulator(root, bind=gateway) as simulator:
        yield simulator


@pytest.fixture(scope="module")
def instance(hub: HubSimulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabSite]:
    folder = tmp_path_factory.mktemp("site")
    effort_model.write_data(folder / "site_data")
    variables = {"model_store_endpoint": hub.url, "model_store_proxy": ""}
    made = LabSite("effort", 8004, folder, {"model": effort_model.NAME}, variables)
    before = overlays()
    try:
        yield made
    finally:
        made.remove(effort_model.REPO)
        for path in set(overlays()) - set(before):
            lab.on_host(f"rm {path}")


def table_of(instance: LabSite) -> Table:
    """What each level gets on each API, each proven by the prompt that the engine made."""
    markers = effort_model.markers()
    counted = instance.ask(list(markers.values()))
    assert [status for status, _answer in counted] == [200] * len(markers), counted
    by_count = {content["count"]: level for level, (_status, content) in zip(markers, counted, strict=True)}
    assert len(by_count) == len(LEVELS) + 1, "two levels have prompts of one length"
    requests = effort_model.requests()
    answers = instance.ask(list(requests.values()))
    table: Table = {level: {} for level in EFFORTS}
    prompts = []
    for (level, api), (status, content) in zip(requests, answers, strict=True):
        table[level][api] = effort_model.answer(status, content, by_count)
        if status == 200 and content.get("prompt_token_ids"):
            prompts.append((table[level][api].effort, content["prompt_token_ids"]))
    body = [("/detokenize", {"model": effort_model.NAME, "tokens": tokens}) for _effort, tokens in prompts]
    for (effort, _tokens), (_status, content) in zip(prompts, instance.ask(body), strict=True):
        end = "<think></think>" if effort == THINKING_OFF else HINTS[str(effort)]
        assert content["prompt"].rstrip().endswith(end)
    return table


def show(title: str, table: Table) -> None:
    print(f"\n{title}\n| level | " + " | ".join(APIS) + " |")
    for level, row in table.items():
        print(f"| {level} | " + " | ".join(str(row[api]) for api in APIS) + " |")


def version_of(instance: LabSite) -> str:
    return str(instance.ask([("/version", None)])[0][1]["version"]).partition("+")[0]


@pytest.fixture(scope="module")
def left(instance: LabSite) -> list[str]:
    """Overlays that were there before."""
    return overlays()


def test_before_the_template_refuses_what_it_does_not_know(instance: LabSite, left: list[str]) -> None:
    instance.deploy(effort_aliases=False).expect_success()
    found, version = table_of(instance), version_of(instance)
    show(f"vLLM {version}, before", found)
    assert found == effort_table(version, EFFORT)
    assert overlays() == left


def test_after_each_level_comes_out_as_the_one_that_it_stands_for(instance: LabSite, left: list[str]) -> None:
    instance.deploy(effort_aliases="xhigh").expect_success()
    found, version = table_of(instance), version_of(instance)
    show(f"vLLM {version}, after", found)
    assert found == effort_table(version, EFFORT, XHIGH, TEMPLATE)
    (made,) = set(overlays()) - set(left)
    assert lab.on_host(f"cat {made}") == overlay(THREE_LEVELS, XHIGH)
    again = instance.deploy(effort_aliases="xhigh").expect_success()
    assert again.changed == 0, [line for line in again.output.splitlines() if line.startswith(("TASK", "changed:"))]


def test_what_agents_send_is_answered(instance: LabSite) -> None:
    """Claude Code's requests: effort high, thinking adaptive; and thinking turned off."""
    body = {"model": effort_model.NAME, "messages": effort_model.MESSAGES_SENT, "max_tokens": 1}
    markers = effort_model.markers()
    wanted = [content["count"] for _status, content in instance.ask([markers["xhigh"], markers[THINKING_OFF]])]
    sent = [{"output_config": {"effort": "high"}, "thinking": {"type": kind}} for kind in ("adaptive", "disabled")]
    answers = instance.ask([("/v1/messages", {**body, **more}) for more in sent])
    assert [(status, content["usage"]["input_tokens"]) for status, content in answers] == [
        (200, count) for count in wanted
    ]


def test_a_template_that_changed_and_still_fits_gets_its_aliases_anew(
    instance: LabSite, hub: HubSimulator, left: list[str]
) -> None:
    before = overlays()
    changed = THREE_LEVELS.replace("'<' ~ message.role", "'\\n<' ~ message.role", 1)
    assert changed != THREE_LEVELS
    effort_model.change_template(hub.root / effort_model.REPO, changed)
    instance.deploy("-e", "model_store_moved=accept", effort_aliases="medium").expect_success()
    found, version = table_of(instance), version_of(instance)
    assert found == effort_table(version, EFFORT, MEDIUM, TEMPLATE)
    (made,) = set(overlays()) - set(before)
    assert lab.on_host(f"cat {made}") == overlay(changed, MEDIUM)


def test_a_template_that_changed_and_fits_no_more_is_refused_and_what_ran_goes_on(
    instance: LabSite, hub: HubSimulator
) -> None:
    before, unit = overlays(), lab.unit("effort")
    unchecked = THREE_LEVELS.replace("{%- if thinks and effort not in", "{%- if false and effort not in")
    assert unchecked != THREE_LEVELS
    effort_model.change_template(hub.root / effort_model.REPO, unchecked)
    refused = instance.deploy("-e", "model_store_moved=accept", effort_aliases="medium")
    assert refused.rc != 0
    message = refused.failures[lab.HOST]["msg"]
    assert message.startswith(f"The chat template of {effort_model.REPO} takes any level of effort")
    assert "effort_aliases of the instance to false" in message
    assert (overlays(), lab.unit("effort")) == (before, unit)
    high = effort_model.requests()["high", "messages"]
    assert instance.ask([high])[0][0] == 200
