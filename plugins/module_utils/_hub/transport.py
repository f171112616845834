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
from typing import Any, Optional, TypeVar

from ansible_collections.socle.inference.plugins.module_utils._address import WEB, address_fault
from ansible_collections.socle.inference.plugins.module_utils._errors import HubError
from ansible_collections.socle.inference.plugins.module_utils._hub.json_stream import JSON_MAX_COST, json_cost
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import SHA256, ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.policy import Policy

TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
REDIRECTS = frozenset({301, 302, 303, 307, 308})
JSON_MAX_BYTES = 8 << 20
RETRY_AFTER_MAX_S = 300.0
NETWORK_ERRORS = (OSError, http.client.HTTPException)
"""What a request can raise when the network or the other side fails; URLError and timeouts are OSError."""

TOKEN = re.compile(r"[\x21-\x7e]+")
AGENT = "socle"
SECRET_HEADERS = ("Authorization", "Cookie", "Proxy-authorization")


T = TypeVar("T")
Explain = Callable[[urllib.error.HTTPError], Optional[HubError]]


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
    """The endpoint with its scheme in small letters and no slash at its end; raises HubError for what is none."""
    scheme, colon, rest = _checked_address("endpoint", endpoint).partition(":")
    return f"{scheme.lower()}{colon}{rest.rstrip('/')}"


def _checked_address(option: str, address: str) -> str:
    fault = address_fault(address, WEB) or ("" if address.isascii() else "has a character beyond ASCII")
    if fault:
        example = "http://proxy.example:3128" if option == "proxy" else "https://www.modelscope.cn"
        raise HubError(f"{option} must be an http or https address such as {example}; this one {fault}")
    parts = urllib.parse.urlsplit(address)
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
        context = _tls_context(access.ca_file)
        self._opener = _opener(self._proxies, context, _Redirects(self.endpoint))
        self._one_step = _opener(self._proxies, context)

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

    def get_json(self, path: str, params: Mapping[str, str], repo: str, explain: Explain | None = None) -> Any:
        """The JSON document at *path* about *repo*."""
        return self.get_page(path, params, repo, explain)[0]

    def get_page(
        self, path: str, params: Mapping[str, str], repo: str, explain: Explain | None = None
    ) -> tuple[Any, Mapping[str, str]]:
        """The JSON document at *path* about *repo*, and the headers of the answer."""
        query = "?" + urllib.parse.urlencode(params) if params else ""
        body, headers = self._insist(lambda: self._read(path + query, JSON_MAX_BYTES, repo), repo, explain)
        if json_cost(body) > JSON_MAX_COST:
            raise HubError(
                f"{self.host} answered {len(body)} bytes to a listing of {repo} that would take more than "
                f"{JSON_MAX_COST >> 20} MiB of memory, which the listing of no model does; nothing was downloaded"
            )
        try:
            return json.loads(body), headers
        except (ValueError, RecursionError) as error:
            what = "nothing" if not body else "no JSON"
            raise HubError(
                f"{self.host} answered {what} to a listing of {repo} ({self.describe_route()}): a proxy or login page "
                "answered in its place"
            ) from error

    def get(self, address: str, limit: int, repo: str, explain: Explain | None = None) -> bytes:
        """A small file of *repo* at *address*, of at most *limit* bytes."""
        return self._insist(lambda: self._read(address, limit, repo), repo, explain)[0]

    def linked_hash(self, address: str, repo: str, explain: Explain | None = None) -> str | None:
        """The SHA-256 that the hub, or the storage that it redirects to, names for the file at *address*."""
        return self._insist(lambda: self._ask_hash(address), repo, explain)

    def _insist(self, ask: Callable[[], T], repo: str, explain: Explain | None) -> T:
        """What *ask* returns, after a few attempts, since hubs are known for spurious refusals.

        *explain* turns a refusal into an error where it knows a better one.
        """
        pause = self.policy.backoff_s
        last: Exception
        for attempt in range(1, self.policy.list_attempts + 1):
            try:
                return ask()
            except urllib.error.HTTPError as error:
                error.close()
                known = explain(error) if explain else None
                if known:
                    raise known from error
                self._judge_status(error, repo)
                last = error
                pause = retry_after(error) or pause
            except NETWORK_ERRORS as error:
                last = error
                if _is_distrust(error):
                    break
            except ValueError as error:
                raise HubError(
                    f"{self.host} cannot be asked {self.describe_route()}: its address, the proxy's or one that it "
                    "redirects to is not valid"
                ) from error
            if attempt < self.policy.list_attempts:
                self.sleep(pause)
                pause = min(pause * 2, self.policy.backoff_max_s)
        if isinstance(last, urllib.error.HTTPError) and last.code in (401, 403):
            raise HubError(
                f"{self.host} refuses access to {repo} ({last.code}): "
                + (
                    "the token is not valid for it: set the option token to one that may read it"
                    if self.has_token
                    else "it is private: set the option token"
                ),
                status=last.code,
            )
        hint = ""
        if _is_distrust(last):
            hint = "; give the certificate of the authority that signed it with ca_file"
            if self._has_ca_file:
                hint = "; neither ca_file nor the system's authorities signed it"
        raise HubUnreachable(
            f"{self.host} cannot be reached {self.describe_route()} ({reason_of(last)}{hint})",
            host=self.host,
            route=self.describe_route(),
        )

    def _judge_status(self, error: urllib.error.HTTPError, repo: str) -> None:
        """Raise for a status that another try cannot change."""
        if error.code == 407:
            raise HubUnreachable(
                f"{self.host} cannot be reached {self.describe_route()}, which wants credentials: give them in "
                "HTTPS_PROXY of the task's environment",
                host=self.host,
                route=self.describe_route(),
            ) from error
        if error.code == 404:
            raise HubError(
                f"{self.host} has no model {repo}: check the spelling (organisation/name)"
                + ("" if self.has_token else "; a private model needs a token (the option token)"),
                status=404,
                revision_gone=True,
            ) from error
        if error.code not in TRANSIENT | {401, 403}:
            raise HubError(
                f"{self.host} answered {error.code} to a request for {repo}: the endpoint is no {self._product}",
                status=error.code,
            ) from error

    def _read(self, address: str, limit: int, repo: str) -> tuple[bytes, Mapping[str, str]]:
        with self.open(address, timeout_s=self.policy.list_timeout_s) as response:
            if self.endpoint.startswith("https:") and not str(response.geturl()).startswith("https:"):
                raise HubError(f"{self.host} leads from HTTPS to plain HTTP for {repo}, which anybody could change")
            body: bytes = response.read(limit + 1)
            if len(body) > limit:
                raise HubError(f"{self.host} answered more than {limit >> 20} MiB to a request for {repo}")
            return body, response.headers

    def _ask_hash(self, address: str) -> str | None:
        request = self._request(address, {"Range": "bytes=0-0"})
        try:
            with self._one_step.open(request, timeout=self.policy.list_timeout_s) as response:
                return _linked_hash(response.headers)
        except urllib.error.HTTPError as error:
            location = error.headers.get("Location")
            if error.code not in REDIRECTS or not location:
                raise
            error.close()
            found = _linked_hash(error.headers)
            if found:
                return found
        target = urllib.parse.urljoin(self.endpoint + address, location)
        headers = {"User-Agent": AGENT, "Accept-Encoding": "identity", "Range": "bytes=0-0"}
        request = urllib.request.Request(target, headers=headers)
        with self._opener.open(request, timeout=self.policy.list_timeout_s) as response:
            # What came without TLS on the way proves nothing about what comes without it again.
            trusted = self.endpoint.startswith("http:") or str(response.geturl()).startswith("https:")
            return _linked_hash(response.headers) if trusted else None

    def _request(self, address: str, headers: Mapping[str, str] | None = None) -> urllib.request.Request:
        request = urllib.request.Request(
            self.endpoint + address, headers={"User-Agent": AGENT, "Accept-Encoding": "identity", **(headers or {})}
        )
        for name, value in self._secrets.items():
            request.add_unredirected_header(name, value)
        return request


