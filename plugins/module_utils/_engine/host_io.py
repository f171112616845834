# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Running a command, and the few file operations that launches are made of. Private to socle.inference.

Both are injected everywhere, so that a test can record them or interrupt between any two of them.
"""

# Commands are run by a function that is injected, so that launches are tested without a host; the module's own
# run_command also cannot hand over lines while a pull goes on.
# pylint: disable=ansible-bad-function

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Protocol

from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError

Completed = subprocess.CompletedProcess  # of str

INSTALL = {
    "podman": "install Podman 4.6 or newer with Quadlet (Debian and RHEL package 'podman')",
    "docker": "install Docker 20.10 or newer (25 or newer for GPUs), or let the host use Podman",
    "systemctl": "the host must run systemd",
    "journalctl": "the host must run systemd with its journal",
}


OUTPUT_BYTES = 64 << 20
"""Of each of a command's two outputs; the largest that is asked for, a schema of all flags, has half a MiB."""

FILE_BYTES = 16 << 20
"""Of a file; the largest that is read whole, a tokenizer's settings, has some MiB."""


class Runner(Protocol):
    """Runs an argument list, never a shell."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        input_text: str | None = None,
        timeout_s: float = 60.0,
        on_line: Callable[[str], None] | None = None,
        enough: int | None = None,
    ) -> Completed[str]: ...


def run(
    argv: Sequence[str],
    *,
    input_text: str | None = None,
    timeout_s: float = 60.0,
    on_line: Callable[[str], None] | None = None,
    enough: int | None = None,
) -> Completed[str]:
    """The real runner. *on_line* gets every line of its output as it comes, and "" about once a second.

    A command is killed once it has said *enough* bytes: its status is then -SIGKILL, and what it said is cut there.
    Without that, one that says more than OUTPUT_BYTES is an EngineError.
    """
    given = " ".join(argv[:3])
    try:
        with _started(argv, input_text is not None) as process:
            try:
                outputs = _Outputs(process, on_line)
                outputs.read(input_text, time.monotonic() + timeout_s, enough or OUTPUT_BYTES)
                if outputs.full and enough is None:
                    raise EngineError(
                        f"Gave up on '{given}': it said more than the {OUTPUT_BYTES >> 20} MiB of which anything is"
                        " known here; run it by hand on the host to see what it says, and put that right.",
                        cmd=list(argv),
                    )
            finally:
                if process.returncode is None:
                    process.kill()
    except FileNotFoundError as error:
        tool = Path(argv[0]).name
        raise EngineError(
            f"Cannot run {tool} on this host: it is not installed; {INSTALL.get(tool, f'install {tool}')}.",
            cmd=list(argv),
        ) from error
    except _NotStarted as error:
        raise EngineError(
            f"Cannot run {given[:200]!r} on this host: {error}; see whether it may be run there, and whether the host"
            " has memory and processes left ('free -h', 'ulimit -u').",
            cmd=list(argv),
        ) from error
    except subprocess.TimeoutExpired as error:
        raise EngineError(
            f"Gave up on '{given}' after {timeout_s:.0f} s: it did not end; see whether the host is overloaded or the"
            " command hangs when run by hand.",
            cmd=list(argv),
        ) from error
    return subprocess.CompletedProcess(list(argv), process.returncode, *outputs.texts())


class _NotStarted(Exception):
    """A command that is there could not be started; the message says why."""


def _started(argv: Sequence[str], fed: bool) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE if fed else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _NotStarted(error.strerror or str(error)) from error
    except ValueError as error:  # a NUL in an argument, or half a character
        raise _NotStarted("one of its arguments holds a character that none can hold") from error


class _Outputs:
    """What a process says on both of its outputs, read as it comes."""

    def __init__(self, process: subprocess.Popen[bytes], on_line: Callable[[str], None] | None) -> None:
        self._process = process
        self._on_line = on_line
        self._said = {"stdout": bytearray(), "stderr": bytearray()}
        self._told = {"stdout": 0, "stderr": 0}
        self.full = False

    def read(self, input_text: str | None, deadline: float, limit: int) -> None:
        """Until it ended, or said more than *limit* bytes on one of them. Raises TimeoutExpired after *deadline*."""
        process = self._process
        left = memoryview((input_text or "").encode("utf-8", "replace"))
        with selectors.DefaultSelector() as selector:
            for name in self._said:
                selector.register(getattr(process, name), selectors.EVENT_READ, name)
            if process.stdin is not None:
                os.set_blocking(process.stdin.fileno(), False)
                selector.register(process.stdin, selectors.EVENT_WRITE, "stdin")
            while selector.get_map() and not self.full:
                if time.monotonic() > deadline:
                    raise subprocess.TimeoutExpired(process.args, 0)
                ready = selector.select(1.0)
                if not ready and self._on_line is not None:
                    self._on_line("")
                for key, _events in ready:
                    if key.data == "stdin":
                        left = self._feed(left)
                        over = not left
                    else:
                        over = not self._take(key.fd, key.data, limit)
                    if over:
                        selector.unregister(key.fileobj)
                        key.fileobj.close()  # type: ignore[union-attr]
        if not self.full:
            process.wait(max(0.0, deadline - time.monotonic()))

    def _feed(self, left: memoryview) -> memoryview:
        try:
            return left[os.write(self._process.stdin.fileno(), left[:65536]) :]  # type: ignore[union-attr]
        except BrokenPipeError:  # it reads no further, and says itself what it thinks of that
            return left[:0]

    def _take(self, descriptor: int, name: str, limit: int) -> bool:
        """Read some of an output; False at its end."""
        chunk = os.read(descriptor, 65536)
        said = self._said[name]
        said += chunk
        if len(said) > limit:
            self.full = True
            del said[limit:]
        while self._on_line is not None:
            end = said.find(b"\n", self._told[name])
            if end < 0:
                break
            line = bytes(said[self._told[name] : end])
            self._told[name] = end + 1
            self._on_line(line.decode("utf-8", "replace"))
        return bool(chunk)

    def texts(self) -> tuple[str, str]:
        """Standard output and errors, with the ends of lines as Python has them."""
        out, err = (
            bytes(said).decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
            for said in self._said.values()
        )
        return out, err


def accepts_connections(address: str, port: int) -> bool:
    """Whether something listens on a TCP port; an IPv6 address may stand in brackets."""
    try:
        with socket.create_connection((address.strip("[]"), port), timeout=2.0) as connection:
            # A free port of the range for outgoing connections may, rarely, connect to itself.
            return bool(connection.getsockname() != connection.getpeername())
    except OSError:
        return False


FILE_REMEDIES = {
    errno.ENOSPC: "make room there ('df -h' shows it)",
    errno.EDQUOT: "raise the quota or make room",
    errno.EROFS: "make that file system writable",
    errno.EACCES: "run as root (become: true), and see who owns it",
    errno.EPERM: "run as root (become: true), and see whether it is immutable",
    errno.EIO: "see the kernel's messages ('dmesg') about that disk",
    errno.EISDIR: "move that folder away, as a file belongs there",
    errno.EILSEQ: "correct the file by hand",
    errno.ENXIO: "remove it, as a file belongs there",
    errno.EFBIG: "see what wrote it, and move it away",
}

PLACE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""What another file system would not answer."""


