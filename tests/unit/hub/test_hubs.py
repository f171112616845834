# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How hubs are reached, what they are told, and what of their answers is believed."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import HubError
from ansible_collections.socle.inference.plugins.module_utils._hub import listing
from ansible_collections.socle.inference.plugins.module_utils._hub.hubs import make_hub
from ansible_collections.socle.inference.plugins.module_utils._hub.json_stream import JSON_MAX_COST, json_cost
from ansible_collections.socle.inference.plugins.module_utils._hub.modelscope import ModelScopeHub
from ansible_collections.socle.inference.plugins.module_utils._hub.policy import Policy
from ansible_collections.socle.inference.plugins.module_utils._hub.transport import Access, Client, HubUnreachable

from tests.simulators.hub.server import HubSimulator
from tests.unit.hub.certificates import make_certificates

REPO = "Org/Model"
WEIGHTS = "model-00001-of-00002.safetensors"
FAST = Policy(backoff_s=0.01, backoff_max_s=0.02, list_timeout_s=5, stall_s=5)


def reach(hub: HubSimulator, source: str = "modelscope", **options: Any) -> Any:
    return make_hub(source, **{"endpoint": hub.url, "proxy": "", "policy": FAST, **options})


def read(hub: Any, manifest: Any, path: str, offset: int = 0, end: int | None = None) -> bytes:
    file = next(file for file in manifest.files if file.path == path)
    with hub.origin(manifest).open_file(file, offset, end) as response:
        content: bytes = response.read()
    return content


@pytest.mark.parametrize("source", ["modelscope", "huggingface"])
def test_each_file_can_be_had_whole_and_in_part(hub: HubSimulator, folder: Path, source: str) -> None:
    (folder / "ö #?%&+ä.txt").write_text("odd")
    client = reach(hub, source)
    manifest = client.resolve(REPO, "v1")
    for file in manifest.files:
        assert read(client, manifest, file.path) == (folder / file.path).read_bytes()
    content = (folder / WEIGHTS).read_bytes()
    assert read(client, manifest, WEIGHTS, 10) == content[10:]
    assert read(client, manifest, WEIGHTS, 10, 20) == content[10:20]
    assert read(client, manifest, WEIGHTS, 0, 20) == content[:20]


@pytest.mark.parametrize("source", ["modelscope", "huggingface"])
def test_the_token_goes_to_the_hub_alone(folder: Path, source: str) -> None:
    with HubSimulator(folder.parents[1], cdn_host="localhost") as hub:
        hub.protect(REPO, "very-secret")
        hub.add_rule(path="/resolve/", resolve_cache=True, count=-1)
        client = reach(hub, source, token="very-secret")
        manifest = client.resolve(REPO, "v1")
        for file in manifest.files:
            read(client, manifest, file.path)
        on_storage = [request for request in hub.requests if request["path"].startswith("/cdn/")]
        at_hub = [request for request in hub.requests if not request["path"].startswith("/cdn/")]
    assert on_storage
    assert all("very-secret" in str(request["headers"]) for request in at_hub)
    assert "very-secret" not in str(on_storage)
    assert "very-secret" not in repr(client.__dict__) + repr(Access("very-secret"))


@pytest.mark.parametrize("source", ["modelscope", "huggingface"])
def test_a_private_model_asks_for_a_token(hub: HubSimulator, source: str) -> None:
    hub.protect(REPO, "very-secret")
    with pytest.raises(HubError, match=r"private.*token"):
        reach(hub, source).resolve(REPO, "v1")
    with pytest.raises(HubError, match="valid for it") as caught:
        reach(hub, source, token="other-secret").resolve(REPO, "v1")
    assert "secret" not in str(caught.value) + str(caught.value.fields)


def test_hashes_that_the_listing_lacks_come_from_the_storage(hub: HubSimulator) -> None:
    expected = reach(hub).resolve(REPO, "master").files
    hub.add_rule(path="/repo/files", nosha=True)
    assert reach(hub).resolve(REPO, "master").files == expected


