# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Adding package sources, or leaving them as they were."""

from __future__ import annotations

import errno
import http.client
import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._driver.decide import OWN_SOURCE, Settings
from ansible_collections.socle.inference.plugins.module_utils._driver.model import DriverError
from ansible_collections.socle.inference.plugins.module_utils._driver.plan import plan, plan_as_is
from ansible_collections.socle.inference.plugins.module_utils._driver.repository import (
    AUTH,
    COMPONENTS_SOURCE,
    OWN_KEY,
    list_name,
    missing_components,
)
from ansible_collections.socle.inference.plugins.module_utils._driver.sources import Sources, diff
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError

from .fake_host import URL, FakeHost, facts

KEYRING = b"\x99\x01rest of a key"
ARMOUR = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nabc\n-----END PGP PUBLIC KEY BLOCK-----"
DEBIAN = """Types: deb
URIs: http://deb.debian.org/debian
Suites: trixie trixie-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.pgp

Types: deb
URIs: http://deb.debian.org/debian-security
Suites: trixie-security
Components: main contrib
"""


@pytest.fixture
def fake(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


class Web:
    """Answers by address; everything else is not found."""

    def __init__(self, **answers: bytes) -> None:
        self.answers = {f"{URL}{name.replace('__', '.')}": content for name, content in answers.items()}
        self.asked: list[str] = []

    def __call__(self, url: str) -> bytes:
        self.asked.append(url)
        if url not in self.answers:
            raise OSError("HTTP Error 404: Not Found")
        return self.answers[url]


def settings(**changes: Any) -> Settings:
    return Settings(**{"repository_url": "https://mirror.example.org/cuda/repos", "architecture": "ampere", **changes})


def settle(fake: FakeHost, web: Web, key: str = "", now: float = 0.0, **changes: Any) -> Any:
    def make() -> Any:
        return plan(fake.host(), settings(**changes), facts())

    sources = Sources(fake.run, fake.root, web, make().repository, lambda: now)
    return sources, sources.settle(key, make)


def ours(fake: FakeHost) -> list[str]:
    folder = fake.root / "etc/apt"
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("socle-*"))


def test_the_source_has_a_key_of_its_own_and_only_its_index_is_read(fake: FakeHost) -> None:
    fake.write("var/lib/apt/lists/deb.debian.org_dists_trixie_main_binary-amd64_Packages", "")
    os.utime(fake.root / "var/lib/apt/lists/deb.debian.org_dists_trixie_main_binary-amd64_Packages", (1000, 1000))
    _sources, (made, written, warnings) = settle(fake, Web(**{"cuda-archive-keyring__gpg": KEYRING}), now=2000.0)
    assert made.final and made.version == "580.178.04" and warnings == []
    text = (fake.root / OWN_SOURCE[1:]).read_text()
    assert f"URIs: {URL}\n" in text and f"Signed-By: {OWN_KEY}.gpg\n" in text
    assert (fake.root / f"{OWN_KEY[1:]}.gpg").read_bytes() == KEYRING
    assert (fake.root / OWN_SOURCE[1:]).stat().st_mode & 0o777 == 0o644
    updates = fake.said("update")
    assert len(updates) == 1 and f"Dir::Etc::sourcelist={OWN_SOURCE}" in updates[0]
    assert set(written) == {OWN_SOURCE, f"{OWN_KEY}.gpg"}
    again = settle(fake, Web(), key=ARMOUR, now=2000.0)[1]
    assert set(again[1]) == {OWN_SOURCE, f"{OWN_KEY}.gpg", f"{OWN_KEY}.asc"}


def test_the_index_of_the_distribution_is_read_where_it_is_missing_or_old(fake: FakeHost) -> None:
    settle(fake, Web(**{"3bf863cc__pub": ARMOUR.encode()}))
    assert any("Dir::Etc::sourceparts=-" not in call for call in fake.said("update"))
    assert (fake.root / f"{OWN_KEY[1:]}.asc").exists()


def test_a_key_that_is_none(fake: FakeHost) -> None:
    with pytest.raises(DriverError, match=r"what answered is no OpenPGP key.*404.*Nothing was changed"):
        settle(fake, Web(**{"cuda-archive-keyring__gpg": b"<html>log in first</html>"}))
    assert ours(fake) == []


