# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP to a hub, by the standard library: proxy, CA file, token, JSON with attempts. Private to socle.inference."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import HubError
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.policy import Policy

TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
REDIRECTS = frozenset({301, 302, 303, 307, 308})
JSON_MAX_BYTES = 64 << 20
RETRY_AFTER_MAX_S = 300.0
NETWORK_ERRORS = (OSError, http.client.HTTPException)
"""What a request can raise when the network or the other side fails; URLError and timeouts are OSError."""

TOKEN = re.compile(r"[\x21-\x7e]+")
ADDRESS = re.compile(r"[\x21-\x7e]+")
SECRET_HEADERS = ("Authorization", "Cookie", "Proxy-authorization")


class HubUnreachable(HubError):
    """No usable answer: the network, a proxy, TLS or the hub itself is at fault."""


@dataclass(frozen=True)
class Access:
    """How to reach a hub. *proxy*: None follows the environment, "" uses none. *ca_file*: authorities besides the
    system's."""

    token: str | None = field(default=None, repr=False)
    proxy: str | None = None
    ca_file: str | None = None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects; what is secret goes along only where it came from in the first place."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = _origin_of(endpoint)

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None:
            for name in SECRET_HEADERS:
                request.remove_header(name)
            # A hub that moves a file to another path of its own still wants to know who asks.
            if _origin_of(req.full_url) == _origin_of(newurl) == self._endpoint:
                for name, value in req.unredirected_hdrs.items():
                    if name in SECRET_HEADERS:
                        request.add_unredirected_header(name, value)
        return request


