# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a probe can say about an engine that answered badly. Private to socle.inference.

SocleError
 +- ProbeError            the probe itself could not work; says nothing about the engine
 +- EngineFault           the engine did something wrong
     +- TransportFault    no whole answer arrived; `phase` says how far it got
     +- AnswerFault       an answer arrived, but not one that the API allows
     +- StreamFault       a stream broke its own rules: cut short, an error inside it, no usage
"""

from __future__ import annotations

from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import ProbeError, SocleError

__all__ = ["AnswerFault", "EngineFault", "ProbeError", "StreamFault", "TransportFault"]


class EngineFault(SocleError):
    """The engine did something wrong."""


class TransportFault(EngineFault):
    """No whole answer arrived. *phase*: connect, write, read, protocol, deadline."""

    def __init__(self, message: str, phase: str, **fields: Any) -> None:
        super().__init__(message, phase=phase, **fields)
        self.phase = phase


class AnswerFault(EngineFault):
    """An answer arrived, but not one that the API allows."""


class StreamFault(EngineFault):
    """A stream broke its own rules."""
