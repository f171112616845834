#!/bin/sh
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Makes .venv with everything that the constraints file pins, and first the Debian packages that this needs.
# Usage: tools/bootstrap.sh PYTHON VENV CONSTRAINTS

set -eu
python=$1 venv=$2 constraints=$3

say() { printf 'socle: %s\n' "$*" >&2; }

missing=""
need() { missing="$missing $1"; }

if ! command -v "$python" >/dev/null 2>&1; then
    say "Python was looked for as '$python' and not found; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3."
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    say "'$python' is $("$python" --version 2>&1), and 3.11 or newer is needed; name another one: make PYTHON=/path/to/python3."
    exit 1
fi
"$python" -c 'import ensurepip, venv' 2>/dev/null || need python3-venv
command -v ssh >/dev/null 2>&1 || need openssh-client

if [ -n "$missing" ]; then
    if [ "$(id -u)" -eq 0 ]; then
        as_root=""
    elif command -v sudo >/dev/null 2>&1; then
        as_root="sudo"
    else
        say "the Debian packages$missing are missing, and this user is neither root nor has sudo; ask for: apt-get install$missing"
        exit 1
    fi
    say "installing the Debian packages$missing"
    $as_root apt-get update -q
    # shellcheck disable=SC2086 # a list of package names
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
fi

# A set-up empties the folder: it must be one that nobody keeps something else in.
if [ -e "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ] && { [ ! -d "$venv" ] || [ -n "$(ls -A "$venv")" ]; }; then
    say "'$venv' exists and is no virtual environment (it has no pyvenv.cfg); move it away, or name another folder: make VENV=FOLDER."
    exit 1
fi

# One set-up at a time: another terminal, or the pip of an interrupted one, may still be at it.
exec 9>"$venv.lock"
flock 9

# An interrupted set-up leaves no marker and is done again.
# So is one that an upgrade of the system's Python, a move of the clone, or a lost file has broken.
inputs=$("$python" --version; pwd; cat pyproject.toml "$constraints")
marker="$venv/.socle-$(printf '%s' "$inputs" | sha256sum | cut -c1-16)"
if [ -e "$marker" ] && [ -x "$venv/bin/ansible-playbook" ] &&
    "$venv/bin/python" -c 'import ansible.cli, yaml, httpx, jinja2' >/dev/null 2>&1; then
    exit 0
fi
say "setting up $venv with $("$python" --version 2>&1) (about 1 min)"
# Emptied here, since what "venv --clear" leaves when it is interrupted may have lost pyvenv.cfg.
mkdir -p "$venv"
touch "$venv/pyvenv.cfg"
rm -f "$venv"/.socle-*
find "$venv/" -mindepth 1 -maxdepth 1 ! -name pyvenv.cfg -exec rm -rf {} +
"$python" -m venv "$venv"
log=$venv/pip.log
if ! "$venv/bin/python" -m pip install --disable-pip-version-check --constraint "$constraints" --editable '.[dev]' >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    say "pip could not install the packages (above, whole in $log); see whether the package index is reachable, then repeat."
    exit 1
fi
touch "$marker"
