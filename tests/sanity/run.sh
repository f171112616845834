#!/bin/sh
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Runs `ansible-test sanity` on a copy of the tracked files, since ansible-test must not enter the collection by its link.
# Usage: tests/sanity/run.sh [arguments of ansible-test sanity]

set -eu
cd "$(dirname "$0")/../.."
root=$PWD
cache=${SOCLE_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/socle}
work=$cache/sanity/work
copy=$work/ansible_collections/socle/inference
python=$("$root/.venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

rm -rf "$work"
mkdir -p "$copy"
# Also what is not committed yet, so that a change is tested before it is one.
git ls-files -z --cached --others --exclude-standard -- ':!collections' |
    while IFS= read -r -d '' file 2>/dev/null; do [ -e "$file" ] && printf '%s\0' "$file"; done |
    tar --null -T - -cf - | tar -xf - -C "$copy"

# A home of its own keeps caches out of the user's; pip's own configuration stays in force.
for conf in "${PIP_CONFIG_FILE:-}" "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf"; do
    if [ -n "$conf" ] && [ -r "$conf" ]; then
        PIP_CONFIG_FILE=$conf
        export PIP_CONFIG_FILE
        break
    fi
done
HOME=$cache/sanity/home
export HOME
mkdir -p "$HOME/.ansible/test/cache"
# ansible-test fetches get-pip.py from a host that many networks do not reach. What it wants is pip of one version, and
# that the package index has.
for version in 20_3_4 21_3_1 24_2 25_2; do
    cat >"$HOME/.ansible/test/cache/get_pip_$version.py" <<'EOF'
import ensurepip
import runpy
import sys

ensurepip.bootstrap()
sys.argv = ["pip", "install", *sys.argv[1:]]
runpy.run_module("pip", run_name="__main__")
EOF
done
cd "$copy"
git init -q .
PATH=$root/.venv/bin:$PATH
exec ansible-test sanity --python "$python" "$@"