@pytest.mark.parametrize("failing", ["update", "install"])
def test_what_fails_leaves_no_source_behind(fake: FakeHost, failing: str) -> None:
    fake.failures[failing] = "E: Could not connect to mirror.example.org:443\n"
    with pytest.raises(DriverError, match=r"Could not connect to mirror\.example\.org:443.*Nothing was changed"):
        settle(fake, Web(**{"cuda-archive-keyring__gpg": KEYRING}))
    assert ours(fake) == []


def test_a_source_that_was_there_is_put_back(fake: FakeHost) -> None:
    fake.add_source("https://old.example.org/cuda/repos/debian13/x86_64/")
    before = (fake.root / OWN_SOURCE[1:]).read_bytes()
    with pytest.raises(DriverError, match=r"580\.199\.01 is not in"):
        settle(fake, Web(**{"cuda-archive-keyring__gpg": KEYRING}), version="580.199.01")
    assert (fake.root / OWN_SOURCE[1:]).read_bytes() == before


def test_a_source_of_somebody_else_is_used(fake: FakeHost) -> None:
    fake.write(
        "etc/apt/sources.list.d/cuda-debian13-x86_64.list", f"deb [signed-by=/usr/share/keyrings/x.gpg] {URL} /\n"
    )
    web = Web()
    _sources, (made, written, _warnings) = settle(fake, web)
    assert made.final and written == [] and web.asked == [] and ours(fake) == []
    index = fake.root / "var/lib/apt/lists/deb.debian.org_Packages"
    index.parent.mkdir(parents=True)
    index.touch()
    settle(fake, web, now=index.stat().st_mtime)
    assert "Dir::Etc::sourcelist=/etc/apt/sources.list.d/cuda-debian13-x86_64.list" in fake.said("update")[-1]


def test_components_that_debian_lacks() -> None:
    text = missing_components({"debian.sources": DEBIAN}, ("contrib", "non-free-firmware"))
    assert "Suites: trixie\nComponents: contrib non-free-firmware\nSigned-By: /usr/share/keyrings" in text
    assert "Suites: trixie-security\nComponents: non-free-firmware\n" in text
    assert (
        missing_components(
            {"debian.sources": DEBIAN.replace("main contrib", "main").replace("main", "main contrib")}, ("contrib",)
        )
        == ""
    )
    line = "deb [signed-by=/k.gpg] http://deb.debian.org/debian bookworm main # x\n"
    assert "Suites: bookworm\nComponents: contrib\nSigned-By: /k.gpg\n" in missing_components(
        {"sources.list": line}, ("contrib",)
    )


def test_the_fields_of_a_source_are_repeated() -> None:
    line = "deb [arch=amd64,i386 check-valid-until=no] http://deb.debian.org/debian bookworm main\n"
    text = missing_components({"sources.list": line}, ("contrib",))
    assert "Components: contrib\nArchitectures: amd64 i386\nCheck-Valid-Until: no\n" in text
    stanza = DEBIAN.replace("Components: main\n", "Components: main\nArchitectures: amd64\n", 1)
    assert "Architectures: amd64\n" in missing_components({"debian.sources": stanza}, ("contrib",))


@pytest.mark.parametrize(
    ("line", "debian"),
    [
        ("deb http://deb.debian.org/debian trixie main # nvidia and docker come from elsewhere", True),
        ("deb [signed-by=/etc/my.gpg] http://security.debian.org/debian-security trixie-security main", True),
        ("deb https://me:secret@mirror.example.org/debian trixie main", True),
        (
            "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://m.example.org/debian/ trixie main",
            True,
        ),
        ("deb mirror+file:///etc/apt/mirrors/debian.list trixie main", True),
        (
            "deb [signed-by=/usr/share/keyrings/tailscale.gpg] https://pkgs.tailscale.com/stable/debian trixie main",
            False,
        ),
        ("deb https://pkgs.k8s.example.org/debian-packages trixie main", False),
        ("deb https://download.docker.com/linux/debian/x trixie main", False),
        ("deb https://packages.example.org/debian.org/ trixie main", False),
    ],
)
def test_only_debians_own_archive_gets_components(line: str, debian: bool) -> None:
    assert bool(missing_components({"sources.list": f"{line}\n"}, ("contrib",))) is debian


