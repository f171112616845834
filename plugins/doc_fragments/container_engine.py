# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options for the settings of a container engine."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  registry_mirrors:
    description: Addresses of mirrors of docker.io, in the order in which they are asked.
    type: list
    elements: str
    default: []
  proxy:
    description:
      - Proxies of the engine for its own downloads. A dictionary with the keys C(http) and C(https), which are proxies
        for such addresses, and C(no_proxy), which is names and addresses without a proxy, with commas between them.
    type: raw
    default: {}
  log_max_size:
    description:
      - Size at which a container's log file is rotated, such as V(50m); empty leaves logs alone.
      - V(auto) is V(50m), but leaves a Docker alone that was on the host before.
    type: str
    default: auto
  log_max_files:
    description: How many rotated log files Docker keeps of a container, where O(log_max_size) rotates them.
    type: int
    default: 3
  nofile:
    description:
      - Limit of open files in Docker's containers, at most that of the host's first process. V(0) leaves it alone.
      - V(auto) is V(1048576), but leaves a Docker alone that was on the host before.
    type: str
    default: auto
  restart:
    description:
      - Whether dockerd may be restarted where a change needs it. V(auto) refuses while containers run that are not
        socle's, which are named C(vllm-*) or labelled C(io.socle.instance); V(never) refuses always.
    type: str
    choices: [auto, always, never]
    default: auto
  state_dir:
    description:
      - Folder of socle's state on the host, where M(socle.inference.container_engine_config) notes what it has set.
    type: path
    default: /var/lib/socle
"""
