# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Questions to DNF, its module streams and version locks, and what its errors mean. Private to socle.inference.

Measured with DNF 4.23 against a local repository: a query costs about a second; ``dnf install NAME-VERSION`` takes an
older version without a word, so a downgrade must be refused before; with skip_if_unavailable a repository that does
not answer is left out and DNF ends with 0, so the repository file must turn that off; a stream is switched only after a
reset; and a version that a lock hides is reported as one that does not exist.
"""

from __future__ import annotations

import configparser
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._commands import Run
from ansible_collections.socle.inference.plugins.module_utils._engine import host_io
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError, PackageError
from ansible_collections.socle.inference.plugins.module_utils._packages.source import without_password

QUERY_FORMAT = "%{name}\t%{epoch}\t%{version}\t%{release}\t%{arch}\t%{repoid}"
PROBE = "socle-probe"
"""Id of the repository that exists only for the length of one query."""

LOCK_LIST = "etc/dnf/plugins/versionlock.list"
"""Where the plugin of DNF 4 keeps its locks."""

MODULES_FOLDER = "etc/dnf/modules.d"


@dataclass(frozen=True)
class Rpm:
    """A package in a repository or in the database."""

    name: str
    epoch: str
    version: str
    release: str
    arch: str
    repository: str = ""

    @property
    def evr(self) -> str:
        """Version as read_packages has it: "3:580.178.04-1.el9", without an epoch of 0."""
        return f"{self.epoch}:{self.full}" if self.epoch != "0" else self.full

    @property
    def full(self) -> str:
        """Version with release."""
        return f"{self.version}-{self.release}"

    @property
    def spec(self) -> str:
        """What names exactly this package to dnf."""
        return f"{self.name}-{self.epoch}:{self.full}.{self.arch}"

    @property
    def lock(self) -> str:
        """The line that ``dnf versionlock add`` writes for it."""
        return f"{self.name}-{self.epoch}:{self.full}.*"


COMMAND_S = 3600.0
"""No transaction takes longer; DKMS builds within it."""


def run_command(argv: Sequence[str]) -> tuple[int, str, str] | None:
    """The real `Run`."""
    try:
        done = host_io.run(argv, timeout_s=COMMAND_S)
    except EngineError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    return done.returncode, done.stdout, done.stderr


def parse_query(text: str) -> list[Rpm]:
    """Lines of `QUERY_FORMAT`; anything else that DNF printed is left out."""
    rows = (line.split("\t") for line in text.splitlines())
    return [Rpm(*row) for row in rows if len(row) == 6 and row[1].isdigit()]


ENGLISH = ("env", "LC_ALL=C.UTF-8")
"""In front of a command whose words are parsed."""


def probe(url: str, signed_by: str | None = None) -> str:
    """A repository file for one query; with *signed_by*, the file of a key, the metadata must be signed by it.

    Modular filtering hides the packages of all other streams, hence module_hotfixes: the branches that exist are to be
    known before a stream is enabled, and in check mode none is.
    """
    lines = [f"[{PROBE}]", f"name={PROBE}", f"baseurl={url}", "enabled=1", "gpgcheck=0"]
    lines += ["module_hotfixes=1", "skip_if_unavailable=0"]
    if signed_by:
        lines += ["repo_gpgcheck=1", f"gpgkey=file://{signed_by}"]
    return "\n".join([*lines, ""])


def query(run: Run, url: str, packages: Sequence[str], signed_by: str | None = None) -> list[Rpm]:
    """All versions of *packages* in the repository at *url*; raises PackageError when it cannot be read.

    No repository file of the host, enabled stream or free version lock is needed. The address stands in a file, since
    everybody on the host sees arguments, and it may hold a password.
    """
    tried = f"ask {without_password(url)} for {', '.join(packages)}"
    with tempfile.TemporaryDirectory(prefix="socle-dnf-") as folder:
        file = Path(folder) / f"{PROBE}.repo"
        file.touch(mode=0o600)
        file.write_text(probe(url, signed_by), encoding="utf-8")
        options = ["--quiet", "--disableplugin=versionlock", f"--setopt=reposdir={folder}", f"--repo={PROBE}"]
        # DNF takes a key for metadata over only where it is told yes.
        options += ["--assumeyes"] if signed_by else []
        answer = run([*ENGLISH, "dnf", *options, "repoquery", "--qf", QUERY_FORMAT, *packages])
    if answer is None:
        raise PackageError(f"Cannot {tried}: this host has no dnf; install it, or use a supported distribution.")
    rc, stdout, stderr = answer
    if rc:
        raise PackageError(explain(tried, without_password(stderr or stdout)))
    return parse_query(stdout)


def read_stream(root: Path, module: str) -> str | None:
    """The enabled stream of *module*; None when none is. The file is DNF's own, and asking DNF would take a second."""
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string((root / MODULES_FOLDER / f"{module}.module").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, configparser.Error):
        return None
    if parser.get(module, "state", fallback="") != "enabled":
        return None
    return parser.get(module, "stream", fallback="") or None


def parse_streams(text: str, module: str) -> list[str]:
    """Names of the streams in ``dnf module list MODULE``, in its order."""
    found = re.findall(rf"^{re.escape(module)}\s+(\S+)", text, re.MULTILINE)
    return list(dict.fromkeys(found))


