# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a download needs of where bytes come from: a hub, a neighbour, a folder. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile

if TYPE_CHECKING:
    from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest
    from ansible_collections.socle.inference.plugins.module_utils._hub.policy import Policy


class NotYet(OSError):
    """The origin is alive, but has no more of this file at the moment: no failure, just ask it again.

    A neighbour raises it from open_file() or from reading, at most every few seconds; it has waited already.
    """

    def __init__(self, message: str, progress: str | None = None) -> None:
        """*progress* changes as long as the origin itself gets on; None where it does not say."""
        super().__init__(message)
        self.progress = progress


class Back(NotYet):
    """An origin that comes before this one, and was given up, answers again: it is to be asked instead."""


@runtime_checkable
class Accountable(Protocol):
    """An origin that can be told what it sent."""

    def blame(self, file: ModelFile) -> None:
        """Tell it that what it has as *file* is something else; nothing is raised where it does not listen."""


class Origin(Protocol):
    """One place that holds the files of one manifest."""

    host: str
    """For messages and results: host and port, or a folder."""
    kind: str
    """"wan" (a hub), "lan" (a neighbour) or "disk" (a folder): where its bytes are counted."""
    ranges: bool
    """Whether several connections into one file may pay; a neighbour's file grows from its start only."""
    policy: Policy
    sleep: Callable[[float], None]

    def open_file(self, file: ModelFile, offset: int, end: int | None = None) -> Any:
        """The response with the bytes [offset, end) of *file*, like one of http.client: status, headers, read1,
        readinto, geturl, close. Raises urllib.error.HTTPError, or one of transport.NETWORK_ERRORS."""

    def is_own(self, url: str | None) -> bool:
        """Whether a refusal at *url* is final, since it is no storage address that may have expired."""

    def describe_route(self) -> str:
        """How requests leave this host, for a message; never with credentials."""


class Hub(Protocol):
    """Where a name of a revision gets its meaning."""

    name: str
    """"modelscope", "huggingface" or "directory"; also the folder in the store."""
    host: str
    policy: Policy
    sleep: Callable[[float], None]

    def resolve(self, repo: str, revision: str) -> Manifest:
        """The files of *revision*; raises HubError, and HubUnreachable where nobody answered."""

    def origin(self, manifest: Manifest) -> Origin:
        """Where the files of *manifest* are."""
