# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the modules that take addresses print, with the arguments that Ansible shows at -vvv, has no password."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.socle.inference.plugins.module_utils._packages.source import without_password

MIRROR = "http://reader:s3cr-t@127.0.0.1:1/mirror"
PROXY = "http://reader:s3cr-t@127.0.0.1:2"
SLASHED = "http://reader:top/s3cr-t@127.0.0.1:1/mirror"
UNKNOWN = {"os": {"id": "plan9"}}
DRIVER = {"facts": {"gpus": [{}], "os": {"id": "debian"}}, "settings": {"branch": "none", "repository_url": MIRROR}}
SYNC = {"state": "inspected", "repo": "no/such", "proxy": PROXY, "store": "/dev/null"}
SOURCE = {"name": "mirror", "uri": MIRROR, "key_url": f"{MIRROR}/key"}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("apt_source", SOURCE),
        ("apt_source", {**SOURCE, "uri": "reader:s3cr-t@127.0.0.1:1/mirror", "key_url": "reader:s3cr-t@x/key"}),
        ("dnf_source", SOURCE),
        ("apt_source", {**SOURCE, "uri": SLASHED, "key_url": f"{SLASHED}/key"}),
        ("apt_source", {**SOURCE, "uri": SLASHED[7:], "key_url": f"{SLASHED}/key"}),
        ("container_engine_plan", {"facts": UNKNOWN, "docker_repository_url": SLASHED, "proxy": {"http": SLASHED}}),
        ("modelscope_snapshot", {"repo": "no/such/name", "proxy": PROXY, "endpoint": MIRROR, "store": "/dev/null"}),
        ("model_sync", {**SYNC, "endpoint": MIRROR, "manifest": {"repo": "no/such"}}),
        ("gpu_driver_plan", DRIVER),
        ("gpu_driver_repository", {**DRIVER, "key": f"{MIRROR}/key"}),
        ("gpu_container_toolkit_plan", {"facts": UNKNOWN, "repository_url": MIRROR}),
        ("container_engine_plan", {"facts": UNKNOWN, "docker_repository_url": MIRROR, "proxy": {"http": PROXY}}),
        (
            "container_engine_config",
            {"engine": "docker", "log_max_files": 0, "registry_mirrors": [MIRROR], "proxy": {"https": PROXY}},
        ),
    ],
)
def test_a_password_is_in_no_result_and_in_no_argument_that_is_shown(
    name: str, options: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"ansible_collections.socle.inference.plugins.modules.{name}")
    roots = {"root": str(tmp_path)} if name.startswith("gpu_driver") else {}
    with patch_module_args({**options, **roots}), pytest.raises(SystemExit):
        module.main()
    shown = capsys.readouterr().out
    result = json.loads(shown)
    assert result["failed"] and "Unsupported parameters" not in result["msg"]
    assert result["invocation"]["module_args"]
    assert "s3cr-t" not in shown


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("apt_source", {**SOURCE, "replaces": {"x": 1}}),
        ("dnf_source", {**SOURCE, "state": MIRROR}),
        ("modelscope_snapshot", {"repo": "no/name", "proxy": PROXY, "store": "/dev/null", "connections": SLASHED}),
        ("gpu_driver_plan", {**DRIVER, "facts": MIRROR}),
        ("gpu_driver_repository", {**DRIVER, "settings": {"hold": MIRROR}}),
        ("gpu_container_toolkit_plan", {"facts": UNKNOWN, "repository_url": MIRROR, "downgrade": MIRROR}),
        ("container_engine_plan", {"facts": UNKNOWN, "registry_mirrors": {"a": MIRROR}}),
        ("container_engine_plan", {"facts": UNKNOWN, "engine": SLASHED}),
        ("container_engine_config", {"engine": "docker", "log_max_files": PROXY}),
    ],
)
def test_an_argument_of_another_type_shows_no_password(
    name: str, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"ansible_collections.socle.inference.plugins.modules.{name}")
    with patch_module_args(options), pytest.raises(SystemExit):
        module.main()
    shown = capsys.readouterr().out
    assert json.loads(shown)["invocation"]["module_args"]
    assert "s3cr-t" not in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://bob:top/secret@host/repo", "http://host/repo"),
        ("http://bob:/secret@host/repo", "http://host/repo"),
        ("http://bob:t@p/a@b/secret@host", "http://p/a@b/secret@host"),
        ("http://bob:t@p:q/secret@host", "http://host"),
        ("see http://bob:a,b/c@host, and http://eve:x/y@other", "see http://host, and http://other"),
        ('["https://u:p@a","https://v:q@b"]', '["https://a","https://b"]'),
        ("https://one.example/x,http://u:p@two.example", "https://one.example/x,http://two.example"),
        ("u//bob:secret@host", "u//host"),
    ],
)
def test_a_password_goes_whatever_is_in_it(text: str, shown: str) -> None:
    assert without_password(text) == shown


@pytest.mark.parametrize(
    "address",
    [
        "https://host/a@b",
        "https://host:8443/a@b/c@d",
        "https://[::1]:8443/a@b",
        "file:///srv/a@b",
        "https://host//x~y/a@b",
        "docker://registry:5000/image@sha256:00",
    ],
)
def test_an_at_sign_in_the_path_of_a_valid_address_stays(address: str) -> None:
    assert without_password(address) == address
