# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shows the progress of model_directory_info while it hashes."""

from __future__ import annotations

from ansible_collections.socle.inference.plugins.plugin_utils.progress_action import ProgressActionBase


class ActionModule(ProgressActionBase):
    """Nothing to resolve on the controller."""
