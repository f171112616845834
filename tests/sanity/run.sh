#!/bin/sh
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Runs `ansible-test sanity` on a copy of the tracked files, without links to folders, which ansible-test must not enter.
# Usage: tests/sanity/run.sh [arguments of ansible-test sanity]

set -eu
cd "$(dirname "$0")/../.."
root=$PWD
venv=${VENV:-$root/.venv}
cache=${SOCLE_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/socle}
work=$cache/sanity/work
copy=$work/ansible_collections/socle/inference
python=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

rm -rf "$work"
mkdir -p "$copy"
# Also what is not committed yet, so that a change is tested before it is one; a deleted file is no error.
git ls-files -z --cached --others --exclude-standard -- ':!collections' ':!molecule/default' |
    tar --null --files-from - --ignore-failed-read --warning=no-failed-read -cf - | tar -xf - -C "$copy"

# A home of its own keeps caches out of the user's. pip's configuration goes along as a file, also what is set in the
# environment, since ansible-test clears that.
home=$cache/sanity/home
umask 077
mkdir -p "$home/.ansible/test/cache" "$home/.config/pip"
"$venv/bin/python" -m pip config list |
    sed -n -e 's/^:env:\.//' -e 's/^[a-z]*\.//' -e "s/^\([a-z-]*\)='\(.*\)'$/\1 = \2/p" |
    sort -u -t= -k1,1 | sed '1i [global]' >"$home/.config/pip/pip.conf"
HOME=$home
export HOME
# ansible-test fetches get-pip.py from a host that many networks do not reach. What it wants is pip of one version, and
# that the package index has.
for version in 20_3_4 21_3_1 24_2 25_2; do
    cat >"$HOME/.ansible/test/cache/get_pip_$version.py" <<'EOF'
import subprocess
import sys

# Processes of their own: ensurepip switches pip's configuration off in its.
subprocess.run([sys.executable, "-m", "ensurepip"], check=True)
own = ("--no-setuptools", "--no-wheel")
words = [word for word in sys.argv[1:] if word not in own]
subprocess.run([sys.executable, "-m", "pip", "install", *words], check=True)
EOF
done
cd "$copy"
git init -q .
PATH=$venv/bin:$PATH
exec ansible-test sanity --python "$python" "$@"