@pytest.mark.parametrize(("told", "debian"), [("Debian", True), ("Docker", False), ("Tailscale", False)])
def test_what_a_sources_release_says_decides(fake: FakeHost, told: str, debian: bool) -> None:
    fake.write("etc/apt/sources.list", "deb http://mirror.example.org/some_path/debian trixie main\n")
    name = "mirror.example.org_some%5fpath_debian_dists_trixie_InRelease"
    fake.write(f"var/lib/apt/lists/{name}", f"-----BEGIN PGP SIGNED MESSAGE-----\n\nOrigin: {told}\nLabel: x\n")
    settle(fake, Web(**{"cuda-archive-keyring__gpg": KEYRING}))
    assert (fake.root / COMPONENTS_SOURCE[1:]).exists() is debian


def test_apts_name_of_a_release() -> None:
    assert list_name("https://me:pw@m.example.org/debian/", "trixie") == "m.example.org_debian_dists_trixie"
    cloud = "mirror+file:_etc_apt_mirrors_debian.list_dists_trixie-updates"
    assert list_name("mirror+file:///etc/apt/mirrors/debian.list", "trixie-updates") == cloud


def test_components_are_added_beside_debians_own_file(fake: FakeHost) -> None:
    fake.write("etc/apt/sources.list.d/debian.sources", DEBIAN)
    settle(fake, Web(**{"cuda-archive-keyring__gpg": KEYRING}))
    assert "Components: contrib\n" in (fake.root / COMPONENTS_SOURCE[1:]).read_text()
    assert (fake.root / "etc/apt/sources.list.d/debian.sources").read_text() == DEBIAN
    assert not plan(fake.host(), settings(), facts()).repository["missing"]  # type: ignore[index]


def test_diffs_name_keys_and_hide_passwords() -> None:
    shown = diff({}, {OWN_SOURCE: b"URIs: https://user:secret@m.example.org/\n", f"{OWN_KEY}.gpg": KEYRING})
    text = "".join(entry["after"] for entry in shown)
    assert "https://m.example.org/" in text and "secret" not in text and "a key of 15 bytes" in text


def test_removal_takes_every_file_of_ours(fake: FakeHost) -> None:
    fake.write("etc/apt/sources.list.d/debian.sources", DEBIAN)
    settle(fake, Web(**{"cuda-archive-keyring__gpg": KEYRING}))
    gone = plan(fake.host(), settings(state="absent"), facts())
    sources = Sources(fake.run, fake.root, Web(), gone.repository or {}, lambda: 0.0)
    assert len(sources.remove(check=True)) == 3 and len(ours(fake)) == 3
    sources.remove(check=False)
    assert ours(fake) == []


SECRET = "https://me:s%40cret@mirror.example.org/cuda/repos"


def test_a_mirrors_password_is_roots_alone_and_in_no_result(fake: FakeHost) -> None:
    web = Web()
    web.answers = {f"{SECRET}/debian13/x86_64/cuda-archive-keyring.gpg": KEYRING}
    sources, (made, written, _warnings) = settle(fake, web, repository_url=SECRET)
    assert made.final and set(written) == {OWN_SOURCE, f"{OWN_KEY}.gpg", AUTH}
    auth = fake.root / AUTH[1:]
    assert (
        "machine https://mirror.example.org/cuda/repos/debian13/x86_64 login me password s@cret\n" in auth.read_text()
    )
    assert auth.stat().st_mode & 0o777 == 0o600
    assert f"URIs: {URL}\n" in (fake.root / OWN_SOURCE[1:]).read_text()
    assert (fake.root / OWN_SOURCE[1:]).stat().st_mode & 0o777 == 0o644, "apt-cache of any user reads every source"
    shown = json.dumps([made.as_dict(), diff(sources.former, sources.present())])
    assert "cret" not in shown and "mirror.example.org" in shown
    again = plan(fake.host(), settings(repository_url=SECRET), facts())
    assert again.final and again.repository is not None and not again.repository["missing"]
    changed = plan(fake.host(), settings(repository_url=SECRET.replace("cret", "cond")), facts())
    assert changed.repository is not None and changed.repository["missing"]


def test_a_password_that_is_gone_from_the_inventory_goes_from_the_host(fake: FakeHost) -> None:
    web = Web()
    web.answers = {f"{SECRET}/debian13/x86_64/cuda-archive-keyring.gpg": KEYRING}
    settle(fake, web, repository_url=SECRET)
    settle(fake, Web(**{"cuda-archive-keyring__gpg": KEYRING}))
    assert not (fake.root / AUTH[1:]).exists()