class NotText(OSError, ValueError):
    """A file holds no UTF-8 text, is a pipe, or is larger than any of its kind; both kinds, as those who pass damaged
    files over expect either."""


def irregular(path: Path) -> str | None:
    """What is in a file's place that would keep its reader waiting, perhaps for ever: "it is a pipe, not a file"."""
    try:
        status = path.stat()
    except OSError:
        return None
    if stat.S_ISFIFO(status.st_mode):
        return "it is a pipe, not a file"
    if stat.S_ISSOCK(status.st_mode):
        return "it is a socket, not a file"
    # A link to /dev/null is how a file is switched off.
    device = stat.S_ISBLK(status.st_mode) or stat.S_ISCHR(status.st_mode)
    if device and status.st_rdev != Path(os.devnull).stat().st_rdev:
        return "it is a device, not a file"
    return None


@contextlib.contextmanager
def naming(path: Path, staged: Path | None = None) -> Iterator[None]:
    """Gives an OSError the path that it is about: one of writing (a full disk) has none of its own.

    *staged* is a file that only becomes *path*, and of which nobody knows.
    """
    try:
        yield
    except OSError as error:
        subject = error.filename2 or error.filename
        unknown = subject is None or (staged is not None and os.fsdecode(subject) == str(staged))
        if unknown and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


@contextlib.contextmanager
def explaining(attempt: str, movable: Path | None = None) -> Iterator[None]:
    """Turns an OSError, `NotText` too, into one sentence: "Cannot <attempt>: <reason> (<path>); <remedy>.".

    *movable* is socle's state folder, or one in it: what is there may also be kept in another place.
    """
    try:
        yield
    except OSError as error:
        # Of the two paths of a link or a rename, the second one is what was to be made.
        path = error.filename2 or error.filename or "path unknown"
        reason = error.strerror or str(error)
        remedy = FILE_REMEDIES.get(error.errno or 0, "put that path right")
        if error.errno in PLACE_ERRORS and movable is not None and _same_branch(Path(os.fsdecode(path)), movable):
            remedy += ", or set another state folder"
        raise EngineError(
            f"Cannot {attempt}: {reason} ({path}); {remedy}, then repeat the run.", path=str(path), errno=error.errno
        ) from error


def _same_branch(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents or path in folder.parents


def make_folders(path: Path) -> None:
    """Make *path* and all above it that is missing, with mode 0755 whatever the umask is.

    Files get the mode that they are written with whatever it is, so it must not decide who reaches them either: apt's
    own user its keys, every user of Podman its settings. Who wants a folder for root alone sets its mode.
    """
    if path.is_dir():
        return
    make_folders(path.parent)
    try:
        path.mkdir(0o755)
    except FileExistsError:
        # Somebody else was faster, or something else is there.
        if not path.is_dir():
            raise
        return
    path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o755)


