"""The view of the disk in a rehearsal: what is covered, and that removing it reaches nothing else."""

import errno
import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from fresh_process import environment
from hostile_folders import locked_tree
from portico.inspection import shelter

MOUNTS = {
    **{"/": "ext4", "/proc": "proc", "/proc/acpi": "tmpfs", "/sys": "sysfs", "/sys/fs/cgroup": "tmpfs"},
    **{"/dev": "devtmpfs", "/dev/pts": "devpts", "/boot": "ext4", "/boot/efi": "vfat"},
    **{"/run": "tmpfs", "/run/user/1000": "tmpfs", "/run/lock": "tmpfs"},
}
COVERED = {
    **{"/dev/shm": "tmpfs", "/run/media/ada/DISK": "ext4", "/run/user/1000/remote": "fuse.sshfs", "/home": "ext4"},
    **{"/runs": "xfs", "/devices": "ext4", "/system": "ext4", "/bootcamp": "ext4", "/process data": "nfs4"},
}


def test_disks_are_covered_wherever_they_are_mounted(monkeypatch):
    """Also shared memory, and disks whose places begin with a name of a folder of the system."""
    monkeypatch.setattr(shelter, "_mounts", lambda: MOUNTS | COVERED)
    monkeypatch.setattr(shelter, "_is_folder", lambda place: True)
    monkeypatch.setattr(shelter, "_folders_in", lambda place: ["/data", "/home", "/runs", "/dev", "/run", "/boot"])
    assert set(shelter._places()) == {"/data", *COVERED}
    monkeypatch.setattr(shelter, "_mounts", lambda: MOUNTS)
    assert set(shelter._places()) == {"/data", "/home", "/runs", "/dev/shm"}


def test_a_place_in_a_folder_of_another_user_is_left_out(ordinary_folder):
    (ordinary_folder / "theirs" / "place").mkdir(parents=True)
    (ordinary_folder / "theirs").chmod(0)
    assert not shelter._is_folder(str(ordinary_folder / "theirs" / "place"))
    assert shelter._is_folder(str(ordinary_folder / "theirs"))
    (ordinary_folder / "theirs").chmod(0o700)


SHELTERED = """
import os, sys
from pathlib import Path
from portico.inspection.shelter import sheltered

with sheltered() as shelter:
    if not shelter.covers_disks:
        sys.exit(77)
    changes = "rm -r mine; echo theirs > new; cat new"
    process = shelter.start(["sh", "-c", changes], dict(os.environ), shelter.folder / "log")
    assert process.wait() == 0, (shelter.folder / "log").read_text()
    print((shelter.folder / "log").read_text(), end="")
"""


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_what_is_written_in_a_shelter_ends_in_its_folder(place):
    if not os.access(place, os.W_OK):
        pytest.skip(f"{place} cannot be written to")
    with tempfile.TemporaryDirectory(dir=place) as folder:
        Path(folder, "mine").mkdir()
        words = [sys.executable, "-c", SHELTERED]
        ended = subprocess.run(words, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
        if ended.returncode == 77:
            pytest.skip("this system gives no process a view of the disk of its own")
        assert (ended.returncode, ended.stdout) == (0, "theirs\n"), ended.stderr
        assert [path.name for path in Path(folder).iterdir()] == ["mine"]


def test_removing_a_shelter_changes_nothing_at_the_ends_of_links(ordinary_folder, monkeypatch):
    tree = locked_tree(ordinary_folder)
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        monkeypatch.setattr(sys, "argv", ["-c", str(tree)])
        exec(shelter._REMOVER, {})
    assert [path.name for path in ordinary_folder.iterdir()] == ["mine.txt"]
    assert stat.S_IMODE((ordinary_folder / "mine.txt").stat().st_mode) == 0o644


def test_a_shelter_that_is_gone_or_in_use_leaves_the_folder_above_as_it_was(tmp_path, monkeypatch):
    tmp_path.chmod(0o755)
    (tmp_path / "used").mkdir()

    def refuse(*args, **kwargs):
        raise OSError(errno.EBUSY, "in use")

    for name in ("gone", "used"):
        with Path(os.devnull).open() as nothing, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", nothing)
            patch.setattr(sys, "argv", ["-c", str(tmp_path / name)])
            patch.setattr(os, "rmdir", refuse)
            patch.setattr(time, "sleep", lambda seconds: None)
            exec(shelter._REMOVER, {})
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_shelter_is_removed_although_its_remover_was_killed():
    with shelter.sheltered(covers_disks=False) as sheltered:
        (sheltered.folder / "output").mkdir()
        for child in psutil.Process().children():
            if str(sheltered.folder) in child.cmdline():
                child.kill()
    assert not sheltered.folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_an_ordinary_user_can_protect_a_disk_without_programs():
    """Such flags of a disk are locked for users: without them, its protection is refused, and with it all others."""
    reading, writing = os.pipe()
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        child = os.fork()
        if not child:
            try:
                os.write(writing, attempt_to_protect(Path(name)).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as file:
            said = file.read()
        os.waitpid(child, 0)
    if said.startswith("not possible"):
        pytest.skip(said)
    assert said == errno.errorcode[errno.EROFS]


def attempt_to_protect(place):
    """Mount a file system of a kind that is locked for users, become one, protect it, and write to it."""
    no_suid, no_dev, dumpable = 2, 4, 4
    try:
        shelter._call("unshare", shelter._NEW_MOUNTS)
        shelter._mount(None, "/", None, shelter._PRIVATE_BELOW)
        shelter._mount("tmpfs", str(place), "tmpfs", no_suid | no_dev, "mode=777")
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        shelter._call("prctl", dumpable, 1, 0, 0, 0)  # else its entries in /proc belong to root
        assert not shelter._leave_mounts()
    except (OSError, AssertionError) as error:
        return f"not possible here: {error!r}"
    try:
        shelter._protect(str(place))
        (place / "new").touch()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "written"
