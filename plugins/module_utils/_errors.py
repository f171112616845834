# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The base of every error that socle raises on purpose. Private to socle.inference.

SocleError
 +- PlanError       plan: the inventory or the data asks for something that cannot run
 +- HubError        hub: listing or download failed
 +- StoreError      hub: the local store refuses (space, lock, permissions)
 +- EngineError     engine: container engine or unit
 +- PackageError    packages: the package manager or a package source does not do what was asked
 +- ToolkitError    toolkit: settings of container engine and GPU container toolkit
 +- ProbeError      probe: the probe itself could not work
 +- RecordError     records: a record cannot be written or read
 +- LabError        lab: the virtual lab cannot be built here
"""

from __future__ import annotations

from typing import Any


class SocleError(Exception):
    """One sentence for a person (tried, found, expected, what to do), and the raw evidence as fields."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields

    def __reduce__(self) -> tuple[Any, ...]:
        """So that an error can come from another process: by default only the message would go along."""
        return _again, (type(self), self.message, self.fields)


def _again(kind: type[SocleError], message: str, fields: dict[str, Any]) -> SocleError:
    return kind(message, **fields)


class PlanError(SocleError):
    """The inventory or the data asks for something that cannot run."""


class HubError(SocleError):
    """The hub could not be listed, or a download failed or did not match."""


class StoreError(SocleError):
    """The local model store refuses: space, lock, permissions, layout."""


class EngineError(SocleError):
    """The container engine or the unit did not do what was asked."""


class PackageError(SocleError):
    """The package manager or a package source of a host does not do, or does not have, what was asked."""


class ToolkitError(SocleError):
    """Container engine or GPU container toolkit of a host cannot be installed, set up or proven."""


class ProbeError(SocleError):
    """The probe itself could not work; says nothing about the instance."""


class RecordError(SocleError):
    """A record cannot be written or read."""


class LabError(SocleError):
    """The virtual lab cannot be built or removed on this machine."""