def test_without_any_hash_nothing_is_taken(hub: HubSimulator) -> None:
    hub.add_rule(path="/repo/files", nosha=[WEIGHTS])
    hub.add_rule(path="/repo |/cdn/", no_etag=True, count=-1)
    with pytest.raises(HubError, match=rf"{WEIGHTS}' has no SHA-256.*nothing was downloaded"):
        reach(hub).resolve(REPO, "master")


def test_a_hostile_listing_without_hashes_makes_no_further_request(hub: HubSimulator) -> None:
    entry = {"Path": "../evil", "Type": "blob", "Size": 1}
    hub.add_rule(path="/repo/files", files=[entry, {**entry, "Path": "b"}])
    with pytest.raises(HubError, match="leaves its folder"):
        reach(hub).resolve(REPO, "master")
    assert len(hub.requests) == 1


@pytest.mark.parametrize("source", ["modelscope", "huggingface"])
def test_a_listing_that_would_take_much_memory_is_not_parsed(hub: HubSimulator, source: str) -> None:
    hub.add_rule(path="/repo/files|/revision/", files=[{}] * 200_000, siblings=[{}] * 200_000)
    with pytest.raises(HubError, match=r"more than 56 MiB of memory.*nothing was downloaded"):
        reach(hub, source).resolve(REPO, "v1")


