# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The client names the phase that failed, goes around proxies, and keeps the key to itself."""

from __future__ import annotations

import httpx
import pytest
from ansible_collections.socle.inference.plugins.module_utils._probe.client import EngineClient, phase_of
from ansible_collections.socle.inference.plugins.module_utils._probe.errors import ProbeError, TransportFault

from tests.simulators.engine import Behaviour, EngineDouble

PHASES = {
    "ConnectError": "connect",
    "ConnectTimeout": "connect",
    "WriteError": "write",
    "WriteTimeout": "write",
    "ReadError": "read",
    "ReadTimeout": "read",
    "PoolTimeout": "pool",
    "CloseError": "close",
    "RemoteProtocolError": "protocol",
    "DecodingError": "protocol",
    "TooManyRedirects": "redirect",
    "ProxyError": "request",
    "UnsupportedProtocol": "request",
    "LocalProtocolError": "request",
}


def leaves(kind: type[Exception]) -> list[type[Exception]]:
    below = kind.__subclasses__()
    return [leaf for sub in below for leaf in leaves(sub)] if below else [kind]


def test_every_error_of_httpx_has_a_phase() -> None:
    assert {leaf.__name__: phase_of(leaf("x")) for leaf in leaves(httpx.RequestError)} == PHASES


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(httpx.ReadTimeout, TransportFault), (httpx.ConnectError, TransportFault), (httpx.PoolTimeout, ProbeError)],
)
def test_what_is_the_engines_fault_and_what_is_the_probes(
    raised: type[httpx.RequestError], expected: type[Exception]
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise raised("boom", request=request)

    with (
        EngineClient("http://engine", transport=httpx.MockTransport(answer)) as client,
        pytest.raises(expected) as told,
    ):
        client.get("/health")
    assert phase_of(raised("x")) in str(told.value)


def test_a_bad_address_is_the_probes_fault() -> None:
    with EngineClient("ftp://engine") as client, pytest.raises(ProbeError):
        client.get("/health")


def test_proxies_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with EngineDouble() as double, EngineClient(double.base_url) as client:
        assert client.get("/health").status == 200


@pytest.mark.parametrize(
    "address", ["http://engine:1", "http://engine:1/", "http://engine:1/v1", "http://engine:1/v1/"]
)
def test_base_url_may_end_as_clients_write_it(address: str) -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url))
        return httpx.Response(200)

    with EngineClient(address, transport=httpx.MockTransport(answer)) as client:
        client.get("/v1/models")
    assert seen == ["http://engine:1/v1/models"]


def test_an_echoed_key_is_redacted() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=f"you sent {request.headers['Authorization']}")

    with EngineClient("http://engine", "sk-1", transport=httpx.MockTransport(answer)) as client:
        assert client.get("/").text == "you sent Bearer ********"


def test_characters_split_over_chunks_arrive_whole() -> None:
    with EngineDouble(Behaviour(cut_characters=True)) as double, EngineClient(double.base_url) as client:
        trace = client.stream_chat({"model": "double", "messages": [], "max_tokens": 10})
    assert trace.text == "Zürich liegt am See 日本語 naïve 🚂 and so on "
    assert [mark.tokens for mark in trace.marks] == list(range(1, 11))