class HttpOrigin:
    """The files of one manifest at a hub; *locate* gives a file's address below the endpoint, *interface* what
    addresses there begin with that are no storage."""

    kind = "wan"
    ranges = True

    def __init__(self, client: Client, locate: Callable[[ModelFile], str], interface: tuple[str, ...]) -> None:
        self._client = client
        self._locate = locate
        self._interface = tuple(client.endpoint + prefix for prefix in interface)
        self.host = client.host
        self.policy = client.policy
        self.sleep = client.sleep

    def open_file(self, file: ModelFile, offset: int, end: int | None = None) -> Any:
        """See origin.Origin."""
        wanted = f"bytes={offset}-{'' if end is None else end - 1}" if offset or end is not None else None
        return self._client.open(self._locate(file), {"Range": wanted} if wanted else None)

    def is_own(self, url: str | None) -> bool:
        """See origin.Origin: storage has another host, or at least another path, than the hub's interface."""
        return url is not None and url.startswith(self._interface)

    def describe_route(self) -> str:
        """See origin.Origin."""
        return self._client.describe_route()


def _opener(
    proxies: dict[str, str], context: ssl.SSLContext, *more: urllib.request.BaseHandler
) -> urllib.request.OpenerDirector:
    """Speaks HTTP and HTTPS, and nothing else that a redirect could name."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(proxies),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=context),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
        *more,
    ):
        opener.add_handler(handler)
    return opener


def _linked_hash(headers: Any) -> str | None:
    """The SHA-256 in the header with which hubs and their storage name a large file's content."""
    value = (headers.get("X-Linked-ETag") or "").strip().strip('"').lower()
    return value if SHA256.fullmatch(value) else None


def _is_distrust(error: BaseException) -> bool:
    """Whether a certificate was refused, which no further attempt changes."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return isinstance(reason, ssl.SSLCertVerificationError)


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
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"TLS failed: {error.reason.replace('_', ' ').lower()}"
    if isinstance(error, http.client.InvalidURL):
        return "an address that is not valid"
    if isinstance(error, TimeoutError) or "timed out" in str(error):
        return "timed out"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text)[:200]
