# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host's store says about a commit, for a lock that no hub can give any more. Private to socle.inference."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._hub.listing import is_commit
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest
from ansible_collections.socle.inference.plugins.module_utils._hub.store import RepoStore
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress


def held_commit(root: Path, source: str, repo: str, commit: str) -> Manifest | None:
    """The manifest of *commit* where all of its files are in the store *root*, by one look at each; else None.

    Whoever brings the model by it proves the files. Raises StoreError.
    """
    if not is_commit(commit):
        return None
    store = RepoStore(root, source, repo)
    ledger = store.read_ledger()
    manifest = store.known(commit, ledger)
    if manifest is None:
        return None
    found = store.inspect(manifest, ledger, full=False, progress=Progress(), by_hash=False)
    return None if found.wanted else manifest
