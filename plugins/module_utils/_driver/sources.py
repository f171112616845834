# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Adds the driver's package sources and reads their index, or leaves them as they were. Private to socle.inference."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._commands import Run
from ansible_collections.socle.inference.plugins.module_utils._driver.model import (
    DriverError,
)
from ansible_collections.socle.inference.plugins.module_utils._driver.plan import Host, Plan
from ansible_collections.socle.inference.plugins.module_utils._driver.repository import (
    AUTH,
    COMPONENTS_SOURCE,
    logins,
    source_text,
)
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import explaining
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._packages import apt
from ansible_collections.socle.inference.plugins.module_utils._packages.key_file import holds_key
from ansible_collections.socle.inference.plugins.module_utils._packages.source import (
    ARMOUR,
    Fetch,
    is_key,
    put,
    suffix,
    without_password,
)

MAX_AGE_S = 86_400
"""Age of the distribution's index from which it is read again before packages are taken from it."""


LEAST_KEYS = (ARMOUR.encode(), b"\x99")
"""What stands for a key in either form, .asc and .gpg, as long as it was not fetched."""


class Sources:
    """The package sources of one host, as `repository.source_files` describes them."""

    def __init__(self, run: Run, root: Path, fetch: Fetch, wanted: Mapping[str, Any], now: Callable[[], float]) -> None:
        self.run, self.root, self.fetch, self.wanted, self.now = run, root, fetch, wanted, now
        self.former: dict[Path, bytes | None] = {}

    def texts(self, key: bytes | None) -> dict[str, bytes | None]:
        """Path -> content that the files of ours should have; None for one that goes."""
        wanted = self.wanted
        files: dict[str, bytes | None] = {}
        if wanted["url"] and not wanted["foreign"] and key is not None:
            form = suffix(key)
            files[wanted["key"] + form] = key
            files[wanted["key"] + (".gpg" if form == ".asc" else ".asc")] = None
            files[wanted["source"]] = source_text(wanted["url"], wanted["key"] + form).encode()
        if wanted["components"]:
            files[COMPONENTS_SOURCE] = wanted["components"].encode()
        asked = "" if wanted["foreign"] else wanted["url"] or ""
        files[AUTH] = logins(self.root, asked, wanted["components"]).encode() or None
        return files

    def add(self, key: str) -> list[str]:
        """Write what is missing; *key* is ASCII armour, an address, or "" for the repository's own. Paths written."""
        found = self._key(key) if self.wanted["url"] and not self.wanted["foreign"] else None
        written = []
        for path, content in self.texts(found).items():
            place = self.root / path.lstrip("/")
            before = place.read_bytes() if place.is_file() else None
            if before == content:
                continue
            self.former.setdefault(place, before)
            self._put(place, content)
            written.append(path)
        return written

    def restore(self) -> None:
        """Put the files back as they were before `add`."""
        for place, content in self.former.items():
            # A full disk, perhaps, which is told already.
            with contextlib.suppress(OSError):
                self._put(place, content)

    def _put(self, place: Path, content: bytes | None) -> None:
        put(place, content, 0o600 if place == self.root / AUTH.lstrip("/") else 0o644)

    def settle(self, key: str, plan: Callable[[], Plan]) -> tuple[Plan, list[str], list[str]]:
        """(the plan with the new index, paths written, warnings); where anything fails, the files are as before."""
        try:
            with explaining("write the package sources of the driver"):
                written = self.add(key)
            files = [self.wanted["source"]] if self.wanted["url"] and not self.wanted["foreign"] else []
            files += self.wanted["foreign_files"]
            files += [COMPONENTS_SOURCE] if COMPONENTS_SOURCE in written else []
            warnings = self.refresh(files)
            return plan(), written, warnings
        except SocleError:
            self.restore()
            raise

    def look_ahead(self, host: Host, make: Callable[[Host], Plan]) -> Plan | None:
        """What *make* plans by an index that is read aside; None where it could not be read.

        *host* stays as it is. Raises what *make* raises.
        """
        with apt.workspace() as folder:
            options = apt.elsewhere(folder)
            answer = self.run([*apt.UPDATE, *options, "update"])
            if answer is None or answer[0] != 0:
                return None

            def aside(argv: Sequence[str]) -> tuple[int, str, str] | None:
                program, *arguments = argv
                return self.run([program, *(options if program in ("apt-get", "apt-cache") else []), *arguments])

            return make(replace(host, run=aside))

    def outlook(self, given: str = "") -> dict[str, bytes | None]:
        """Path -> content of what `add` would write or remove, with the key that is given or there, else an empty one.

        What is there now is noted as by `add`.
        """
        if not (self.wanted["missing"] or self.wanted["moved"]):
            return {}
        places = [self.root / (self.wanted["key"] + form).lstrip("/") for form in (".asc", ".gpg")]
        key = next((place.read_bytes() for place in places if holds_key(place)), b"")
        if not key:
            # The one that comes in place of a damaged one has its form, and is another one.
            key = next((least for place, least in zip(places, LEAST_KEYS) if place.is_file()), b"")
        if given.lstrip().startswith("-----BEGIN"):
            key = self._key(given)
        changes = {}
        for path, content in self.texts(key).items():
            place = self.root / path.lstrip("/")
            before = place.read_bytes() if place.is_file() else None
            if before != content:
                self.former[place] = before
                changes[path] = content
        return changes

    def present(self) -> dict[str, bytes | None]:
        """What is now where `add` wrote."""
        return {
            f"/{place.relative_to(self.root)}": place.read_bytes() if place.is_file() else None for place in self.former
        }

    def remove(self, check: bool) -> list[str]:
        """Remove the files of ours; their paths."""
        for path in self.wanted["files"]:
            place = self.root / path.lstrip("/")
            self.former[place] = place.read_bytes()
            if not check:
                put(place, None)
        return list(self.wanted["files"])

    def _key(self, given: str) -> bytes:
        if given.lstrip().startswith("-----BEGIN"):
            return given.strip().encode() + b"\n"
        reasons = []
        for url in [given] if given else self.wanted["key_urls"]:
            try:
                if "://" not in url:
                    raise ValueError("no scheme")
                content = self.fetch(url)
            except (ValueError, http.client.InvalidURL):
                # Not shown: where the password of what is no address ends cannot be told.
                name = "gpu_driver_repository_key" if given else "gpu_driver_repository_url"
                reasons.append(f"{name} is no valid address")
                continue
            except (OSError, http.client.HTTPException) as error:
                why = " ".join(str(getattr(error, "reason", error) or type(error).__name__).split())[:160]
                reasons.append(f"{without_password(url)}: {without_password(why)}")
                continue
            if is_key(content):
                return content
            reasons.append(f"{without_password(url)}: what answered is no OpenPGP key")
        remedy = (
            "gpu_driver_repository_key or the host's proxy, or give the key itself there"
            if given
            else "gpu_driver_repository_url or the host's proxy, or give the key as gpu_driver_repository_key"
        )
        raise DriverError(
            f"Cannot get the signing key of NVIDIA's repository: {'; '.join(reasons)}; correct {remedy}. Nothing was"
            " changed."
        )

    def refresh(self, files: Sequence[str]) -> list[str]:
        """Read the index of *files* only; of all sources where those of the distribution are missing or old.

        Returns warnings about other sources.
        """
        warnings = []
        if self._index_age_s() > MAX_AGE_S:
            answer = self.run([*apt.UPDATE, "update"])
            if answer is not None and answer[0] == 0:
                return []
            why = apt.reason(answer[1], answer[2]) if answer else "apt-get is not installed"
            warnings.append(f"a package source could not be read ({why}); its packages may be out of date.")
        for file in files:
            answer = self.run([*apt.UPDATE, *apt.beside(file), "update"])
            if answer is None or answer[0] != 0:
                why = apt.reason(answer[1], answer[2]) if answer else "apt-get is not installed"
                shown = self.wanted["display"] if file != COMPONENTS_SOURCE else "of the distribution"
                raise DriverError(
                    f"Cannot read the package repository {shown} ({file}): {why.rstrip('.')}; see whether this host"
                    " reaches it (proxy, mirror, gpu_driver_repository_url), then repeat the run. Nothing was changed."
                )
        return warnings

    def _index_age_s(self) -> float:
        lists = self.root / "var/lib/apt/lists"
        ours = without_password(self.wanted["url"] or "-").partition("://")[2].replace("/", "_").strip("_")
        times = [
            path.stat().st_mtime
            for path in (lists.glob("*Packages*") if lists.is_dir() else [])
            if not (ours and path.name.startswith(ours))
        ]
        return self.now() - max(times) if times else float("inf")


def diff(before: Mapping[Path, bytes | None], after: Mapping[str, bytes | None]) -> list[dict[str, str]]:
    """Diffs of package sources, without passwords; keys are named only."""

    def text(path: str, content: bytes | None) -> str:
        if content is None:
            return ""
        if path.endswith((".gpg", ".asc")):
            if after.get(path) is content and content in (b"", *LEAST_KEYS):
                return "(the repository's key)\n"
            return f"(a key of {len(content)} bytes)\n" if is_key(content) else "(no key)\n"
        if path == AUTH:
            return "(user and password of a mirror)\n"
        return without_password(content.decode("utf-8", "replace"))

    former = {f"/{str(path).lstrip('/')}": content for path, content in before.items()}
    return [
        {
            "before_header": path,
            "after_header": path,
            "before": text(path, former.get(path)),
            "after": text(path, after.get(path)),
        }
        for path in sorted({*former, *after})
        if text(path, former.get(path)) != text(path, after.get(path))
    ]
