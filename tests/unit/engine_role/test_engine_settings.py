# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Numbers that Docker would not take are refused before anything is changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._toolkit.engine_settings import ARGUMENTS, from_options
from ansible_collections.socle.inference.plugins.modules import container_engine_config, container_engine_plan

OPTIONS: dict[str, Any] = {name: option.get("default") for name, option in ARGUMENTS.items()}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("log_max_files", 0),
        ("log_max_files", -1),
        ("nofile", "\N{SUPERSCRIPT TWO}"),
        ("nofile", "\N{ARABIC-INDIC DIGIT FIVE}"),
        ("nofile", "9" * 5000),
        ("log_max_size", "\N{ARABIC-INDIC DIGIT FIVE}m"),
        ("log_max_size", "50m\n"),
        ("log_max_size", "0m"),
        ("log_max_size", "much"),
    ],
)
def test_a_number_that_is_none_is_one_sentence(option: str, value: object) -> None:
    with pytest.raises(SocleError, match=rf"correct container_engine_{option}\. Nothing was changed\.$") as caught:
        from_options({**OPTIONS, option: value}, needs_cdi=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", ["", "50m", "1G", "1048576", "100k"])
def test_sizes_that_docker_takes_are_taken(size: str) -> None:
    assert from_options({**OPTIONS, "log_max_size": size}, needs_cdi=False).log_max_size == size


@pytest.mark.parametrize(
    ("proxy", "said"),
    [
        ("http://bob:s3cr-t@proxy:3128", "is a string, expected {http:, https:, no_proxy:}"),
        ("http://bob:s3cr-t@proxy:3128?a=b", "has another key, expected {http:, https:, no_proxy:}"),
        (["http://bob:s3cr-t@proxy:3128"], "is a list, expected {http:, https:, no_proxy:}"),
        ({"htps": "http://bob:s3cr-t@proxy:3128"}, "has htps, expected {http:, https:, no_proxy:}"),
        ({"http": ["http://bob:s3cr-t@proxy:3128"]}, "has a list as http, expected a string"),
        ({"https": 3128}, "has a number as https, expected a string"),
    ],
)
def test_a_proxy_that_is_none_names_the_variable_and_shows_no_value(
    proxy: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for module, options in ((container_engine_plan, {"facts": {}}), (container_engine_config, {"engine": "docker"})):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(module, "engine_version", lambda _run, _engine: "26.1.5")
            patched.setattr(container_engine_plan, "plan", lambda *_given, **_more: {"engine": "docker"})
            with patch_module_args({**options, "proxy": proxy}), pytest.raises(SystemExit):
                module.main()
        shown = capsys.readouterr().out
        assert json.loads(shown)["msg"] == f"container_engine_proxy {said}; correct it. Nothing was changed."
        assert "s3cr-t" not in shown


@pytest.mark.parametrize("proxy", [{"https": "http://p:1"}, '{"https": "http://p:1"}', "https=http://p:1"])
def test_a_proxy_may_come_as_text_of_the_command_line(proxy: Any) -> None:
    settings = from_options({**OPTIONS, "proxy": proxy}, needs_cdi=False)
    assert (settings.http_proxy, settings.https_proxy, settings.no_proxy) == ("", "http://p:1", "")
    assert from_options({**OPTIONS, "proxy": None}, needs_cdi=False).https_proxy == ""
