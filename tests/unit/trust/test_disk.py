"""Files are replaced as a whole, and nothing in their folder leads a write or a lock elsewhere."""

import errno
import os
import stat
import tempfile
import threading
from pathlib import Path

import pytest
import safetensors.torch
import torch

from hostile_folders import locked_tree
from portico.trust import disk
from portico.trust.files import save_tensors

KINDS = ("a link to a file", "a link to nothing", "a link to a folder", "a link to a device", "a pipe", "a hard link")


def hostile(path: Path, kind: str, elsewhere: Path) -> None:
    """Put something at ``path`` that leads a careless write into the folder ``elsewhere``, or blocks it."""
    elsewhere.mkdir(exist_ok=True)
    (elsewhere / "theirs.txt").write_text("theirs")
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a hard link":
        path.hardlink_to(elsewhere / "theirs.txt")
    else:
        targets = {"file": elsewhere / "theirs.txt", "nothing": elsewhere / "new.txt", "folder": elsewhere}
        path.symlink_to(targets.get(kind.rpartition(" ")[2], "/dev/full"))


def is_untouched(elsewhere: Path) -> bool:
    return [path.name for path in elsewhere.iterdir()] == ["theirs.txt"] and (
        elsewhere / "theirs.txt"
    ).read_text() == "theirs"


