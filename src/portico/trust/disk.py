"""How files are written and read; no other module creates, replaces or locks one.

A folder may come from somebody else, or be shared with somebody: any name in it may be a link to a file elsewhere, a
named pipe or a device. What is written here is complete, or as it was before, and reaches nothing outside its folder:

* New content is written below a new folder with a random name, next to its place, and is then renamed. A rename
  replaces a link and does not follow it; the other names of a file (hard links) keep the old content.
* The folder is opened first and names are looked up in it, so it cannot be exchanged for a link meanwhile.
* Libraries that take a path, such as safetensors and tokenizers, get one below the new folder.
"""

import errno
import fcntl
import os
import re
import resource
import secrets
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

_STAGING = re.compile(r"\.portico-[0-9a-f]{16}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_PRIVATE, _BY_UMASK = 0o700, 0o666
# Of file systems without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


# ---- Writing ----


@contextmanager
def replaced(path: Path, *, size: int | None = None) -> Iterator[Path]:
    """Yield a path to write a file to; on success the file replaces ``path``, whatever that is but a folder.

    The name is that of ``path``, which torch writes into its archives; the file gets the mode of a new one.

    Args:
        path: The file.
        size: Its bytes, if they are known, for the error of a full disk.

    Raises:
        OSError: If the file cannot be written, with ``path`` and, on a full disk, the room that it needs.
    """
    with _naming(path), _staging_below(path.parent, path, size) as staging:
        yield staging / path.name


@contextmanager
def staged_folder(
    folder: Path,
    *,
    keeping: Collection[str] = (),
    weights: str | None = None,
    size: int | None = None,
    needs_unicode: bool = False,
) -> Iterator[Path]:
    """Yield a new folder; on success all files in it move to ``folder``, and replace those of the same names.

    For libraries that write several files. If the block fails, ``folder`` stays as it was.

    Args:
        folder: Where the files go; it is made if it does not exist.
        keeping: Names of files in ``folder`` that the library updates, so they are copied before; what is no file, or
            far larger than one that a library would update, is replaced.
        weights: Name of the file whose errors do not name it, as those of safetensors.
        size: Bytes of all files together, about, if they are known, for the error of a full disk.
        needs_unicode: Whether the library, such as tokenizers, takes no path of other bytes than UTF-8.
    """
    unnamed = None if weights is None else folder / weights
    with _naming(folder), _staging_below(folder, unnamed, size) as staging:
        for name in keeping:
            if is_small_file(folder / name):
                write_bytes(staging / name, read_bytes(folder / name))
        if needs_unicode and not _is_unicode(staging):
            with tempfile.TemporaryDirectory(prefix="portico-") as place:
                yield Path(place)
                shutil.copytree(place, staging, dirs_exist_ok=True)
        else:
            yield staging


def _is_unicode(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file that is complete, or as it was before, if the process is killed or the disk is full."""
    with replaced(path, size=len(content)) as staging, open_new(staging, "wb") as file:
        file.write(content)


def write_text(path: str | Path, text: str) -> None:
    """Write a UTF-8 file as :func:`write_bytes` does; a lone surrogate, which cannot be encoded, becomes "?"."""
    write_bytes(Path(path), text.encode("utf-8", errors="replace"))


def copy_file(source: Path, path: Path) -> None:
    """Copy a file with its mode; ``path`` is replaced."""
    with replaced(path) as staging:
        shutil.copy(source, staging)


def open_new(path: Path, mode: str = "w", *, encoding: str | None = None, newline: str | None = None) -> IO[Any]:
    """Return a new file that is open for writing; raise ``FileExistsError`` if there is anything at ``path``."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _BY_UMASK)
    if "b" not in mode:
        encoding = encoding or "utf-8"
    return os.fdopen(descriptor, mode, encoding=encoding, newline=newline)


def remove_detour(path: Path) -> None:
    """Remove what would lead elsewhere if ``path`` were opened for writing: a link, a pipe, one of several names.

    For files to which is appended, and for folders in which a library writes.
    """
    with suppress(FileNotFoundError):
        status = path.lstat()
        is_plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        if not (is_plain or stat.S_ISDIR(status.st_mode)):
            path.unlink()


def open_log(path: Path, *, encoding: str | None = None) -> IO[str]:
    """Return a text file that is open for appending; what would lead elsewhere is replaced."""
    remove_detour(path)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, _BY_UMASK), "a", encoding=encoding)


def remove_tree(path: Path) -> None:
    """Remove what is at ``path``, if there is anything, with all that it holds; a link is removed and not followed.

    Folders whose mode forbids it are opened up, which an archive may hold so that its content stays.

    Raises:
        OSError: If something cannot be removed.
    """
    try:
        is_folder = stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_folder:
        path.unlink()
        return
    try:
        shutil.rmtree(path)
    except PermissionError:
        _open_up(path)
        shutil.rmtree(path)


