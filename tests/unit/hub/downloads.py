# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One file of a simulated hub and a place to fetch it to, for tests of the download engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._hub.climb import Climb
from ansible_collections.socle.inference.plugins.module_utils._hub.download import fetch_file
from ansible_collections.socle.inference.plugins.module_utils._hub.growing import Growing, Shelf
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.meter import Meter
from ansible_collections.socle.inference.plugins.module_utils._hub.modelscope import ModelScopeHub
from ansible_collections.socle.inference.plugins.module_utils._hub.policy import Policy
from ansible_collections.socle.inference.plugins.module_utils._hub.transport import Access, Client
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

from tests.simulators.hub.server import HubSimulator

REPO = "Org/Model"
NAME = "weights.safetensors"
STORAGE = "^/cdn/"
MIB = 1 << 20
QUICK = Policy(
    backoff_s=0.01, backoff_max_s=0.02, stall_s=5, progress_bytes=64 << 10, measure_s=0.15, split_bytes=64 << 10
)


def publish(root: Path, size: int, name: str = NAME, seed: int = 0) -> bytes:
    """Put a file into the repository below *root*."""
    data = random.Random(seed).randbytes(size)
    place = root / REPO / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    return data


class Origin:
    """A hub's origin that is called a neighbour, or has another patience."""

    def __init__(self, hub: HubSimulator, policy: Policy = QUICK, kind: str = "wan") -> None:
        self._origin = ModelScopeHub(Client(hub.url, Access(None, proxy=""), policy)).origin(manifest(hub))
        self.host = self._origin.host
        self.kind = kind
        self.ranges = kind == "wan"
        self.policy = policy
        self.sleep = self._origin.sleep
        self.is_own = self._origin.is_own
        self.describe_route = self._origin.describe_route

    def open_file(self, file: ModelFile, offset: int, end: int | None = None) -> Any:
        return self._origin.open_file(file, offset, end)


def manifest(hub: HubSimulator) -> Any:
    return ModelScopeHub(Client(hub.url, Access(None, proxy=""), QUICK)).resolve(REPO, "master")


@dataclass
class Bench:
    """Fetches to *place*; what the last fetch counted is in *meter* and *shelf*."""

    hub: HubSimulator
    place: Path
    policy: Policy = QUICK
    meter: Meter = field(default_factory=lambda: Meter(Progress(), 0))
    shelf: Shelf = field(default_factory=lambda: Shelf({}))
    watch: Callable[[int], Shelf] = lambda size: Shelf({NAME: Growing(NAME, size)})
    """Makes the shelf for a file of that size."""

    def fetch(self, origins: Sequence[Origin] | None = None, name: str = NAME, **policy: Any) -> bytes:
        patience = replace(self.policy, **policy)
        self.meter = Meter(Progress(), 0, climb=Climb(patience))
        return self.fetch_beside(origins or [Origin(self.hub, patience)], name)

    def fetch_beside(self, origins: Sequence[Origin], name: str = NAME) -> bytes:
        """Fetch with the meter that there is, as the next file of a snapshot."""
        file = next(file for file in manifest(self.hub).files if file.path == name)
        self.shelf = self.watch(file.size)
        fetch_file(origins, file, self.place, self.meter, self.shelf)
        return self.place.read_bytes()

    def storage(self) -> list[dict[str, Any]]:
        """The requests to storage so far."""
        return [request for request in self.hub.requests if request["path"].startswith("/cdn/")]

    def ranges(self) -> list[str | None]:
        return [request["range"] for request in self.storage()]
