# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A relay and a neighbour that takes from it, over real sockets."""

from __future__ import annotations

import http.client
import resource
import socket
import struct
import threading
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import HubError
from ansible_collections.socle.inference.plugins.module_utils._hub.growing import Growing, Shelf
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.origin import NotYet
from ansible_collections.socle.inference.plugins.module_utils._hub.peer import Peer, Upstream
from ansible_collections.socle.inference.plugins.module_utils._hub.relay import Limits, Relay, star_connections

TOKEN = "t0ken"
ADDRESS = "127.0.0.9"
WHOLE = b"0123456789" * 100_000
FILE = ModelFile("folder/a b.bin", len(WHOLE), "0" * 64)
EMPTY = ModelFile("empty", 0, "0" * 64)
QUICK = Limits(connections=4, header_s=0.5, hold_s=0.3, send_s=1)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf({file.path: Growing(file.path, file.size) for file in (FILE, EMPTY)})


@pytest.fixture
def relay(shelf: Shelf) -> Iterator[Relay]:
    relay = Relay(shelf, ADDRESS, [TOKEN], QUICK)
    yield relay
    relay.close()


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "part"


def peer_of(relay: Relay, token: str = TOKEN, rank: str | None = None) -> Peer:
    return Peer(Upstream("gpu1", relay.address, relay.port), token, rank=rank)


