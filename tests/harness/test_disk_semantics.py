"""One suite for every Disk: the simulated one does what the operating system's does, errors
included.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.harness.simulation.disk import SimulatedDisk
from recovery.harness.simulation.disk_image import DiskImage
from segmentstore.contracts.disk import Disk, OsDisk, make_directories
from tests.harness.disk_world import Process, read, write


@pytest.fixture(params=["os", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    if request.param == "os":
        return OsDisk(), str(tmp_path)
    disk = SimulatedDisk(DiskImage(), Process())
    make_directories(disk, "/world")
    return disk, "/world"


def test_bytes_are_read_as_they_were_written(place: tuple[Disk, str]) -> None:
    disk, root = place
    file = disk.open(f"{root}/a", write=True, create=True, exclusive=True)
    file.pwrite([b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3]], 2)
    file.pwrite([], 100)
    file.pwrite([b""], 100)
    file.sync()
    assert file.size() == disk.size(f"{root}/a") == 8
    assert (file.pread(0, 4), file.pread(6, 100), file.pread(8, 1), file.pread(0, 0)) == (
        b"\0\0ab",
        b"ef",
        b"",
        b"",
    )
    file.truncate(3)
    file.truncate(5)
    assert file.pread(0, 100) == b"\0\0a\0\0"
    file.close()
    file.close()
    assert read(disk, f"{root}/a") == b"\0\0a\0\0"


def test_opening_says_what_is_wrong(place: tuple[Disk, str]) -> None:
    disk, root = place
    write(disk, f"{root}/a", b"a")
    make_directories(disk, f"{root}/d")
    for path in (f"{root}/x", f"{root}/x/y"):
        with pytest.raises(FileNotFoundError) as caught:
            disk.open(path, write=True)
        assert caught.value.filename == path
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/x/y", write=True, create=True)
    with pytest.raises(NotADirectoryError):
        disk.open(f"{root}/a/b", write=True, create=True)
    with pytest.raises(FileExistsError):
        disk.open(f"{root}/a", write=True, create=True, exclusive=True)
    with pytest.raises(FileExistsError):
        disk.open(f"{root}/d", write=True, create=True, exclusive=True)
    with pytest.raises(IsADirectoryError):
        disk.open(f"{root}/d", write=True)
    with pytest.raises(IsADirectoryError):
        disk.lock(f"{root}/d")
    folder = disk.open(f"{root}/d")
    with pytest.raises(IsADirectoryError):
        folder.pread(0, 1)
    folder.close()
    assert read(disk, f"{root}/a") == b"a"


def test_a_handle_does_what_it_was_opened_for_until_it_is_closed(place: tuple[Disk, str]) -> None:
    disk, root = place
    write(disk, f"{root}/a", b"a")
    file = disk.open(f"{root}/a")
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pwrite([b"x"], 0)
    with pytest.raises(OSError, match="Invalid argument"):
        file.truncate(0)
    file.sync()
    file.close()
    calls: list[Callable[[], object]] = [
        lambda: file.pread(0, 1),
        lambda: file.pwrite([b"x"], 0),
        lambda: file.truncate(0),
        file.size,
    ]
    for call in calls:
        with pytest.raises(OSError, match="Bad file descriptor"):
            call()
    with pytest.raises(ValueError, match="file descriptor"):
        file.sync()


def test_a_file_stays_without_its_name(place: tuple[Disk, str]) -> None:
    disk, root = place
    write(disk, f"{root}/a", b"old")
    file = disk.open(f"{root}/a", write=True)
    assert file.is_at(f"{root}/a")
    disk.unlink(f"{root}/a")
    assert not file.is_at(f"{root}/a")
    write(disk, f"{root}/a", b"new")
    file.pwrite([b"still"], 0)
    assert not file.is_at(f"{root}/a")
    assert file.pread(0, 10) == b"still"
    assert read(disk, f"{root}/a") == b"new"
    file.close()


def test_is_at_follows_names(place: tuple[Disk, str]) -> None:
    disk, root = place
    write(disk, f"{root}/a", b"")
    write(disk, f"{root}/b", b"")
    file = disk.open(f"{root}/a")
    disk.link(f"{root}/a", f"{root}/c")
    assert [file.is_at(f"{root}/{name}") for name in ("a", "b", "c", "d", "d/e")] == [
        True,
        False,
        True,
        False,
        False,
    ]
    with pytest.raises(NotADirectoryError):
        file.is_at(f"{root}/b/x")
    file.close()


def test_links_never_replace(place: tuple[Disk, str]) -> None:
    disk, root = place
    write(disk, f"{root}/a", b"a")
    write(disk, f"{root}/b", b"b")
    make_directories(disk, f"{root}/d")
    with pytest.raises(FileExistsError):
        disk.link(f"{root}/a", f"{root}/b")
    with pytest.raises(FileExistsError):
        disk.link(f"{root}/a", f"{root}/d")
    with pytest.raises(FileNotFoundError):
        disk.link(f"{root}/x", f"{root}/y")
    with pytest.raises(FileNotFoundError):
        disk.link(f"{root}/a", f"{root}/x/y")
    with pytest.raises(NotADirectoryError):
        disk.link(f"{root}/a", f"{root}/b/y")
    with pytest.raises(PermissionError):
        disk.link(f"{root}/d", f"{root}/y")
    disk.link(f"{root}/a", f"{root}/d/a")
    disk.unlink(f"{root}/a")
    assert read(disk, f"{root}/d/a") == b"a"


def test_renames_replace(place: tuple[Disk, str]) -> None:
    disk, root = place
    write(disk, f"{root}/a", b"a")
    write(disk, f"{root}/b", b"b")
    make_directories(disk, f"{root}/d/e")
    disk.rename(f"{root}/a", f"{root}/b")
    assert disk.list_directory(root) == ["b", "d"]
    assert read(disk, f"{root}/b") == b"a"
    disk.link(f"{root}/b", f"{root}/c")
    disk.rename(f"{root}/b", f"{root}/c")
    assert disk.list_directory(root) == ["b", "c", "d"]
    disk.rename(f"{root}/b", f"{root}/d/b")
    disk.rename(f"{root}/d", f"{root}/f")
    assert disk.list_directory(f"{root}/f") == ["b", "e"]


def test_renames_say_what_is_wrong(place: tuple[Disk, str]) -> None:
    disk, root = place
    write(disk, f"{root}/a", b"a")
    make_directories(disk, f"{root}/d/e")
    make_directories(disk, f"{root}/f")
    for source, target, error in (
        ("x", "y", FileNotFoundError),
        ("a", "x/y", FileNotFoundError),
        ("a/x", "y", NotADirectoryError),
        ("a", "d", IsADirectoryError),
        ("d", "a", NotADirectoryError),
    ):
        with pytest.raises(error):
            disk.rename(f"{root}/{source}", f"{root}/{target}")
    for source, target, code in (("f", "d", errno.ENOTEMPTY), ("d", "d/e/g", errno.EINVAL)):
        with pytest.raises(OSError, match=r"not empty|Invalid") as caught:
            disk.rename(f"{root}/{source}", f"{root}/{target}")
        assert caught.value.errno == code
    disk.rename(f"{root}/d", f"{root}/f")
    assert disk.list_directory(root) == ["a", "f"]


def test_folders(place: tuple[Disk, str]) -> None:
    disk, root = place
    make_directories(disk, f"{root}/d/e/")
    make_directories(disk, f"{root}/d/e")
    write(disk, f"{root}/d/b", b"")
    write(disk, f"{root}/d/a", b"")
    assert disk.list_directory(f"{root}/d") == ["a", "b", "e"]
    assert [disk.exists(f"{root}/{name}") for name in ("d", "d/a", "x", "x/y", "d/a/x")] == [
        *(True, True),
        *(False, False, False),
    ]
    assert [disk.is_directory(f"{root}/{name}") for name in ("d", "d/a", "x", "d/a/x")] == [
        True,
        False,
        False,
        False,
    ]
    with pytest.raises(NotADirectoryError):
        make_directories(disk, f"{root}/d/a")
    with pytest.raises(NotADirectoryError):
        make_directories(disk, f"{root}/d/a/x")
    with pytest.raises(OSError, match="not empty"):
        disk.remove_directory(f"{root}/d")
    disk.remove_directory(f"{root}/d/e")
    disk.sync_directory(f"{root}/d")
    for call in (disk.list_directory, disk.remove_directory, disk.sync_directory):
        with pytest.raises(NotADirectoryError):
            call(f"{root}/d/a")
    calls: tuple[Callable[[str], object], ...] = (
        *(disk.list_directory, disk.remove_directory, disk.sync_directory),
        *(disk.unlink, disk.size, disk.modified_ms),
    )
    for look in calls:
        with pytest.raises(FileNotFoundError):
            look(f"{root}/x")
    with pytest.raises(IsADirectoryError):
        disk.unlink(f"{root}/d")


def test_a_lock_is_one_handle_s_until_that_is_closed(place: tuple[Disk, str]) -> None:
    disk, root = place
    held = disk.lock(f"{root}/lock")
    with pytest.raises(BlockingIOError):
        disk.lock(f"{root}/lock")
    disk.open(f"{root}/lock", write=True).close()
    with pytest.raises(BlockingIOError):
        disk.lock(f"{root}/lock")
    held.close()
    again = disk.lock(f"{root}/lock")
    held.close()
    with pytest.raises(BlockingIOError):
        disk.lock(f"{root}/lock")
    # The lock is the file's, not the name's.
    disk.unlink(f"{root}/lock")
    other = disk.lock(f"{root}/lock")
    assert not again.is_at(f"{root}/lock")
    again.close()
    other.close()


def test_what_cannot_be_seen_is_not_taken_for_absent(tmp_path: Path) -> None:
    """As with EACCES, EIO and ESTALE: something may be there."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("absent")
    disk = OsDisk()
    for name in ("loop", "loop/below"):
        for seen in (disk.exists, disk.is_directory):
            with pytest.raises(OSError, match="symbolic links"):
                seen(str(tmp_path / name))
    assert not disk.exists(str(tmp_path / "nowhere"))
    assert not disk.is_directory(str(tmp_path / "nowhere"))