@pytest.mark.parametrize("kind", KINDS)
def test_what_leads_elsewhere_is_replaced(kind, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    hostile(folder / "config.json", kind, tmp_path / "elsewhere")
    disk.write_text(folder / "config.json", "{}")
    assert (folder / "config.json").read_text() == "{}"
    assert stat.S_ISREG((folder / "config.json").lstat().st_mode)
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    assert is_untouched(tmp_path / "elsewhere")


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_a_library_replace_what_leads_elsewhere(kind, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("tokenizer.json", "inner"):
        hostile(folder / name, kind if name != "inner" else "a link to a folder", tmp_path / "elsewhere")
    with disk.staged_folder(folder) as staging:
        (staging / "tokenizer.json").write_text("{}")
        (staging / "inner").mkdir()
        (staging / "inner" / "adapter.json").write_text("{}")
    assert (folder / "inner" / "adapter.json").read_text() == (folder / "tokenizer.json").read_text() == "{}"
    assert not (folder / "inner").is_symlink()
    assert sorted(path.name for path in folder.iterdir()) == ["inner", "tokenizer.json"]
    assert is_untouched(tmp_path / "elsewhere")


@pytest.mark.parametrize("name", [b"plain", b"other-\xff"])
def test_a_library_gets_a_path_of_unicode(name, tmp_path):
    folder = tmp_path / os.fsdecode(name)
    with disk.staged_folder(folder, needs_unicode=True) as staging:
        assert str(staging).encode()
        (staging / "inner").mkdir()
        (staging / "inner" / "ours.txt").write_text("ours")
    assert (folder / "inner" / "ours.txt").read_text() == "ours"
    assert [path.name for path in folder.iterdir()] == ["inner"]


def test_a_folder_is_not_replaced_by_a_file(tmp_path):
    (tmp_path / "report.html").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        disk.write_text(tmp_path / "report.html", "text")
    assert caught.value.filename == str(tmp_path / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    (tmp_path / "page.html").write_text("before")
    with pytest.raises(UnicodeEncodeError), disk.replaced(tmp_path / "page.html") as staging:
        staging.write_text("after \ud800", encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert (tmp_path / "page.html").read_text() == "before"


def test_an_error_names_the_file_and_not_the_staged_one(tmp_path):
    with pytest.raises(OSError, match=r"No space") as caught, disk.replaced(tmp_path / "page.html") as staging:
        raise OSError(errno.ENOSPC, "No space left on device", str(staging))
    assert caught.value.filename == str(tmp_path / "page.html")
    with pytest.raises(OSError, match=r"No space") as caught, disk.replaced(tmp_path / "page.html"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(tmp_path / "page.html")


@pytest.mark.parametrize("is_link", [True, False])
def test_a_folder_that_is_exchanged_meanwhile_gets_nothing(is_link, tmp_path):
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()

    def exchange():
        folder.rename(tmp_path / "moved")
        folder.symlink_to(elsewhere) if is_link else folder.mkdir()

    with pytest.raises(OSError, match=r"was replaced while it was written to"), disk.replaced(folder / "a"):
        exchange()
    assert not list(elsewhere.iterdir())
    assert not list(folder.iterdir())


def test_a_staging_folder_that_is_exchanged_meanwhile_gets_nothing(tmp_path):
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()

    def exchange(staging):
        staging.rename(folder / "moved")
        staging.symlink_to(elsewhere)

    with pytest.raises(OSError, match=r"was replaced while it was written to"), disk.staged_folder(folder) as staging:
        exchange(staging)
    assert not list(elsewhere.iterdir())


def test_the_umask_gives_the_mode(tmp_path):
    before = os.umask(0o027)
    try:
        disk.write_text(tmp_path / "a.json", "{}")
        save_tensors({}, tmp_path / "b.pt")
        with disk.replaced(tmp_path / "c.safetensors") as staging:
            safetensors.torch.save_file({"weight": torch.zeros(1)}, staging)
    finally:
        os.umask(before)
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()} == dict.fromkeys(
        ("a.json", "b.pt", "c.safetensors"), "0o640"
    )


def test_what_a_killed_process_was_writing_is_removed(tmp_path):
    with disk.replaced(tmp_path / "here.txt") as alive:
        alive.write_text("text")
        dead = tmp_path / f".portico-{'0' * 16}"
        dead.mkdir()
        (dead / "half").write_text("text")
        (tmp_path / f".portico-{'1' * 16}").symlink_to(tmp_path / "elsewhere")
        disk.remove_stale_staging(tmp_path)
        assert not dead.exists()
        assert alive.exists()
    assert (tmp_path / "here.txt").read_text() == "text"


def test_a_library_can_update_a_file(tmp_path):
    (tmp_path / "README.md").write_text("mine")
    with disk.staged_folder(tmp_path, keeping=["README.md", "other.md"]) as staging:
        assert [path.name for path in staging.iterdir()] == ["README.md"]
        (staging / "README.md").write_text((staging / "README.md").read_text() + " and theirs")
    assert (tmp_path / "README.md").read_text() == "mine and theirs"


def test_torch_names_its_archive_after_the_file(tmp_path):
    save_tensors({"state": torch.zeros(1)}, tmp_path / "optimizer.pt")
    assert b"optimizer/data.pkl" in (tmp_path / "optimizer.pt").read_bytes()


@pytest.mark.parametrize("kind", [*KINDS[:-1], "a folder"])
def test_a_lock_is_a_file_in_its_folder(kind, tmp_path):
    path = tmp_path / "cache.lock"
    if kind == "a folder":
        path.mkdir()
    else:
        hostile(path, kind, tmp_path / "elsewhere")
    with pytest.raises(OSError, match=str(path)), disk.locked(path):
        pass


def test_a_lock_writes_nothing_into_its_file(tmp_path):
    hostile(tmp_path / "cache.lock", "a hard link", tmp_path / "elsewhere")
    with disk.locked(tmp_path / "cache.lock"):
        assert is_untouched(tmp_path / "elsewhere")


def test_a_lock_is_held_by_one(tmp_path):
    order = []

    def wait():
        with disk.locked(tmp_path / "cache.lock"):
            order.append("second")

    with disk.locked(tmp_path / "cache.lock"):
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.05)
        order.append("first")
    waiting.join(10)
    assert order == ["first", "second"]


@pytest.mark.parametrize("read", [disk.read_text, disk.read_bytes, disk.open_regular, disk.refuse_huge])
@pytest.mark.parametrize("kind", ["a pipe", "a link to a device"])
def test_what_would_not_end_is_not_read(read, kind, tmp_path):
    hostile(tmp_path / "config.yaml", kind, tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"not a regular file") as caught:
        read(tmp_path / "config.yaml")
    assert caught.value.filename == str(tmp_path / "config.yaml")


def test_a_folder_has_one_owner_until_its_process_ends(tmp_path):
    with disk.owned(tmp_path):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.write(writer, (disk.owner_of(tmp_path) or "nobody").encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 100).decode() == f"process {os.getpid()}"
    assert disk.owner_of(tmp_path) is None
    assert disk.owner_of(tmp_path / "missing") is None


def test_a_forked_process_does_not_own_the_folder_of_its_parent(tmp_path):
    reader, writer = os.pipe()
    of_child, ready = os.pipe()
    with disk.owned(tmp_path):
        child = os.fork()
        if not child:
            os.close(writer)
            os.write(ready, b"1")
            os.read(reader, 1)
            os._exit(0)
        os.read(of_child, 1)
    assert disk.owner_of(tmp_path) is None
    os.close(writer)
    os.waitpid(child, 0)
    for descriptor in (reader, of_child, ready):
        os.close(descriptor)


# ---- Removing ----


@pytest.mark.parametrize("kind", KINDS)
def test_what_leads_elsewhere_is_removed_and_not_followed(kind, tmp_path):
    hostile(tmp_path / "leftover", kind, tmp_path / "elsewhere")
    disk.remove_tree(tmp_path / "leftover")
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]
    assert is_untouched(tmp_path / "elsewhere")
    disk.remove_tree(tmp_path / "leftover")  # there is nothing


def test_folders_whose_mode_forbids_it_are_removed(ordinary_folder):
    disk.remove_tree(locked_tree(ordinary_folder))
    assert [path.name for path in ordinary_folder.iterdir()] == ["mine.txt"]
    assert stat.S_IMODE((ordinary_folder / "mine.txt").stat().st_mode) == 0o644
    assert stat.S_IMODE(ordinary_folder.stat().st_mode) == 0o700


def test_what_cannot_be_removed_is_an_error(ordinary_folder):
    (ordinary_folder / "a" / "tree").mkdir(parents=True)
    (ordinary_folder / "a").chmod(0o500)
    with pytest.raises(PermissionError):
        disk.remove_tree(ordinary_folder / "a" / "tree")
    (ordinary_folder / "a").chmod(0o700)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_temporary_folder_is_removed_with_what_killed_processes_have_left(temporary):
    (temporary / "portico-verify-killed" / "records").mkdir(parents=True)
    (temporary / "portico-replay-other").mkdir()
    (temporary / "elsewhere").mkdir()
    (temporary / "elsewhere" / "mine.txt").touch()
    (temporary / "portico-verify-link").symlink_to(temporary / "elsewhere")
    (temporary / "portico-verify-file").touch()
    left_alone = ["elsewhere", "portico-replay-other", "portico-verify-file", "portico-verify-link"]
    with disk.temporary_folder("portico-verify-") as folder:
        assert sorted(path.name for path in temporary.iterdir() if path != folder) == left_alone
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        locked_tree(folder)
        with disk.temporary_folder("portico-verify-") as other:
            assert folder.is_dir(), "that of a living process is left alone"
            assert other != folder
    assert sorted(path.name for path in temporary.iterdir()) == left_alone
    assert (temporary / "elsewhere" / "mine.txt").is_file()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders of others")
def test_a_temporary_folder_of_another_user_is_left_alone(temporary):
    (temporary / "portico-verify-theirs").mkdir()
    os.chown(temporary / "portico-verify-theirs", 65534, 65534)
    with disk.temporary_folder("portico-verify-"):
        assert (temporary / "portico-verify-theirs").is_dir()


@pytest.mark.parametrize(
    ("size", "is_small"), [(None, False), (0, True), (64 << 20, True), ((64 << 20) + 1, False), (5 << 40, False)]
)
def test_files_that_a_library_updates_are_kept_if_they_are_small(size, is_small, tmp_path):
    if size is not None:
        with (tmp_path / "README.md").open("wb") as file:
            file.truncate(size)
    assert disk.is_small_file(tmp_path / "README.md") is is_small
    if size is None or size > 64 << 20:
        with disk.staged_folder(tmp_path, keeping=["README.md"]) as staging:
            assert (staging / "README.md").exists() is is_small


@pytest.mark.parametrize("kind", KINDS)
def test_a_card_that_is_no_file_is_not_kept(kind, tmp_path):
    """The weights next to it are saved."""
    folder = tmp_path / "run"
    folder.mkdir()
    hostile(folder / "README.md", kind, tmp_path / "elsewhere")
    with disk.staged_folder(folder, keeping=["README.md"]) as staging:
        assert (staging / "README.md").exists() is (kind in ("a link to a file", "a hard link"))
        (staging / "README.md").write_text("ours")
    assert (folder / "README.md").read_text() == "ours"
    assert is_untouched(tmp_path / "elsewhere")
