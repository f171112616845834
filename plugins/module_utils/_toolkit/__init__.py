# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Container engine and GPU container toolkit of a host: installed, set up, proven. Private to socle.inference."""
