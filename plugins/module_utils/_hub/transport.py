# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests to the ModelScope hub, by the standard library. Private to socle.inference."""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import HubError
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import (
    LIST_CAP,
    Page,
    entry_path,
    parse_page,
    path_fault,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.policy import Policy

TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
LISTING_MAX_BYTES = 64 << 20
RETRY_AFTER_MAX_S = 300.0
NETWORK_ERRORS = (OSError, http.client.HTTPException)
"""What a request can raise when the network or the other side fails; URLError and timeouts are OSError."""


TOKEN = re.compile(r"[\x21-\x7e]+")
ADDRESS = re.compile(r"[\x21-\x7e]+")


class HubUnreachable(HubError):
    """No usable answer: the network, a proxy, TLS or the hub itself is at fault."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects without carrying anything secret along; the token is an unredirected header already."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None:
            for name in ("Authorization", "Cookie", "Proxy-authorization"):
                request.remove_header(name)
        return request


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


class Hub:
    """One hub at one endpoint. *proxy*: None follows the environment, "" uses none."""

    def __init__(
        self,
        endpoint: str,
        token: str | None = None,
        proxy: str | None = None,
        policy: Policy | None = None,
        sleep: Callable[[float], None] = time.sleep,
        list_cap: int = LIST_CAP,
    ) -> None:
        self.endpoint = split_endpoint(endpoint)
        self.host = urllib.parse.urlsplit(self.endpoint).netloc
        self.policy = policy or Policy()
        self.sleep = sleep
        if token and not TOKEN.fullmatch(token):
            raise HubError(
                "token holds a line break, a blank or another character that no token has (its value is not shown): "
                "give it without, for example with the filter trim"
            )
        self._token = token or None
        self._list_cap = list_cap
        if proxy is None:
            self._proxies = urllib.request.getproxies()
        else:
            self._proxies = dict.fromkeys(("http", "https"), _checked_address("proxy", proxy)) if proxy else {}
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(self._proxies),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(),
            urllib.request.HTTPDefaultErrorHandler(),
            _Redirects(),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.UnknownHandler(),
        ):
            self._opener.add_handler(handler)

    def list_entries(self, repo: str, revision: str) -> Page:
        """Everything that *revision* holds; walks folder by folder where one listing would be cut off."""
        page = self._page(repo, revision, {"Recursive": "True"})
        if len(page.entries) < self._list_cap:
            return page
        entries: list[Mapping[str, Any]] = []
        folders: list[str] = [""]
        known = set(folders)
        while folders:
            folder = folders.pop()
            part = self._page(
                repo, revision, {"Recursive": "False", "Root": folder} if folder else {"Recursive": "False"}
            )
            if len(part.entries) >= self._list_cap:
                raise HubError(
                    f"{self.host} ends a listing at {self._list_cap} entries, and folder {folder or '/'!r} of "
                    f"{repo} has at least "
                    "as many: it cannot be listed completely; nothing was downloaded"
                )
            entries.extend(part.entries)
            for entry in part.entries:
                path = entry_path(entry)
                if entry.get("Type") == "tree" and not path_fault(path) and path not in known:
                    known.add(path)
                    folders.append(path)
        return Page(tuple(entries), page.short_id)

    def revision_names(self, repo: str) -> dict[str, list[str]]:
        """The names of branches and tags; empty where the hub does not say."""
        names: dict[str, list[str]] = {"branches": [], "tags": []}
        try:
            document = self._get_json(f"/api/v1/models/{urllib.parse.quote(repo)}/revisions", {}, repo)
            revisions = document["Data"]["RevisionMap"]
            for kind in names:
                names[kind] = [str(item["Revision"])[:100] for item in revisions.get(kind.capitalize()) or []][:50]
        except (HubError, KeyError, TypeError, AttributeError):
            # Only decorates an error message.
            return names
        return names

    def open_file(self, repo: str, revision: str, path: str, offset: int) -> Any:
        """The response with the bytes of *path* from *offset* on, if the server honours ranges."""
        query = urllib.parse.urlencode({"Revision": revision, "FilePath": path})
        request = self._request(f"/api/v1/models/{urllib.parse.quote(repo)}/repo?{query}")
        if offset:
            request.add_header("Range", f"bytes={offset}-")
        return self._opener.open(request, timeout=self.policy.stall_s)

    def is_own(self, url: str | None) -> bool:
        """Whether *url* is the hub's interface, rather than the storage that it redirects to."""
        return url is not None and url.startswith(self.endpoint + "/api/")

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

    def _page(self, repo: str, revision: str, params: dict[str, str]) -> Page:
        document = self._get_json(
            f"/api/v1/models/{urllib.parse.quote(repo)}/repo/files", {"Revision": revision, **params}, repo
        )
        return parse_page(document)

    def _parse_json(self, body: bytes) -> Any:
        try:
            return json.loads(body)
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise HubError(
                f"{self.host} did not answer JSON ({self.describe_route()}): a proxy or login page answered "
                "in its place"
            ) from error

    def _request(self, path: str) -> urllib.request.Request:
        request = urllib.request.Request(
            self.endpoint + path, headers={"User-Agent": "socle", "Accept-Encoding": "identity"}
        )
        if self._token:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
            request.add_unredirected_header("Cookie", f"m_session_id={self._token}")
        return request

    def _get_json(self, path: str, params: dict[str, str], repo: str) -> Any:
        """A JSON document; a few attempts, since the hub is known for spurious refusals of listings."""
        query = "?" + urllib.parse.urlencode(params) if params else ""
        pause = self.policy.backoff_s
        last: Exception
        for attempt in range(1, self.policy.list_attempts + 1):
            try:
                with self._opener.open(self._request(path + query), timeout=self.policy.list_timeout_s) as response:
                    body = response.read(LISTING_MAX_BYTES + 1)
                if len(body) > LISTING_MAX_BYTES:
                    raise HubError(
                        f"{self.host} answered more than {LISTING_MAX_BYTES >> 20} MiB to a listing of {repo}"
                    )
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 404:
                    raise HubError(
                        f"{self.host} has no model {repo}: check the spelling (organisation/name)"
                        + ("" if self._token else "; a private model needs a token"),
                        status=404,
                    ) from error
                if error.code not in TRANSIENT | {401, 403}:
                    raise HubError(
                        f"{self.host} answered {error.code} to a request for {repo}: the endpoint is no ModelScope hub",
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
                return self._parse_json(body)
            if attempt < self.policy.list_attempts:
                self.sleep(pause)
                pause = min(pause * 2, self.policy.backoff_max_s)
        if isinstance(last, urllib.error.HTTPError) and last.code in (401, 403):
            raise HubError(
                f"{self.host} refuses access to {repo} ({last.code}): "
                + ("the token is not valid for it" if self._token else "it is private, give a token"),
                status=last.code,
            )
        raise HubUnreachable(
            f"{self.host} cannot be reached {self.describe_route()} ({reason_of(last)})",
            host=self.host,
            route=self.describe_route(),
        )


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
