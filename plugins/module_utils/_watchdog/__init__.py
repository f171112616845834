# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The liveness watchdog of an instance: finds an engine without progress, keeps evidence, restarts it within bounds.

It is installed on the host with the few modules that it imports, and runs there without Ansible, on Python 3.9.
"""