def _open_up(folder: Path) -> None:
    folder.chmod(_PRIVATE)
    for _, inner, _, opened in os.fwalk(folder):  # which does not follow links either
        for name in inner:
            if stat.S_ISDIR(os.stat(name, dir_fd=opened, follow_symlinks=False).st_mode):
                os.chmod(name, _PRIVATE, dir_fd=opened)


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Yield a new temporary folder, which is removed after the block.

    Folders of the same prefix that killed processes of this user have left are removed before. ``TemporaryDirectory``
    does not know those, and before Python 3.12.3 changes the modes of files at the ends of links.
    """
    folder, opened = _make_temporary(prefix)
    try:
        _remove_abandoned(folder.parent, prefix)
        yield folder
    finally:
        with suppress(OSError):
            remove_tree(folder)
        os.close(opened)


def _make_temporary(prefix: str) -> tuple[Path, int]:
    """Make a temporary folder; return it and its descriptor, which holds a lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        with suppress(FileNotFoundError):  # another process took it for abandoned, and came before the lock
            opened = os.open(folder, _FOLDER | os.O_NOFOLLOW)
            try:
                fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
                is_kept = _is_same(folder, opened)
            except OSError as error:
                is_kept = not isinstance(error, BlockingIOError)  # of a file system without locks
            if is_kept:
                return folder, opened
            os.close(opened)


def _remove_abandoned(place: Path, prefix: str) -> None:
    """Remove the folders of a prefix that belong to this user, and that no process has locked."""
    for path in place.glob(f"{prefix}*"):
        # Others may have made what has such a name, in a place that all users share.
        with suppress(OSError), _opened(place) as within, _opened(path.name, within=within) as opened:
            if os.fstat(opened).st_uid == os.geteuid():
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(path)


def move_files(source: Path, folder: Path) -> None:
    """Move all files below ``source`` to the same places below ``folder``, where they replace files and links."""
    with _opened(source) as opened, _opened(folder) as target:
        _move(opened, target)


