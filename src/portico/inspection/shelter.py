"""A shelter for a rehearsal: processes that see the disk as it is, and whose writes all end in a temporary folder.

Linux gives a process a view of its own (user and mount namespaces, without privileges on most systems): each disk is
covered by an overlay whose writable layer is in the temporary folder. Scripts, libraries in C++ and Rust, caches and
trackers write as always, and read back what they wrote; the disk below stays as it was.

A second process removes the temporary folder once every process of the rehearsal has ended, however that happens.
"""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from portico.trust.disk import remove_tree

_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_READ_ONLY, _REMOUNT, _BIND, _AND_BELOW = 1, 32, 4096, 16384
_PRIVATE_BELOW = (1 << 18) | _AND_BELOW
_LOCKED = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC  # equal to the flags of a mount
# File systems that hold no files of users, or whose content is no file; everything else is covered.
_NO_DISKS = (
    *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs"),
    *("fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs", "rpc_pipefs", "securityfs", "squashfs"),
    *("sysfs", "tracefs"),
)
# Of the system; disks that are mounted below `/run`, and shared memory, are covered.
_NEVER_COVERED = ("/proc", "/sys", "/dev", "/run", "/boot", "/lost+found")
_NEVER_BELOW = ("/proc/", "/sys/", "/boot/")
_SHARED_MEMORY = "/dev/shm"
# Of programs and of the session of a user; nobody can connect to one that is below an overlay.
_SOCKETS = "/run/"
# Waits until all who hold the other end of the pipe have ended. What they started may end a moment later.
_REMOVER = """
import os, shutil, sys, time
folder = sys.argv[1]
sys.stdin.buffer.read()
def open_up(function, path, _):
    try:
        # The folder above is not ours, and is where a folder would be that is gone already.
        path == folder or os.chmod(os.path.dirname(path), 0o700)
        os.path.islink(path) or os.chmod(path, 0o700)
    except OSError:
        pass
for _ in range(40):
    shutil.rmtree(folder, onerror=open_up)
    if not os.path.lexists(folder):
        break
    time.sleep(0.25)
"""


@dataclass(frozen=True)
class Shelter:
    """A temporary folder; what processes started by :meth:`start` write ends in it."""

    folder: Path
    lifeline: int
    """End of a pipe that the processes hold; the folder is removed when all have closed it."""
    covers_disks: bool
    """Whether the system gives processes their own view of the disk."""

    def start(self, command: list[str], environment: dict[str, str], log: Path) -> "subprocess.Popen[bytes]":
        """Start a command in the shelter, with its output in the file ``log``.

        It sees the disk as it is, without what other commands wrote; only the folder of the shelter is shared.
        """
        view = f"view-of-{log.name}"
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                pass_fds=(self.lifeline,),
                preexec_fn=partial(cover_disks, self.folder, view)
                if self.covers_disks
                else None,  # no other thread runs
            )


@contextmanager
def sheltered(*, covers_disks: bool = True) -> Iterator[Shelter]:
    """Yield a shelter; its folder is gone after the block, and after the end of a process that was killed in it."""
    folder = Path(tempfile.mkdtemp(prefix="portico-preflight-"))
    reading, writing = os.pipe()
    remover = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _REMOVER, str(folder)],
        stdin=reading,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # an interrupt of the terminal ends everything but this
    )
    os.close(reading)
    try:
        yield Shelter(folder, writing, covers_disks and _can_cover_disks(folder))
    finally:
        os.close(writing)
        if remover.wait():  # it was killed
            remove_tree(folder)


def _can_cover_disks(folder: Path) -> bool:
    """Return whether a child of this process gets its own view of the disk."""
    trial = folder / "trial"
    trial.mkdir()
    child = os.fork()
    if not child:
        try:
            cover_disks(trial, "view")
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


# ---- The view of a process: only for one that has a single thread ----