def ask(relay: Relay, target: str, method: str = "GET", **headers: str) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(relay.address, relay.port, timeout=10)
    connection.putrequest(method, target, skip_accept_encoding=True)
    for name, value in {"Authorization": f"Bearer {TOKEN}", **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    response = connection.getresponse()
    try:
        return response.status, response.read(), response.headers
    except http.client.IncompleteRead as cut:
        return response.status, cut.partial, response.headers
    finally:
        connection.close()


def grow(shelf: Shelf, part: Path, count: int, content: bytes = WHOLE) -> None:
    with part.open("r+b" if part.exists() else "w+b") as handle:
        handle.write(content[:count])
    shelf.advance(FILE.path, part, count)


def read_all(peer: Peer, offset: int = 0, end: int | None = None) -> bytes:
    with peer.open_file(FILE, offset, end) as answer:
        found = b""
        while chunk := answer.read1(1 << 16):
            found += chunk
        return found


def test_a_complete_file_is_sent_whole_and_in_ranges(relay: Relay, shelf: Shelf, part: Path) -> None:
    part.write_bytes(WHOLE)
    shelf.prove(FILE.path, part)
    assert read_all(peer_of(relay)) == WHOLE
    assert read_all(peer_of(relay), 999_990) == WHOLE[999_990:]
    assert read_all(peer_of(relay), 10, 20) == WHOLE[10:20]
    status, body, headers = ask(relay, "/folder/a%20b.bin", Range="bytes=5-7")
    assert (status, body, headers["Content-Range"]) == (206, b"567", f"bytes 5-7/{len(WHOLE)}")
    assert ask(relay, "/folder/a%20b.bin", Range=f"bytes={len(WHOLE)}-")[0] == 416
    status, body, headers = ask(relay, "/folder/a%20b.bin", method="HEAD")
    assert (status, body, headers["Content-Length"]) == (200, b"", str(len(WHOLE)))


def test_an_empty_file_is_an_answer(relay: Relay) -> None:
    with peer_of(relay).open_file(EMPTY, 0) as answer:
        assert (answer.status, answer.read1()) == (200, b"")


def test_a_growing_file_is_sent_while_it_grows_also_after_it_was_renamed(
    relay: Relay, shelf: Shelf, part: Path, tmp_path: Path
) -> None:
    grow(shelf, part, 1000)
    with peer_of(relay).open_file(FILE, 0) as answer:
        assert answer.read1(1 << 20) == WHOLE[:1000]
        grow(shelf, part, 5000)
        assert answer.read1(1 << 20) == WHOLE[1000:5000]
        grow(shelf, part, len(WHOLE))
        part.rename(tmp_path / "final")
        shelf.prove(FILE.path, tmp_path / "final")
        found = b""
        while chunk := answer.read1(1 << 20):
            found += chunk
    assert found == WHOLE[5000:]
    assert read_all(peer_of(relay)) == WHOLE


def test_bytes_beyond_the_prefix_are_never_sent_even_if_the_part_is_preallocated(
    relay: Relay, shelf: Shelf, part: Path
) -> None:
    part.write_bytes(WHOLE[:2000] + bytes(len(WHOLE) - 2000))
    shelf.advance(FILE.path, part, 2000)
    found = b""
    with peer_of(relay).open_file(FILE, 0) as answer, pytest.raises(NotYet):
        while chunk := answer.read1(1 << 20):
            found += chunk
    assert found == WHOLE[:2000]


def test_a_request_beyond_the_prefix_waits_and_is_told_that_the_file_still_grows(
    relay: Relay, shelf: Shelf, part: Path
) -> None:
    grow(shelf, part, 1000)
    with pytest.raises(NotYet, match=r"gpu1 \(127.0.0.9:\d+\) has no more"):
        peer_of(relay).open_file(FILE, 1000)
    threading.Timer(0.1, grow, (shelf, part, 1500)).start()
    with peer_of(relay).open_file(FILE, 1000) as answer:
        assert answer.read1(1 << 20) == WHOLE[1000:1500]


def test_a_file_that_was_not_begun_is_waited_for(relay: Relay) -> None:
    with pytest.raises(NotYet):
        peer_of(relay).open_file(FILE, 0)


def test_a_download_that_ended_early_says_so_and_what_it_has_is_served(relay: Relay, shelf: Shelf, part: Path) -> None:
    grow(shelf, part, 1000)
    shelf.close()
    with peer_of(relay).open_file(FILE, 0) as answer:
        assert answer.read1(1 << 20) == WHOLE[:1000]
    with pytest.raises(urllib.error.HTTPError) as refused:
        peer_of(relay).open_file(FILE, 1000)
    assert refused.value.code == 410


def test_a_complete_file_that_cannot_be_opened_any_more_is_gone(relay: Relay, shelf: Shelf, part: Path) -> None:
    shelf.prove(FILE.path, part)
    with pytest.raises(urllib.error.HTTPError) as caught:
        peer_of(relay).open_file(FILE, 0)
    assert caught.value.code == 410


def test_of_two_that_lack_a_file_one_waits_and_the_other_is_told_not_to(relay: Relay, shelf: Shelf, part: Path) -> None:
    before, after = peer_of(relay, rank="0"), peer_of(relay, rank="9")
    for peer in (before, after):
        with pytest.raises(NotYet):
            peer.open_file(FILE, 0)
    shelf.settle()
    with pytest.raises(urllib.error.HTTPError) as refused:
        before.open_file(FILE, 0)
    assert refused.value.code == 410
    # One that takes part in a chain names no relay of its own: what it waits for comes through this host.
    for peer in (after, peer_of(relay)):
        with pytest.raises(NotYet):
            peer.open_file(FILE, 0)
    grow(shelf, part, 1000)
    with before.open_file(FILE, 0) as answer:
        assert answer.read1(1 << 20) == WHOLE[:1000]


def test_what_a_neighbour_found_wrong_is_passed_on_where_it_was_called_complete(shelf: Shelf, part: Path) -> None:
    told: list[str] = []
    relay = Relay(shelf, ADDRESS, [TOKEN], QUICK, told.append)
    try:
        grow(shelf, part, 1000)
        peer_of(relay).blame(FILE)
        assert told == [], "it is not proven here either"
        shelf.prove(FILE.path, part)
        peer_of(relay, "wrong").blame(FILE)
        peer_of(relay).blame(ModelFile("no/such", 1, FILE.sha256))
        assert told == []
        peer_of(relay).blame(FILE)
        assert told == [FILE.path]
    finally:
        relay.close()
    peer_of(relay).blame(FILE)


def test_a_process_that_just_ends_is_told_from_a_silent_host() -> None:
    with socket.create_server((ADDRESS, 0)) as listener:
        thread = threading.Thread(target=reset_one_and_close, args=(listener,))
        thread.start()
        address, port = listener.getsockname()
        assert Peer(Upstream("gpu1", address, port), TOKEN).is_heard(FILE) is None
        thread.join()


def reset_one_and_close(listener: socket.socket) -> None:
    """What clients see of a process that is killed while they wait to be served."""
    client, _address = listener.accept()
    client.recv(1)
    listener.close()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def test_who_has_to_wait_learns_whether_anything_comes_at_all(relay: Relay, shelf: Shelf, part: Path) -> None:
    words = []
    for known in (0, 0, 500):
        shelf.files[EMPTY.path].prefix = known
        with pytest.raises(NotYet) as caught:
            peer_of(relay).open_file(FILE, 0)
        words.append(caught.value.progress)
    assert words[0] == words[1] != words[2]


def test_a_new_generation_cuts_the_connection_and_is_sent_from_its_start(
    relay: Relay, shelf: Shelf, part: Path
) -> None:
    peer = peer_of(relay)
    grow(shelf, part, 1000, b"wrong" * 200_000)
    with peer.open_file(FILE, 0) as answer:
        assert answer.read1(1 << 20) == b"wrong" * 200
        shelf.restart(FILE.path)
        part.write_bytes(b"")
        grow(shelf, part, 4000)
        with pytest.raises(NotYet):
            answer.read1(1 << 20)
    with peer.open_file(FILE, 1000) as answer:
        assert (answer.status, answer.read1(1 << 20)) == (200, WHOLE[:4000])
    with peer.open_file(FILE, 1000) as answer:
        assert (answer.status, answer.read1(1 << 20)) == (206, WHOLE[1000:4000])


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", "Basic t0ken", "Bearer t0ken2", "Bearer \xe9"])
def test_a_wrong_token_is_refused_before_the_path_is_looked_at(relay: Relay, given: str) -> None:
    assert ask(relay, "/folder/a%20b.bin", Authorization=given)[0] == 401
    assert ask(relay, "/no/such/file", Authorization=given)[0] == 401


def test_a_token_of_a_later_run_is_admitted_beside_the_first(relay: Relay, shelf: Shelf, part: Path) -> None:
    part.write_bytes(WHOLE)
    shelf.prove(FILE.path, part)
    with pytest.raises(urllib.error.HTTPError):
        peer_of(relay, "second").open_file(FILE, 0)
    relay.admit("second")
    assert read_all(peer_of(relay, "second")) == read_all(peer_of(relay)) == WHOLE


@pytest.mark.parametrize(
    "target",
    [
        *("/", "/folder", "/../part", "/%2e%2e/part", "/folder/../folder/a%20b.bin", "//etc/passwd", "/etc/passwd"),
        *("/folder%2Fa%20b.bin%00", "/folder/a%20b.bin?x", "/folder%5Ca%20b.bin", "/folder/a%20b.bin/"),
    ],
)
def test_nothing_but_paths_of_the_manifest_is_served(relay: Relay, target: str) -> None:
    assert ask(relay, target)[0] == 404


def test_a_link_in_the_place_of_a_file_is_not_followed(relay: Relay, shelf: Shelf, part: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret" * 1000)
    part.symlink_to(tmp_path / "secret")
    shelf.prove(FILE.path, part)
    status, body, _headers = ask(relay, "/folder/a%20b.bin")
    assert (status, body) == (410, b"")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GARBAGE\r\n\r\n", b"400"),
        (b"GET http://x/ HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", b"431"),
        (b"POST /folder HTTP/1.1\r\nAuthorization: Bearer t0ken\r\n\r\n", b"405"),
        (b"GET / HT", b"408"),
    ],
)
def test_what_is_no_request_gets_a_short_refusal(relay: Relay, sent: bytes, status: bytes) -> None:
    with socket.create_connection((relay.address, relay.port), timeout=10) as client:
        client.sendall(sent)
        answer = client.recv(4096)
    assert answer.split(b" ")[1] == status