def stream_commands(module: str, present: str | None, wanted: str | None) -> list[list[str]]:
    """What makes *wanted* the enabled stream: nothing where it is, a reset first where another one is."""
    if wanted is None or present == wanted:
        return []
    command = [*ENGLISH, "dnf", "--assumeyes", "module"]
    reset = [[*command, "reset", module]] if present else []
    return [*reset, [*command, "enable", f"{module}:{wanted}"]]


def lock_name(line: str) -> str | None:
    """Package of a line of versionlock.list, None for comments, exclusions and lines that are not one package's."""
    match = re.fullmatch(r"([A-Za-z0-9][\w.+-]*)-\d+:[^-\s]+-[^-\s]+", line.strip())
    return match.group(1) if match else None


def locked(text: str, installed: Iterable[Rpm]) -> str:
    """versionlock.list with exactly one lock for each of *installed*; locks of other packages stay as they are."""
    wanted = {each.name: each.lock for each in sorted(installed, key=lambda each: each.name)}
    kept = []
    for line in text.splitlines():
        name = lock_name(line)
        if name not in wanted:
            kept.append(line)
        elif line.strip() == wanted[name]:
            kept.append(wanted.pop(name))
    return "".join(f"{line}\n" for line in [*kept, *wanted.values()])


def unlocked(text: str, names: Iterable[str]) -> str:
    """versionlock.list without the locks of *names*."""
    gone = set(names)
    return "".join(f"{line}\n" for line in text.splitlines() if lock_name(line) not in gone)


ADVICE: tuple[tuple[str, str], ...] = (
    (
        r"missing groups or modules: (?P<what>\S+)",
        "the repository has no module stream {what}; 'dnf module list nvidia-driver' shows those it has, and"
        " gpu_driver_branch selects one",
    ),
    (
        r"switching of module '(?P<module>[^']+)' stream '(?P<old>[^']+)' to stream '(?P<new>[^']+)'",
        "stream {old} of {module} is enabled and {new} was asked for; run 'dnf module reset {module}' first",
    ),
    (
        r"filtered out by exclude filtering for argument: (?P<what>\S+)",
        "{what} exists, but a version lock or an exclude hides it; 'dnf versionlock list' shows the locks, and"
        " 'dnf versionlock delete' removes one",
    ),
    (
        r"filtered out by modular filtering for argument: (?P<what>\S+)",
        "{what} belongs to another module stream than the enabled one; 'dnf module list nvidia-driver' shows which is"
        " enabled, and gpu_driver_branch must be that of the version",
    ),
    (
        r"nothing provides (?P<what>dkms\S*) needed by (?P<by>\S+)",
        "{by} needs dkms, which no enabled repository has; enable EPEL",
    ),
    (
        r"nothing provides (?P<what>.+?) needed by (?P<by>\S+)",
        "{by} needs {what}, which no enabled repository has; enable EPEL and the builder repository (crb)",
    ),
    (
        r"Failed to download metadata for repo '(?P<repo>[^']+)': (?:repomd\.xml GPG signature|[^\n]*repomd\.xml\.asc)",
        "the metadata of repository {repo} is not signed by the key that belongs to it; the mirror is damaged or lacks"
        " repodata/repomd.xml.asc, or its key changed, so compare both with NVIDIA's",
    ),
    (
        r"Failed to download metadata for repo '(?P<repo>[^']+)'",
        "repository {repo} did not answer or has no repodata/repomd.xml; check the address, proxy and name service of"
        " this host, or set the repository's URL to a mirror",
    ),
    (
        r"(?:Package (?P<what>\S+) is not signed|(?:Public key for|Import of key\(s\) didn't help).*)",
        "a package is not signed by the key that the repository file names; the mirror is damaged or its key changed,"
        " so compare both with NVIDIA's",
    ),
    (
        r"Unable to find a match: (?P<what>.+)",
        "no enabled repository has {what}; 'dnf list --showduplicates' shows the versions that exist",
    ),
    (
        r"file (?P<what>\S+) (?:from install of|conflicts between)[^\n]*",
        "two packages bring {what}, so the driver comes from two sources; remove one of them, for example RPM Fusion's",
    ),
    (
        r"At least (?P<what>\d+\S*) more space needed on the (?P<where>\S+) filesystem",
        "{where} needs {what} more space; free it",
    ),
    (
        r"This system is not registered",
        "this system is not registered with Red Hat, so it has no repositories; register it with subscription-manager",
    ),
    (
        r"(?:Failed to obtain|Waiting for process|currently holding) [^\n]*lock",
        "another package transaction holds the lock; wait for it, or find out why it hangs",
    ),
)
"""(what DNF or rpm prints, what it means and what to do). The first that matches is taken, so the narrow ones come
first. All but the last three were captured from DNF 4.23."""


def explain(tried: str, output: str) -> str:
    """One sentence for a failed DNF command: what was tried, what DNF found, and what to do about it."""
    for pattern, advice in ADVICE:
        match = re.search(pattern, output)
        if match:
            named = {key: (value or "").strip().rstrip(".") for key, value in match.groupdict().items()}
            return f"Cannot {tried}: {advice.format(**named)}."
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named_lines = [line for line in lines if line.startswith(("Error", "Problem", "error"))]
    cause = next((line for line in [*named_lines, *lines] if line.rstrip(":") not in ("Error", "")), "no reason given")
    return f"Cannot {tried}: dnf said '{cause.removeprefix('Error: ').rstrip('.')}'; resolve that on the host first."