def remove_stale_staging(folder: Path) -> None:
    """Remove from ``folder`` what processes that were killed were writing."""
    with suppress(OSError), _opened(folder) as opened:
        for name in filter(_STAGING.fullmatch, _names_in(opened)):
            with suppress(OSError), _opened(name, within=opened) as staging:
                fcntl.flock(staging, fcntl.LOCK_EX | fcntl.LOCK_NB)  # which fails while its process lives
                shutil.rmtree(name, ignore_errors=True, dir_fd=opened)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock, for which other processes wait, on a file that is made if needed and never written.

    Raises:
        OSError: If ``path`` is no regular file.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags, _BY_UMASK)
    try:
        _refuse_irregular(os.fstat(descriptor), path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        os.close(descriptor)


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Own a folder inside the block, as one process at a time can.

    The lock is on the folder itself and ends with the process, however that ends.

    Raises:
        BlockingIOError: If another process owns it.
    """
    with _opened(folder) as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # of a file system without locks, or with locks on files alone
            pass
        _owning.add(opened)
        try:
            yield
        finally:
            _owning.discard(opened)


def lock_folder(folder: Path, *, shared: bool = False) -> int:
    """Make a folder, lock it, alone or ``shared``, and return its descriptor, which keeps the lock until it is closed.

    Raises:
        BlockingIOError: If another process has locked it otherwise.
        OSError: If the folder cannot be made, or the file system has no locks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _close_folders() -> None:
    """Close the folders in a forked process, such as a worker of a loader, which may live longer than the owner."""
    while _owning:
        os.close(_owning.pop())


_owning: set[int] = set()
os.register_at_fork(after_in_child=_close_folders)


def owner_of(folder: Path) -> str | None:
    """Return which process owns a folder, in words; None if no other process does."""
    try:
        with owned(folder):
            return None
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except BlockingIOError:
        status = folder.stat()
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        with suppress(OSError):
            for line in Path("/proc/locks").read_text().splitlines():
                fields = line.split()
                if place in fields and "->" not in fields:
                    return f"process {fields[4]}"
        return "another process"


@contextmanager
def _staging_below(folder: Path, unnamed: Path | None, size: int | None) -> Iterator[Path]:
    """Yield a new folder, whose files move to ``folder``; for the other arguments see :func:`_naming_room`."""
    folder.mkdir(parents=True, exist_ok=True)
    with _opened(folder) as target:
        name, staging = _make_staging(target)
        try:
            with _naming_room(folder, name, unnamed, size):
                yield folder / name
                if not _is_same(folder, target) or not _is_same(folder / name, staging):
                    raise OSError(errno.ESTALE, "the folder was replaced while it was written to", str(folder))
                _move(staging, target)
        finally:
            os.close(staging)
            shutil.rmtree(name, ignore_errors=True, dir_fd=target)


def _make_staging(target: int) -> tuple[str, int]:
    """Make a folder that only this user can enter; return its name and its descriptor, which holds a lock."""
    while True:
        name = f".portico-{secrets.token_hex(8)}"
        os.mkdir(name, _PRIVATE, dir_fd=target)
        staging = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=target)
        with suppress(OSError):
            fcntl.flock(staging, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with suppress(FileNotFoundError):  # `remove_stale_staging` came before the lock
            if os.path.samestat(os.stat(name, dir_fd=target, follow_symlinks=False), os.fstat(staging)):
                return name, staging
        os.close(staging)


def _move(source: int, target: int) -> None:
    names = sorted(_names_in(source))
    modes = {name: os.stat(name, dir_fd=source, follow_symlinks=False).st_mode for name in names}
    # First, since it needs room for one more file: what fails then has moved nothing.
    for name, mode in modes.items():
        if stat.S_ISREG(mode) and not mode & 0o077:
            # safetensors writes files that nobody else can read, also where the umask allows it.
            _set_mode_by_umask(name, source)
    for name, mode in modes.items():
        if stat.S_ISDIR(mode):
            if _move_folder(name, source, target):
                continue
            with _opened(name, within=source) as inner_source, _opened(name, within=target) as inner_target:
                _move(inner_source, inner_target)
            os.rmdir(name, dir_fd=source)
        else:
            os.replace(name, name, src_dir_fd=source, dst_dir_fd=target)


def _names_in(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def _move_folder(name: str, source: int, target: int) -> bool:
    """Move a folder to where there is none, or a link to one; else return False."""
    with suppress(FileNotFoundError):
        if stat.S_ISLNK(os.stat(name, dir_fd=target, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=target)
    try:
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _set_mode_by_umask(name: str, folder: int) -> None:
    # A new folder shows the umask: `os.umask` would change it for all threads.
    probe = f".{secrets.token_hex(8)}"
    os.mkdir(probe, dir_fd=folder)
    try:
        mode = os.stat(probe, dir_fd=folder, follow_symlinks=False).st_mode & _BY_UMASK
    finally:
        os.rmdir(probe, dir_fd=folder)
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fchmod(file, mode)
    finally:
        os.close(file)


@contextmanager
def _opened(folder: str | Path, *, within: int | None = None) -> Iterator[int]:
    """Yield the descriptor of a folder; one that is looked up ``within`` another may not be a link."""
    descriptor = os.open(folder, _FOLDER | (0 if within is None else os.O_NOFOLLOW), dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_same(folder: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(folder.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name ``path`` in errors of the system that name no file, or one that is only staged."""
    try:
        yield
    except OSError as error:
        # Names in a folder that is open are relative, as in the error of a rename, which has two.
        is_inner = error.filename2 is not None or any(map(_STAGING.fullmatch, Path(str(error.filename)).parts))
        if isinstance(error, StorageFullError):
            raise
        if error.errno in _FULL:
            reason = f"{os.strerror(error.errno)}: {_measure_missing_room(error.errno, path.parent)}"
            raise StorageFullError(error.errno, reason, str(path)) from error
        if error.errno is None or not (error.filename is None or is_inner):
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from error


# ---- A full disk ----

# Of a disk or its inodes, of the quota of a user, of the size of a file.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LITTLE = 1 << 20  # bytes: a mebibyte


class StorageFullError(OSError):
    """There is no room for a file: the message says which, how much it needs, and how much there is."""


@contextmanager
def naming_missing_room(path: Path | None, folder: Path, advice: str = "") -> Iterator[None]:
    """Raise a :class:`StorageFullError` if there is no room for what a library writes into ``folder``.

    Args:
        path: What the error names; None for the file that could not be written.
        folder: Where the files go, if the library does not say.
        advice: Ends the message.
    """
    try:
        yield
    except BaseException as error:  # as torch's error of sharded files is
        number = _full_disk(error, folder)
        if number is None:
            raise
        if isinstance(error, StorageFullError):
            reason = error.strerror
        else:
            reason = f"{os.strerror(number)}: {_measure_missing_room(number, folder)}"
        name = path or (error.filename if isinstance(error, OSError) else None) or folder
        raise StorageFullError(number, f"{reason}{advice}", str(name)) from error


@contextmanager
def _naming_room(folder: Path, name: str, unnamed: Path | None, size: int | None) -> Iterator[None]:
    """Raise a :class:`StorageFullError` if there is no room for a file of ``folder`` that is staged below ``name``.

    Args:
        folder: Where the files go.
        name: Of the folder in it in which they are staged.
        unnamed: The file that cannot be written if the error names none; by default the one that was written last.
        size: Bytes of the file, or of all, if they are known.
    """
    try:
        yield
    except BaseException as error:
        number = _full_disk(error, folder)
        if number is None:
            raise
        staging = folder / name
        files = {file: file.stat() for file in staging.rglob("*") if file.is_file()}
        written = sum(status.st_size for status in files.values())
        last = max(files, key=lambda file: files[file].st_mtime_ns, default=staging)
        given = Path(str(getattr(error, "filename", None)))
        if staging in given.parents:
            last = given
        elif unnamed is not None and not (isinstance(error, OSError) and files):
            last = staging / unnamed.name
        reason = f"{os.strerror(number)}: {_measure_missing_room(number, folder, written, size)}"
        raise StorageFullError(number, reason, str(folder / last.relative_to(staging))) from error


def _measure_missing_room(number: int, folder: Path, written: int = 0, size: int | None = None) -> str:
    """Return what is used up, and how much a file needs of which ``written`` bytes could be written."""
    folder = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    free = shutil.disk_usage(folder).free
    if number == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if limit != resource.RLIM_INFINITY:
            return f"{_describe_need(size, limit)}, and no file may have more than {_format_size(limit)} (`ulimit -f`)"
        return f"{_describe_need(size, written)}, and the file system takes no file of that size"
    if number == errno.EDQUOT:
        return f"{_describe_need(size, written)}, and the quota has room for {_format_size(written)}"
    if not _has_inodes(folder):
        return "the file system has no inodes left, so it takes no new file until others are deleted"
    return f"{_describe_need(size, written + free)}, and there is room for {_format_size(written + free)}"


def _describe_need(size: int | None, least: int) -> str:
    return f"{_format_size(size)} are needed" if size is not None else f"more than {_format_size(least)} are needed"


def _format_size(size: int) -> str:
    return f"{size:,} bytes" if size < _LITTLE else f"{size / _LITTLE:,.1f} MiB"


def _full_disk(error: BaseException, folder: Path) -> int | None:
    """Return the error number if there was no room to write; torch and safetensors report it as other errors."""
    if isinstance(error, StorageFullError):
        return error.errno
    # Shards are written by torch, which collects the errors of all processes.
    for failure in getattr(error, "failures", {}).values():
        if (number := _full_disk(failure[0], folder)) is not None:
            return number
    if isinstance(error, OSError):
        return error.errno if error.errno in _FULL else None
    # torch.save says no more than "unexpected pos" or "basic_ios::clear: iostream error".
    if "inline_container" in str(error) or "iostream error" in str(error):
        if shutil.disk_usage(folder).free < _LITTLE or not _has_inodes(folder):
            return errno.ENOSPC
        has_limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
        return errno.EFBIG if has_limit else _probe_room(folder)
    # safetensors and tokenizers, whose error is a bare `Exception`, quote the system.
    return next((number for number in _FULL if os.strerror(number) in str(error)), None)


def _has_inodes(folder: Path) -> bool:
    known = os.statvfs(folder)
    return known.f_favail > 0 or known.f_files == 0  # which some file systems do not count


def _probe_room(folder: Path) -> int | None:
    """Return the error of writing a few bytes more; a quota shows nowhere else."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_LITTLE))
    except OSError as error:
        return error.errno if error.errno in _FULL else None
    return None


# ---- Reading ----

# A file may be sparse: an archive holds one of any size in a few bytes, and reading it would fill the memory.
_MOST_BYTES = 4 << 30
_SMALL = 64 << 20


def open_regular(path: Path) -> BinaryIO:
    """Return a file that is open for reading; raise an ``OSError`` for a pipe or a terminal, which would not end."""
    _refuse_irregular(path.stat(), path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    try:
        _refuse_irregular(os.fstat(descriptor), path)
    except OSError:
        file.close()
        raise
    return file


def refuse_huge(path: Path) -> None:
    """Raise an ``OSError`` if a file is larger than any text that a run writes, or no regular file."""
    status = path.stat()
    _refuse_irregular(status, path)
    if status.st_size > _MOST_BYTES:
        raise OSError(errno.EFBIG, f"larger than {_MOST_BYTES >> 30} GiB, which no run writes", str(path))


def is_small_file(path: Path) -> bool:
    """Return whether a path is that of a regular file of at most 64 MiB, or of a link to one."""
    try:
        status = path.stat()
    except OSError:  # there is none, or a link leads in a circle
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= _SMALL


def read_bytes(path: Path) -> bytes:
    """Return what is in a file; see :func:`refuse_huge`."""
    refuse_huge(path)
    with open_regular(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file; see :func:`refuse_huge`."""
    return read_bytes(path).decode("utf-8")


def refuse_irregular(path: Path) -> None:
    """Raise an ``OSError`` if a path is not that of a regular file, or of a link to one."""
    _refuse_irregular(path.stat(), path)


def _refuse_irregular(status: os.stat_result, path: Path) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "a pipe, a device or a socket, not a regular file", str(path))