def test_a_client_that_sends_one_byte_at_a_time_is_cut_off(relay: Relay) -> None:
    with socket.create_connection((relay.address, relay.port), timeout=10) as client:
        client.settimeout(0.1)
        answer = b""
        for _byte in range(100):
            try:
                client.sendall(b"x")
                answer = client.recv(4096)
                break
            except TimeoutError:
                continue
    assert b" 408 " in answer


def test_with_all_connections_in_use_a_neighbour_is_told_to_wait_and_served_when_one_ends(
    relay: Relay, shelf: Shelf, part: Path
) -> None:
    part.write_bytes(WHOLE)
    shelf.prove(FILE.path, part)
    for _number in range(QUICK.connections):
        relay._slots.acquire()
    with pytest.raises(NotYet):
        peer_of(relay).open_file(FILE, 0)
    assert peer_of(relay).reach(FILE) is None
    threading.Timer(QUICK.hold_s / 3, relay._slots.release).start()
    assert read_all(peer_of(relay)) == WHOLE
    # The place is given back a moment after the last byte.
    assert relay._slots.acquire(timeout=10)


def test_clients_without_a_token_take_no_place_from_neighbours(relay: Relay, shelf: Shelf, part: Path) -> None:
    part.write_bytes(WHOLE)
    shelf.prove(FILE.path, part)
    crowd = [
        socket.create_connection((relay.address, relay.port), 10, source_address=(f"127.0.1.{number}", 0))
        for number in range(1, QUICK.strangers_per_address + 1)
        for _connection in range(2)
    ]
    try:
        assert read_all(peer_of(relay)) == WHOLE
    finally:
        for client in crowd:
            client.close()