def test_components_of_a_mirror_with_a_password(fake: FakeHost) -> None:
    fake.write("etc/apt/sources.list", "deb https://me:secret@debian.example.org/debian trixie main\n")
    settle(fake, Web(**{"cuda-archive-keyring__gpg": KEYRING}))
    text = (fake.root / COMPONENTS_SOURCE[1:]).read_text()
    assert "URIs: https://debian.example.org/debian\n" in text
    auth = (fake.root / AUTH[1:]).read_text()
    assert auth.endswith("machine https://debian.example.org/debian login me password secret\n")


@pytest.mark.parametrize("key", ["", "https://me:s%40cret@keys.example.org/key"])
def test_a_key_that_cannot_be_read_shows_no_password(fake: FakeHost, key: str) -> None:
    with pytest.raises(DriverError, match="Cannot get the signing key") as raised:
        settle(fake, Web(), key=key, repository_url=SECRET)
    assert "cret" not in str(raised.value)


def test_another_file_of_the_same_mirror_is_the_same_with_and_without_a_password(fake: FakeHost) -> None:
    fake.write(
        "etc/apt/sources.list.d/cuda-debian13-x86_64.list", f"deb [signed-by=/usr/share/keyrings/x.gpg] {URL} /\n"
    )
    found = plan(fake.host(), settings(repository_url=SECRET), facts())
    assert found.repository is not None and found.repository["foreign"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("Invalid IPv6 URL"), "gpu_driver_repository_key is no valid address;"),
        (
            http.client.InvalidURL("URL can't contain control characters. 'me:s@cret'"),
            "gpu_driver_repository_key is no valid address;",
        ),
        (http.client.BadStatusLine("x"), "https://m.example.org/key: x;"),
    ],
)
def test_a_key_that_cannot_be_asked_for(fake: FakeHost, error: Exception, told: str) -> None:
    def fetch(url: str) -> bytes:
        raise error

    key = "https://me:s@cret@m.example.org/key"
    with pytest.raises(DriverError, match="Cannot get the signing key") as raised:
        settle(fake, fetch, key=key)  # type: ignore[arg-type]
    assert told in str(raised.value) and "cret" not in str(raised.value)
    assert ours(fake) == []


def test_a_key_without_a_scheme_is_not_asked_for_and_not_shown(fake: FakeHost) -> None:
    web = Web()
    with pytest.raises(DriverError, match="is no valid address; correct gpu_driver_repository_key") as raised:
        settle(fake, web, key="me:s@cret@m.example.org/key")
    assert web.asked == [] and "cret" not in str(raised.value)


def moved(fake: FakeHost, url: str) -> Any:
    fake.install("580.178.04", held=True)
    fake.write("var/lib/socle/gpu_driver.json", json.dumps({"held": fake.held()}))
    return plan(fake.host(), settings(repository_url=url), facts())


@pytest.mark.parametrize(
    ("key", "shown"), [("", f"{OWN_KEY}.gpg: (the repository's key)"), (ARMOUR, f"{OWN_KEY}.asc: (a key of 77 bytes)")]
)
def test_check_mode_shows_the_key_that_would_come(fake: FakeHost, key: str, shown: str) -> None:
    web = Web()
    sources = Sources(fake.run, fake.root, web, plan(fake.host(), settings(), facts()).repository or {}, lambda: 0.0)
    changes = sources.outlook(key)
    told = [f"{one['after_header']}: {one['after'].strip()}" for one in diff(sources.former, changes)]
    assert shown in told and web.asked == [] and ours(fake) == []


def looked_ahead(fake: FakeHost, version: str) -> Any:
    wanted = settings(version=version)
    outlook = plan_as_is(fake.host(), wanted, facts())
    assert not outlook.final and not (outlook.repository or {})["missing"]
    sources = Sources(fake.run, fake.root, Web(), outlook.repository or {}, lambda: 0.0)
    return sources.look_ahead(fake.host(), lambda aside: plan(aside, wanted, facts()))


def test_check_mode_reads_aside_what_the_repository_has_by_now(fake: FakeHost) -> None:
    fake.add_source()
    with pytest.raises(DriverError, match=r"^Driver 580\.199\.01 is not in .* Nothing was changed\.$"):
        looked_ahead(fake, "580.199.01")
    fake.read_aside = {name: [*offers, "580.199.01-1"] for name, offers in fake.offers.items()}
    fake.read_aside["nvidia-driver-pinning-580.199.01"] = ["580.199.01-1"]
    fake.distribution["nvidia-driver-pinning-580.199.01"] = "580.199.01-1"
    made = looked_ahead(fake, "580.199.01")
    assert made.final and "nvidia-driver-cuda=580.199.01-1" in made.install
    asked = [call for call in fake.calls if call[0] == "apt-get"]
    assert asked and all(any(word.startswith("Dir::State::lists=") for word in call) for call in asked)
    fake.failures["update"] = "E: Could not connect to mirror.example.org:443\n"
    assert looked_ahead(fake, "580.199.01") is None