def _origin_of(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port of *url*: those who may see what was meant for it."""
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def split_endpoint(endpoint: str) -> str:
    """The endpoint without a trailing slash; raises HubError for what is no http(s) address."""
    return _checked_address("endpoint", endpoint).rstrip("/")


def _checked_address(option: str, address: str) -> str:
    try:
        parts = urllib.parse.urlsplit(address)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        # Brackets that do not match, or a port that is no number.
        usable = False
    if not usable or not ADDRESS.fullmatch(address):
        example = "http://proxy.example:3128" if option == "proxy" else "https://www.modelscope.cn"
        raise HubError(f"{option} must be an http or https address such as {example}")
    if parts.username or parts.password:
        raise HubError(
            f"{option} must not hold credentials, they would be shown; use the token option, or the task's "
            "environment for a proxy"
        )
    return address


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca_file:
        try:
            context.load_verify_locations(cafile=ca_file)
        except OSError as error:
            # An SSLError is one, for a file without a certificate in it.
            reason = "it holds no certificate in PEM form" if isinstance(error, ssl.SSLError) else error.strerror
            raise HubError(f"ca_file {ca_file} cannot be used: {reason}") from error
    return context


class Client:
    """Requests to one endpoint. *product* names in messages what was expected there."""

    def __init__(
        self,
        endpoint: str,
        access: Access | None = None,
        policy: Policy | None = None,
        sleep: Callable[[float], None] = time.sleep,
        product: str = "ModelScope hub",
        token_cookie: str | None = None,
    ) -> None:
        access = access or Access()
        self.endpoint = split_endpoint(endpoint)
        self.host = urllib.parse.urlsplit(self.endpoint).netloc
        self.policy = policy or Policy()
        self.sleep = sleep
        self.has_token = bool(access.token)
        self._product = product
        self._secrets: dict[str, str] = {}
        if access.token:
            if not TOKEN.fullmatch(access.token):
                raise HubError(
                    "token holds a line break, a blank or another character that no token has (its value is not "
                    "shown): give it without, for example with the filter trim"
                )
            self._secrets["Authorization"] = f"Bearer {access.token}"
            if token_cookie:
                self._secrets["Cookie"] = f"{token_cookie}={access.token}"
        if access.proxy is None:
            self._proxies = urllib.request.getproxies()
        else:
            proxy = access.proxy
            self._proxies = dict.fromkeys(("http", "https"), _checked_address("proxy", proxy)) if proxy else {}
        self._has_ca_file = bool(access.ca_file)
        handlers = [
            urllib.request.ProxyHandler(self._proxies),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(context=_tls_context(access.ca_file)),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.UnknownHandler(),
        ]
        self._direct = _opener(handlers)
        self._opener = _opener([*handlers, _Redirects(self.endpoint)])

    def open(self, address: str, headers: Mapping[str, str] | None = None, timeout_s: float | None = None) -> Any:
        """The answer to a GET of *address*, a path of the endpoint with its query, redirects followed."""
        return self._opener.open(self._request(address, headers), timeout=timeout_s or self.policy.stall_s)

    def describe_route(self) -> str:
        """How requests leave this host, for a message; never with credentials."""
        scheme = urllib.parse.urlsplit(self.endpoint).scheme
        proxy = self._proxies.get(scheme)
        hostname = urllib.parse.urlsplit(self.endpoint).hostname or ""
        if not proxy or urllib.request.proxy_bypass(hostname):
            return "without a proxy"
        try:
            parts = urllib.parse.urlsplit(proxy if "://" in proxy else f"//{proxy}")
            return f"through the proxy {parts.hostname}" + (f":{parts.port}" if parts.port else "")
        except ValueError:
            return "through a proxy whose address in the task's environment is not valid"

    def get_json(
        self, path: str, params: Mapping[str, str], repo: str, explain: Callable[[Any], HubError | None] | None = None
    ) -> Any:
        """The JSON document at *path*; *explain* turns a refusal into an error where it knows a better one."""
        query = "?" + urllib.parse.urlencode(params) if params else ""
        body = self.get(path + query, repo, explain)
        try:
            return json.loads(body)
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise HubError(
                f"{self.host} did not answer JSON ({self.describe_route()}): a proxy or login page answered "
                "in its place"
            ) from error

    def get(self, address: str, repo: str, explain: Callable[[Any], HubError | None] | None = None) -> bytes:
        """A short document about *repo*; a few attempts, since hubs are known for spurious refusals."""
        pause = self.policy.backoff_s
        last: Exception
        for attempt in range(1, self.policy.list_attempts + 1):
            try:
                with self.open(address, timeout_s=self.policy.list_timeout_s) as response:
                    body: bytes = response.read(JSON_MAX_BYTES + 1)
                if len(body) > JSON_MAX_BYTES:
                    raise HubError(f"{self.host} answered more than {JSON_MAX_BYTES >> 20} MiB to a listing of {repo}")
            except urllib.error.HTTPError as error:
                error.close()
                known = explain(error) if explain else None
                if known:
                    raise known from error
                if error.code == 404:
                    raise HubError(
                        f"{self.host} has no model {repo}: check the spelling (organisation/name)"
                        + ("" if self.has_token else "; a private model needs a token"),
                        status=404,
                    ) from error
                if error.code not in TRANSIENT | {401, 403}:
                    raise HubError(
                        f"{self.host} answered {error.code} to a request for {repo}: the endpoint is no "
                        f"{self._product}",
                        status=error.code,
                    ) from error
                last = error
                pause = retry_after(error) or pause
            except NETWORK_ERRORS as error:
                last = error
            except ValueError as error:
                raise HubError(
                    f"{self.host} cannot be asked {self.describe_route()}: its address, the proxy's or one that it "
                    "redirects to is not valid"
                ) from error
            else:
                return body
            if attempt < self.policy.list_attempts:
                self.sleep(pause)
                pause = min(pause * 2, self.policy.backoff_max_s)
        if isinstance(last, urllib.error.HTTPError) and last.code in (401, 403):
            raise HubError(
                f"{self.host} refuses access to {repo} ({last.code}): "
                + ("the token is not valid for it" if self.has_token else "it is private, give a token"),
                status=last.code,
            )
        raise HubUnreachable(
            f"{self.host} cannot be reached {self.describe_route()} ({reason_of(last)})",
            host=self.host,
            route=self.describe_route(),
        )

    def _request(self, address: str, headers: Mapping[str, str] | None = None) -> urllib.request.Request:
        request = urllib.request.Request(
            self.endpoint + address, headers={"User-Agent": "socle", "Accept-Encoding": "identity", **(headers or {})}
        )
        for name, value in self._secrets.items():
            request.add_unredirected_header(name, value)
        return request


class HttpOrigin:
    """The files of one manifest at a hub; *locate* gives a file's address below the endpoint."""

    kind = "wan"
    ranges = True

    def __init__(self, client: Client, locate: Callable[[ModelFile], str]) -> None:
        self._client = client
        self._locate = locate
        self.host = client.host
        self.policy = client.policy
        self.sleep = client.sleep

    def open_file(self, file: ModelFile, offset: int, end: int | None = None) -> Any:
        """See origin.Origin."""
        wanted = f"bytes={offset}-{'' if end is None else end - 1}" if offset or end is not None else None
        return self._client.open(self._locate(file), {"Range": wanted} if wanted else None)

    def is_own(self, url: str | None) -> bool:
        """See origin.Origin: storage has another host, or at least another path, than the hub's interface."""
        return url is not None and url.startswith(self._client.endpoint + "/api/")

    def describe_route(self) -> str:
        """See origin.Origin."""
        return self._client.describe_route()


def _opener(handlers: list[urllib.request.BaseHandler]) -> urllib.request.OpenerDirector:
    opener = urllib.request.OpenerDirector()
    for handler in handlers:
        opener.add_handler(handler)
    return opener


def retry_after(error: urllib.error.HTTPError) -> float | None:
    """The pause that the server asks for, in seconds and within reason."""
    value = (error.headers.get("Retry-After") or "").strip() if error.headers else ""
    return min(float(value), RETRY_AFTER_MAX_S) if value.isdecimal() else None


def reason_of(error: BaseException) -> str:
    """A few words about a network error; never an address with a query."""
    if isinstance(error, urllib.error.HTTPError):
        return f"status {error.code}"
    if isinstance(error, urllib.error.URLError):
        error = error.reason if isinstance(error.reason, BaseException) else OSError(str(error.reason))
    if isinstance(error, http.client.InvalidURL):
        return "an address that is not valid"
    if isinstance(error, TimeoutError) or "timed out" in str(error):
        return "timed out"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text)[:200]