@pytest.mark.parametrize("addresses", [1, 6])
def test_silent_clients_are_limited_by_address_and_in_all(shelf: Shelf, addresses: int) -> None:
    relay = Relay(shelf, ADDRESS, [TOKEN], Limits(header_s=60, strangers=5, strangers_per_address=2))
    crowd = []
    try:
        for number in range(6):
            client = socket.create_connection(
                (relay.address, relay.port), 10, source_address=(f"127.0.1.{1 + number % addresses}", 0)
            )
            crowd.append(client)
        assert b" 503 " in crowd[-1].recv(4096)
        crowd[0].settimeout(0.1)
        with pytest.raises(socket.timeout):
            crowd[0].recv(1)
    finally:
        for client in crowd:
            client.close()
        relay.close()


def test_without_threads_left_clients_are_told_to_come_again(
    relay: Relay, shelf: Shelf, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part.write_bytes(WHOLE)
    shelf.prove(FILE.path, part)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        status, _body, headers = ask(relay, "/folder/a%20b.bin")
    assert (status, headers["X-Socle-State"]) == (503, "waiting")
    assert ask(relay, "/folder/a%20b.bin")[0] == 200
    assert not relay._strangers


def test_a_relay_has_room_for_a_star_of_hosts_and_for_the_files_that_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"now": (1024, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _kind, pair: limits.update(now=pair))
    assert star_connections(4) == 256
    assert limits["now"] == (1024, 4096)
    assert star_connections(16) == 1024
    assert limits["now"] == (2304, 4096)
    limits["now"] = (512, 512)
    assert star_connections(16) == 128


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "224.0.0.1", "localhost", ""])
def test_it_never_listens_on_all_addresses(shelf: Shelf, address: str) -> None:
    with pytest.raises(HubError, match="lan_address must be"):
        Relay(shelf, address, [TOKEN])


def test_it_listens_on_its_address_only(relay: Relay) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", relay.port), timeout=5)


def test_an_address_of_another_host_is_named(shelf: Shelf) -> None:
    with pytest.raises(HubError, match=r"192\.0\.2\.1 .*set lan_address"):
        Relay(shelf, "192.0.2.1", [TOKEN])


def test_only_served_neighbours_keep_it_from_being_idle(relay: Relay, shelf: Shelf, part: Path) -> None:
    part.write_bytes(WHOLE)
    shelf.prove(FILE.path, part)
    relay._used -= 1000
    ask(relay, "/folder/a%20b.bin", Authorization="Bearer wrong")
    assert relay.idle_s() > 900
    read_all(peer_of(relay))
    assert relay.idle_s() < 900


def test_closing_it_ends_its_connections(relay: Relay, shelf: Shelf, part: Path) -> None:
    grow(shelf, part, 1000)
    with peer_of(relay).open_file(FILE, 0) as answer:
        answer.read1(1 << 20)
        relay.close()
        with pytest.raises((NotYet, OSError)):
            answer.read1(1 << 20)
    with pytest.raises(OSError):
        peer_of(relay).open_file(FILE, 0)


def test_reaching_tells_why_not(relay: Relay) -> None:
    assert peer_of(relay).reach(FILE) is None
    assert peer_of(relay, "wrong").reach(FILE) == "status 401"
    relay.close()
    assert "refused" in (peer_of(relay).reach(FILE) or "")