def read_noted(files: Files, path: Path) -> Any:
    """The content of a JSON file that socle alone writes: {} where there is none, None where something else is there.

    Raises OSError where it cannot be read, so that a faulty disk is not taken for a host of which nothing was noted.
    """
    try:
        return json.loads(files.read(path) or "{}")
    except (IsADirectoryError, ValueError, RecursionError):
        # `NotText` is a ValueError.
        return None


@contextlib.contextmanager
def _dropping(staged: Path) -> Iterator[None]:
    """Leaves nothing at *staged* where it does not become what it was to be."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            if staged.is_dir() and not staged.is_symlink():
                shutil.rmtree(staged)
            else:
                staged.unlink()
        raise


@contextlib.contextmanager
def _staging(path: Path, content: bytes, mode: int) -> Iterator[Path]:
    """A file beside *path*, wholly written, that is to be moved there."""
    staged = path.with_name(f".{path.name}.new")
    with naming(path, staged):
        with contextlib.suppress(FileNotFoundError):
            staged.unlink()
        handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with _dropping(staged):
            with os.fdopen(handle, "wb") as stream:
                os.fchmod(stream.fileno(), mode)
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            yield staged


def put_bytes(path: Path, content: bytes, mode: int) -> None:
    """Replace *path* whole, in a folder that is made where it is missing; a reader sees what was there or what comes.

    Nobody reads the new file before it has its mode, and where it cannot be written, nothing of it stays.
    """
    make_folders(path.parent)
    with _staging(path, content, mode) as staged:
        staged.replace(path)


def _refuse_folder(path: Path) -> None:
    """Raise what a rename to *path* would."""
    if path.is_dir() and not path.is_symlink():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))


class Files:
    """Every change to a file system that a launch makes goes through here: each one is atomic on its own."""

    def read(self, path: Path, limit: int = FILE_BYTES) -> str | None:
        """The text, or None where there is no such file. Raises OSError, of which `NotText` is one.

        A file of more than *limit* bytes is not read further.
        """
        try:
            # Opening a pipe waits for a writer, who may never come.
            fault = irregular(path)
            if fault:
                raise NotText(errno.ENXIO, fault, str(path))
            with path.open("rb") as stream:
                content = stream.read(limit + 1)
            if len(content) > limit:
                raise NotText(errno.EFBIG, f"it is larger than {limit >> 10} KiB", str(path))
            return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise NotText(errno.EILSEQ, f"its byte {error.start} is no UTF-8 text", str(path)) from error

    def write(self, path: Path, text: str, mode: int = 0o644, *, follow: bool = False) -> None:
        """Replace *path* whole; a reader sees the old text or the new one.

        *follow* is for a file that its owner may keep elsewhere: where *path* is a link, the file it leads to is
        replaced. Otherwise the link itself is, so that nobody can turn a write of ours to another file.
        """
        if follow:
            path = Path(os.path.realpath(path))
        put_bytes(path, text.encode(), mode)

    def try_write(self, path: Path, text: str) -> None:
        """Raise what `write` would, as on a full disk, and leave what is there as it is."""
        make_folders(path.parent)
        _refuse_folder(path)
        with _staging(path, text.encode(), 0o644) as staged:
            staged.unlink()

    def try_point(self, link: Path) -> None:
        """Raise what `point` would, and leave what is there as it is."""
        # Of the same name beside it, in the same folder.
        self.try_write(link, "")

    def write_all(self, texts: Mapping[Path, str], mode: int = 0o644) -> None:
        """Replace several files that belong together: none of them as long as one of the new ones cannot be written."""
        for path in texts:
            make_folders(path.parent)
        with contextlib.ExitStack() as stack:
            staged = {path: stack.enter_context(_staging(path, text.encode(), mode)) for path, text in texts.items()}
            for path, written in staged.items():
                written.replace(path)

    def ensure_folder(self, path: Path) -> None:
        """A folder that is there, with all above it."""
        make_folders(path)

    def make_folder(self, path: Path, texts: dict[str, str]) -> None:
        """A new folder with these files; it appears whole or not at all."""
        staged = path.with_name(f".{path.name}.new")
        shutil.rmtree(staged, ignore_errors=True)
        make_folders(staged)
        with naming(path, staged), _dropping(staged):
            for name, text in texts.items():
                self.write(staged / name, text)
            staged.replace(path)

    def point(self, link: Path, target: str) -> None:
        """Make *link* a symbolic link to *target* in one step."""
        staged = link.with_name(f".{link.name}.new")
        with contextlib.suppress(FileNotFoundError):
            staged.unlink()
        with naming(link, staged), _dropping(staged):
            staged.symlink_to(target)
            staged.replace(link)

    def remove(self, path: Path) -> None:
        """Remove a file or link; nothing happens when there is none."""
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
