# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks one engine directly, and gives up in time whatever it does. Private to socle.inference."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Mapping
from typing import Any

PAGE_BYTES = 8 << 20


class Call:
    """One request with a limit for all of it: a timeout of a socket alone begins anew with every byte."""

    def __init__(self, address: str, port: int, limit_s: float) -> None:
        self._connection = http.client.HTTPConnection(address, port, timeout=limit_s)
        self._limit_s = limit_s

    def __call__(
        self, path: str, body: Mapping[str, Any] | None = None, key: str | None = None
    ) -> tuple[int, str] | None:
        """Status and text; None where no answer came in time. Raises ValueError for a key that no header can hold."""
        headers = {"Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if key is not None:
            if not (key.isascii() and key.isprintable()):
                raise ValueError("its API key has other characters than a header can hold")
            headers["Authorization"] = f"Bearer {key}"
        timer = threading.Timer(self._limit_s, self.abandon)
        timer.daemon = True
        timer.start()
        try:
            data = None if body is None else json.dumps(body).encode()
            self._connection.request("GET" if data is None else "POST", path, body=data, headers=headers)
            response = self._connection.getresponse()
            return response.status, response.read(PAGE_BYTES).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            # AttributeError: the connection was closed under its feet.
            return None
        finally:
            timer.cancel()
            self._connection.close()

    def abandon(self) -> None:
        """Close the connection, which ends the request on both sides."""
        with contextlib.suppress(OSError, AttributeError):
            self._connection.sock.shutdown(socket.SHUT_RDWR)
