# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An instance's API key on its host: a root-only file, the engine's secret store, and an HMAC to notice changes.

Private to socle.inference.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import re
import secrets
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._engine.backend import Backend, check_name
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, explaining
from ansible_collections.socle.inference.plugins.module_utils._engine.locks import LockHeld, locked
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError

NAME = "api_key"
TARGET = "VLLM_API_KEY"

KEY_BYTES = 32
"""Of the host's own key for the HMAC."""

LOCK_S = 30
"""How long another run that stores keys is waited for; it takes a second or two."""

_KEY = re.compile(rf"[0-9a-f]{{{2 * KEY_BYTES}}}")


def secrets_hmac(key: str, values: dict[str, str]) -> str:
    """Tells whether secrets changed without telling what they are."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "hmac-sha256:" + hmac.new(bytes.fromhex(key), text.encode(), hashlib.sha256).hexdigest()


def _host_key(folder: Path, files: Files, check: bool) -> str | None:
    path = folder / "hmac.key"
    key = files.read(path)
    if key is None:
        if check:
            return None
        key = secrets.token_hex(KEY_BYTES)
        files.write(path, key + "\n", mode=0o600)
    key = key.strip()
    if not _KEY.fullmatch(key):
        # Without a key of its own, a mark could be had by trying.
        raise EngineError(
            f"Cannot use {path}, by which changes of API keys are noticed: it holds something else than {KEY_BYTES}"
            " bytes in hexadecimal; remove it, and the next run makes another one and restarts the instances that have"
            " an API key.",
            path=str(path),
        )
    return key


def ensure_api_key(
    backend: Backend, folder: Path, instance: str, api_key: str | None, files: Files, check: bool = False
) -> dict[str, Any]:
    """Make the host hold this key, or none; *folder* is the secrets' folder of the host."""
    check_name(instance)
    with explaining(f"store the API key of {instance}", folder), contextlib.ExitStack() as stack:
        if not check and (api_key or folder.is_dir()):
            # Two runs at one moment would each take a part of the other's for its own.
            try:
                stack.enter_context(locked(folder / ".lock", f"storing the API key of {instance}", LOCK_S))
            except LockHeld as error:
                raise EngineError(
                    f"Cannot store the API key of {instance}: another run has been at the keys of this host for"
                    f" {LOCK_S} s, {error.holder}; wait for its end, then repeat the run."
                ) from error
        return _ensure_api_key(backend, folder, instance, api_key, files, check)


def _ensure_api_key(
    backend: Backend, folder: Path, instance: str, api_key: str | None, files: Files, check: bool
) -> dict[str, Any]:
    env_file = folder / instance / "env"
    if not api_key:
        held = backend.secret_mark(instance, NAME) is not None
        changed = held or files.read(env_file) is not None
        if changed and not check:
            backend.remove_secret(instance, NAME)
            files.remove(env_file)
        return {"changed": changed, "hmac": None}
    if not (api_key.isascii() and api_key.isprintable()) or api_key != api_key.strip():
        raise EngineError(
            f"Cannot use the API key of {instance}: it holds a control character such as a line break, one that is not"
            " ASCII, or a space at an end, which no client could send; set another in vllm_instances."
        )
    key = _host_key(folder, files, check)
    if key is None:
        return {"changed": True, "hmac": None}
    mark = secrets_hmac(key, {TARGET: api_key})
    wanted = f"{TARGET}={api_key}\n"
    changed = False
    if files.read(env_file) != wanted or env_file.stat().st_mode & 0o077:
        changed = True
        if not check:
            for path in (folder, folder / instance):
                path.mkdir(parents=True, exist_ok=True)
                path.chmod(0o700)
            files.write(env_file, wanted, mode=0o600)
    if backend.secret_mark(instance, NAME) != mark:
        changed = True
        if not check:
            backend.put_secret(instance, NAME, api_key, mark)
    return {"changed": changed, "hmac": mark}
