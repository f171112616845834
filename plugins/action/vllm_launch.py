# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shows progress while an engine ends and its GPUs become free."""

from __future__ import annotations

from ansible_collections.socle.inference.plugins.plugin_utils.progress_action import ProgressActionBase


class ActionModule(ProgressActionBase):
    """Nothing to do on the controller but to show progress."""