def cover_disks(folder: Path, view: str) -> None:
    """Cover all disks that this process sees with overlays whose upper layers are in a new folder ``view``.

    That folder is in ``folder``, which stays as it is.

    Nothing can be written where an overlay is not possible.

    Raises:
        OSError: If the system does not allow it.
    """
    working_folder = Path.cwd()
    is_privileged = _leave_mounts()
    _mount(None, "/", None, _PRIVATE_BELOW)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # of the folder itself, whatever covers its path later
    here = f"/proc/self/fd/{handle}"
    protected: list[str] = []
    covered: list[str] = []
    waiting = _places()
    while waiting:
        place = waiting.pop()
        for layer in ("lower", "upper", "work"):
            Path(here, view, layer, str(len(covered))).mkdir(parents=True, exist_ok=True)
        try:
            _mount(place, f"{here}/{view}/lower/{len(covered)}", None, _BIND)
            covered.append(place)
        except OSError:  # without privileges, of a folder in which other disks have their places
            protected.append(place)
            waiting += [path for path in _folders_in(place) if not os.path.ismount(path)]
    for place in sorted(protected, key=_depth):
        _protect(place)
    # A folder of the disk below can be renamed with the first, which needs privileges; the second is for users.
    attributes = ",redirect_dir=on" if is_privileged else ",userxattr"
    for number, place in sorted(enumerate(covered), key=lambda pair: _depth(pair[1])):
        layers = ",".join(f"{layer}dir={here}/{view}/{layer}/{number}" for layer in ("lower", "upper", "work"))
        try:
            _mount("overlay", place, "overlay", 0, layers + attributes)
        except OSError:  # of a file system that cannot be below an overlay
            _protect(place)
    _mount(here, str(folder), None, _BIND)
    os.close(handle)
    os.chdir(working_folder)  # the path leads to the overlay, the folder itself below it


def _leave_mounts() -> bool:
    """Leave the mounts of the other processes; return whether this process has the privileges of an administrator."""
    with suppress(OSError):
        _call("unshare", _NEW_MOUNTS)
        return True
    user, group = os.getuid(), os.getgid()
    _call("unshare", _NEW_USER | _NEW_MOUNTS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with Path("/proc/self", name).open("w") as file:
            file.write(text)
    return False


def _places() -> list[str]:
    """Return the folders to cover: the root's own, and the places of other disks."""
    mounts = _mounts()
    own = [path for path in _folders_in("/") if path not in _NEVER_COVERED]
    own = [path for path in (*own, _SHARED_MEMORY) if path not in mounts and _is_folder(path)]
    disks = [
        place
        for place, kind in mounts.items()
        if kind not in _NO_DISKS
        and place not in ("/", *_NEVER_COVERED)
        and not place.startswith(_NEVER_BELOW)
        and not (kind == "tmpfs" and place.startswith(_SOCKETS))
        and _is_folder(place)
    ]
    return [*own, *disks]


def _mounts() -> dict[str, str]:
    """Return the kinds of the file systems that this process sees, by their places."""
    mounts: dict[str, str] = {}
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        place = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), before.split()[4])
        mounts[place] = after.split()[0]
    return mounts


def _protect(place: str) -> None:
    """Make a folder read-only."""
    kept = os.statvfs(place).f_flag & _LOCKED  # without them, a user may not change it
    _mount(place, place, None, _BIND | _AND_BELOW)
    _mount(None, place, None, _BIND | _REMOUNT | _READ_ONLY | kept)


def _is_folder(place: str) -> bool:
    with suppress(OSError):  # in a folder of another user, or of a file system that does not answer
        return Path(place).is_dir()
    return False


def _folders_in(place: str) -> list[str]:
    with suppress(PermissionError):
        return [str(path) for path in Path(place).iterdir() if path.is_dir() and not path.is_symlink()]
    return []


def _depth(place: str) -> int:
    return place.count("/")


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    _call("mount", *words, ctypes.c_ulong(flags), None if options is None else options.encode())


def _call(name: str, *arguments: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def free_bytes(folder: Path) -> int:
    """Return the free space of the disk that will hold ``folder``, which need not exist."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
