# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A double of a vLLM server: exact timings and exact faults. What is true of vLLM is tested on vLLM."""

from tests.simulators.engine.server import FAULTS, STALLS, Behaviour, EngineDouble

__all__ = ["FAULTS", "STALLS", "Behaviour", "EngineDouble"]