def test_a_listing_of_more_files_than_a_model_has_is_refused(
    hub: HubSimulator, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MAX_FILES", 5)
    clients = [
        ModelScopeHub(Client(hub.url, Access(proxy=""), FAST)),
        ModelScopeHub(Client(hub.url, Access(proxy=""), FAST), list_cap=7),
        make_hub("huggingface", hub.url, proxy="", policy=FAST),
    ]
    for client in clients:
        with pytest.raises(HubError, match="more than 5 files"):
            client.resolve(REPO, "v1")
    hub.add_rule(path="/revision/", no_blobs=True)
    with pytest.raises(HubError, match="more than 5 files"):
        clients[2].resolve(REPO, "v1")
    assert not any("/cdn/" in request["path"] for request in hub.requests)


DOCUMENTS: dict[str, Any] = {
    "objects": [{}] * 20_000,
    "lists": [[]] * 20_000,
    "nested": [[[[]]]] * 20_000,
    "keys": {str(number): 0 for number in range(20_000)},
    "objects of objects": [{f"{number}": {f"{-number}": {}}} for number in range(20_000)],
    "sparse": [{f"{number}-{key}": key for key in range(6)} for number in range(10_000)],
    "floats": [0.5] * 20_000,
    "texts": ["aa"] * 20_000,
    "wide": "a" * 200_000 + "\U0001f600",
    "a listing": [{"rfilename": f"m-{n}", "size": n, "lfs": {"sha256": f"{n:064}", "size": n}} for n in range(5000)],
}


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_the_cost_of_an_answer_is_never_told_too_low(document: Any, ascii_only: bool) -> None:
    body = json.dumps(document, ensure_ascii=ascii_only, separators=(",", ":")).encode()
    tracemalloc.start()
    try:
        json.loads(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= json_cost(body) * 1.05
    assert json_cost(body) < JSON_MAX_COST


@pytest.mark.parametrize("body", [b"1" * 5000, b"[" * 100_000, b'"\xff"', b""])
def test_an_answer_that_is_no_json_is_refused_whatever_is_wrong_with_it(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """Newer versions of Python turn so many digits into no number, with an error of its own."""
    monkeypatch.setattr(Client, "_read", lambda *_arguments: (body, {}))
    with pytest.raises(HubError, match=r"answered (nothing|no JSON) to a listing of Org/Model"):
        make_hub(endpoint="http://127.0.0.1:1", proxy="").resolve(REPO, "master")


def test_names_of_a_hub_that_would_move_the_cursor_are_not_shown() -> None:
    assert listing.shown_names(["main", "a\x1b[2J", "b\nc", "\ud800", 7, None, "é"]) == ["main", "é"]


def many(folder: Path, count: int, where: str) -> None:
    (folder / where).mkdir(exist_ok=True)
    for number in range(count):
        (folder / where / f"{number}.txt").touch()


def test_a_listing_of_exactly_3000_entries_is_walked(hub: HubSimulator, folder: Path) -> None:
    many(folder, 1495, "one")
    many(folder, 1496, "two")
    # With the six files and the folder of the model itself, and the two folders' entries.
    assert len(reach(hub).resolve(REPO, "master").files) == 2997
    first = hub.requests[0]["params"]
    assert first["Recursive"] == "True"
    assert [request["params"].get("Root") for request in hub.requests[1:]] == [None, "two", "one", "extra"]


def test_a_listing_below_3000_entries_is_believed(hub: HubSimulator, folder: Path) -> None:
    many(folder, 2991, "one")
    assert len(reach(hub).resolve(REPO, "master").files) == 2997
    assert len(hub.requests) == 1


def test_a_folder_of_3000_entries_cannot_be_listed(hub: HubSimulator, folder: Path) -> None:
    many(folder, 3000, "one")
    with pytest.raises(HubError, match=r"ends a listing at 3000 entries, and folder 'one'.*nothing was downloaded"):
        reach(hub).resolve(REPO, "master")


def test_a_branch_that_moves_between_pages_is_noticed(hub: HubSimulator, folder: Path) -> None:
    hub.list_cap = 8
    many(folder, 1, "more")
    client = ModelScopeHub(Client(hub.url, Access(proxy=""), FAST), list_cap=8)
    original = client._page
    pages = 0

    def page(*args: Any) -> Any:
        nonlocal pages
        pages += 1
        if pages == 3:
            (folder / "config.json").write_text("{}")
        return original(*args)

    client._page = page  # type: ignore[method-assign]
    with pytest.raises(HubError, match=r"moved while .* listed it"):
        client.resolve(REPO, "master")


def test_a_spurious_refusal_of_a_listing_is_asked_again(hub: HubSimulator) -> None:
    hub.add_rule(path="/repo/files", status=403, count=2)
    assert reach(hub).resolve(REPO, "master").files


@pytest.mark.parametrize("fault", [{"html": True}, {"empty": True}])
@pytest.mark.parametrize("source", ["modelscope", "huggingface"])
def test_a_login_page_in_place_of_a_listing_is_named(hub: HubSimulator, source: str, fault: dict[str, Any]) -> None:
    hub.add_rule(path="^/api/", count=-1, **fault)
    with pytest.raises(HubError, match=r"to a listing of Org/Model .*a proxy or login page"):
        reach(hub, source).resolve(REPO, "master")


@pytest.mark.parametrize("source", ["modelscope", "huggingface"])
def test_an_unknown_revision_names_those_that_exist(hub: HubSimulator, folder: Path, source: str) -> None:
    (folder.parent / "Model@dev").mkdir()
    (folder.parent / "Model@dev/a").write_text("a")
    branch = "master" if source == "modelscope" else "main"
    message = rf"no revision 'v9' of Org/Model \(branches: {branch}, dev; tags: v1; or a full commit hash\)"
    with pytest.raises(HubError, match=message):
        reach(hub, source).resolve(REPO, "v9")


@pytest.mark.parametrize("source", ["modelscope", "huggingface"])
def test_a_branch_that_moves_has_another_commit_and_the_old_one_stays(
    hub: HubSimulator, folder: Path, source: str
) -> None:
    (folder.parent / "Model@new").mkdir()
    (folder.parent / "Model@new/a.txt").write_text("a")
    client = reach(hub, source)
    branch = "master" if source == "modelscope" else "main"
    old = client.resolve(REPO, branch)
    hub.move(REPO, "master", "new")
    new = client.resolve(REPO, branch)
    assert new.commit != old.commit
    assert client.resolve(REPO, old.commit).content_id == old.content_id == client.resolve(REPO, "v1").content_id


def test_a_private_authority_is_trusted_only_when_told(folder: Path, tmp_path: Path) -> None:
    authority, certificate = make_certificates(tmp_path)
    with HubSimulator(folder.parents[1], certificate=certificate) as hub:
        with pytest.raises(HubUnreachable, match=r"its certificate is not trusted: .*; give .* with ca_file"):
            reach(hub).resolve(REPO, "master")
        other = tmp_path / "other"
        other.mkdir()
        with pytest.raises(HubUnreachable, match="neither ca_file nor the system's authorities signed it"):
            reach(hub, ca_file=str(make_certificates(other)[0])).resolve(REPO, "master")
        pauses: list[float] = []
        with pytest.raises(HubUnreachable):
            ModelScopeHub(Client(hub.url, Access(proxy=""), FAST, pauses.append)).resolve(REPO, "master")
        assert pauses == [], "another try would not change it"
        assert hub.requests == []
        client = reach(hub, ca_file=str(authority))
        manifest = client.resolve(REPO, "master")
        assert read(client, manifest, WEIGHTS) == (folder / WEIGHTS).read_bytes()


def test_a_hub_without_tls_is_named(hub: HubSimulator) -> None:
    with pytest.raises(HubUnreachable, match=r"TLS failed: (wrong version number|record layer failure)"):
        reach(hub, endpoint=hub.url.replace("http:", "https:")).resolve(REPO, "master")


@pytest.mark.parametrize(
    ("content", "message"), [(None, "No such file or directory"), ("no certificate", "no certificate in PEM form")]
)
def test_a_ca_file_that_is_none_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    place = tmp_path / "ca.pem"
    if content:
        place.write_text(content)
    with pytest.raises(HubError, match=rf"ca_file {place} cannot be used: .*{message}"):
        make_hub(ca_file=str(place))


@pytest.fixture
def through(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A hub with a name that only its proxy knows."""
    monkeypatch.setattr("urllib.request.proxy_bypass", lambda _host: False)

    def make(proxy: str, source: str = "modelscope") -> Any:
        return make_hub(source, endpoint="http://hub.invalid", proxy=proxy, policy=FAST)

    return make


def test_a_proxy_is_used(through: Callable[..., Any], hub: HubSimulator) -> None:
    assert through(hub.url).resolve(REPO, "master").files
    assert hub.requests[0]["headers"]["Host"] == "hub.invalid"


def test_a_proxy_that_wants_credentials_is_named(through: Callable[..., Any], hub: HubSimulator) -> None:
    hub.add_rule(status=407, count=-1)
    with pytest.raises(HubUnreachable, match=rf"through the proxy 127.0.0.1:{hub.port}, which wants credentials"):
        through(hub.url).resolve(REPO, "master")
    assert len(hub.requests) == 1


def test_a_dead_proxy_is_named(through: Callable[..., Any]) -> None:
    with pytest.raises(HubUnreachable, match=r"hub.invalid cannot be reached through the proxy 127.0.0.1:1 \("):
        through("http://127.0.0.1:1").resolve(REPO, "master")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "floppy"}, "source must be one of"),
        ({"source": "directory"}, "needs path"),
        ({"source": "directory", "path": "models"}, "absolute"),
        ({"source": "huggingface", "endpoint": "hf-mirror.com"}, "endpoint must be .* this one has no scheme"),
        ({"endpoint": "https://mirror.example/`id`"}, "endpoint must be .* no address has"),
        ({"endpoint": "https://mirror.example/\u4e2d"}, "endpoint must be .* beyond ASCII"),
        ({"proxy": "http://user:geheim@127.0.0.1:1"}, "credentials"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HubError, match=message) as caught:
        make_hub(**options)
    assert "geheim" not in str(caught.value)


def test_an_endpoint_in_capitals_is_the_same_hub() -> None:
    """Else its scheme would not count as HTTPS where a redirect leaves that."""
    client = Client("HTTPS://mirror.example/models/", Access(proxy=""), FAST)
    assert client.endpoint == "https://mirror.example/models"
