# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hub an option `source` means. Private to socle.inference."""

from __future__ import annotations

from ansible_collections.socle.inference.plugins.module_utils._errors import HubError
from ansible_collections.socle.inference.plugins.module_utils._hub import huggingface, modelscope
from ansible_collections.socle.inference.plugins.module_utils._hub.directory import DirectoryHub
from ansible_collections.socle.inference.plugins.module_utils._hub.names import SOURCES
from ansible_collections.socle.inference.plugins.module_utils._hub.origin import Hub
from ansible_collections.socle.inference.plugins.module_utils._hub.policy import Policy
from ansible_collections.socle.inference.plugins.module_utils._hub.transport import Access, Client
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

DEFAULT_REVISION = {"modelscope": "master", "huggingface": "main", "directory": "master"}


def make_hub(
    source: str = "modelscope",
    endpoint: str | None = None,
    token: str | None = None,
    proxy: str | None = None,
    ca_file: str | None = None,
    path: str | None = None,
    policy: Policy | None = None,
    progress: Progress | None = None,
) -> Hub:
    """The hub of *source* (one of SOURCES) at *endpoint*, or at its public address; raises HubError for options that
    cannot be. *progress* hears of the hashing of a folder."""
    if source == "modelscope":
        client = Client(
            endpoint or modelscope.ENDPOINT,
            Access(token, proxy, ca_file),
            policy,
            product="ModelScope hub",
            token_cookie=modelscope.TOKEN_COOKIE,
        )
        return modelscope.ModelScopeHub(client)
    if source == "huggingface":
        client = Client(
            endpoint or huggingface.ENDPOINT, Access(token, proxy, ca_file), policy, product="Hugging Face hub"
        )
        return huggingface.HuggingFaceHub(client)
    if source == "directory":
        if not path:
            raise HubError("source is directory, which needs path: the folder or tar archive that holds the model")
        return DirectoryHub(path, policy, progress)
    raise HubError(f"source must be one of {', '.join(SOURCES)}, found {source!r}")