OTHER = "https://other.example.org/cuda/repos"


def test_a_new_address_is_written_although_no_package_changes(fake: FakeHost) -> None:
    settle(fake, Web(**{"cuda-archive-keyring__gpg": KEYRING}))
    assert not moved(fake, "https://mirror.example.org/cuda/repos").refresh
    found = moved(fake, OTHER)
    assert found.refresh and not found.changed_needed and found.action == "none"
    web = Web()
    web.answers = {f"{OTHER}/debian13/x86_64/cuda-archive-keyring.gpg": KEYRING}
    sources = Sources(fake.run, fake.root, web, found.repository or {}, lambda: 0.0)
    changes = sources.outlook()
    assert list(changes) == [OWN_SOURCE] and fake.root / OWN_SOURCE[1:] in sources.former
    (shown,) = diff({Path("/") / path.relative_to(fake.root): text for path, text in sources.former.items()}, changes)
    assert f"URIs: {URL}\n" in shown["before"] and f"URIs: {OTHER}/debian13/x86_64/\n" in shown["after"]
    final, written, _warnings = sources.settle("", lambda: moved(fake, OTHER))
    assert written == [OWN_SOURCE] and not final.refresh and not final.changed_needed
    assert f"URIs: {OTHER}/" in (fake.root / OWN_SOURCE[1:]).read_text()


def test_a_new_password_is_written_although_no_package_changes(fake: FakeHost) -> None:
    web = Web()
    web.answers = {f"{SECRET}/debian13/x86_64/cuda-archive-keyring.gpg": KEYRING}
    settle(fake, web, repository_url=SECRET)
    assert not moved(fake, SECRET).refresh
    assert moved(fake, SECRET.replace("cret", "cond")).refresh
    assert moved(fake, "https://mirror.example.org/cuda/repos").refresh


def test_a_source_that_the_role_never_wrote_is_not_written_for_its_address(fake: FakeHost) -> None:
    assert not moved(fake, OTHER).refresh
    fake.add_source()
    fake.write("etc/apt/sources.list.d/cuda.list", f"deb [signed-by=/x.gpg] {OTHER}/debian13/x86_64/ /\n")
    assert not moved(fake, OTHER).refresh


@pytest.mark.parametrize("damaged", [b"", b"<html>login</html>", None])
def test_a_key_that_is_none_is_fetched_again_although_no_package_changes(fake: FakeHost, damaged: bytes | None) -> None:
    url = "https://mirror.example.org/cuda/repos"
    web = Web(**{"cuda-archive-keyring__gpg": KEYRING})
    settle(fake, web)
    assert not moved(fake, url).refresh
    key = fake.root / f"{OWN_KEY[1:]}.gpg"
    key.unlink() if damaged is None else key.write_bytes(damaged)
    found = moved(fake, url)
    assert found.refresh and not found.changed_needed and found.action == "none"
    sources = Sources(fake.run, fake.root, web, found.repository or {}, lambda: 0.0)
    changes = sources.outlook()
    former = {Path("/") / path.relative_to(fake.root): content for path, content in sources.former.items()}
    shown = [(one["before"], one["after"]) for one in diff(former, changes) if one["after_header"] == f"{OWN_KEY}.gpg"]
    assert shown == [("" if damaged is None else "(no key)\n", "(the repository's key)\n")]
    final, written, _warnings = sources.settle("", lambda: moved(fake, url))
    assert written == [f"{OWN_KEY}.gpg"] and key.read_bytes() == KEYRING and not final.refresh


@pytest.mark.parametrize("number", [1, 2])
def test_a_disk_that_is_full_is_one_sentence_and_leaves_the_sources_as_they_were(
    fake: FakeHost, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    real = os.fsync

    def fill_up(handle: int) -> None:
        synced.append(handle)
        if len(synced) == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", fill_up)
    with pytest.raises(
        EngineError, match=r"Cannot write the package sources of the driver: No space left .*socle-nvid"
    ):
        settle(fake, Web(**{"cuda-archive-keyring__gpg": KEYRING}))
    assert not [path for path in (fake.root / "etc").rglob("*") if path.is_file()]
