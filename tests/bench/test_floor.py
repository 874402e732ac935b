"""The floor measures what it says: real bytes, synced, read back whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench import workspace
from bench.floor import (
    evict,
    files_under,
    preallocated,
    read_rate,
    synced_write_rate,
    synced_writes,
)
from bench.workspace import BenchError, file_system_of, require_free_bytes, subfolder, work_folder


def test_preallocated_file_has_its_length_in_written_zeros(tmp_path: Path) -> None:
    file = preallocated(tmp_path / "file", 3_000_000)
    file.close()
    status = (tmp_path / "file").stat()
    assert status.st_size == 3_000_000
    assert status.st_blocks * 512 >= 3_000_000
    assert (tmp_path / "file").read_bytes() == bytes(3_000_000)


def test_synced_writes_wrap_and_stay_inside_the_file(tmp_path: Path) -> None:
    file = preallocated(tmp_path / "file", 10_000)
    seconds = synced_writes(file, 10_000, 3000, 7)
    assert len(seconds) == 7
    assert all(one > 0 for one in seconds)
    assert file.size() == 10_000
    content = file.pread(0, 10_000)
    assert content[:3000] == content[3000:6000] == content[6000:9000] != bytes(3000)
    assert content[9000:] == bytes(1000)
    file.close()


def test_write_rate_is_positive_even_for_less_than_a_piece(tmp_path: Path) -> None:
    assert synced_write_rate(tmp_path, 4096, 100, file_bytes=4096) > 0


def test_read_rate_reads_every_byte_once_also_after_eviction(tmp_path: Path) -> None:
    for index, length in enumerate((0, 1, 4096, 10_001)):
        with (tmp_path / f"f{index}").open("wb") as file:
            file.write(os.urandom(length))
            file.flush()
            os.fsync(file.fileno())
    paths = files_under(tmp_path)
    assert [path.name for path in paths] == ["f1", "f2", "f3"]
    evict(paths)
    total, seconds = read_rate(paths, 1000)
    assert total == 1 + 4096 + 10_001
    assert seconds > 0


def test_files_under_leaves_out_the_small_and_goes_deep(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "large").write_bytes(bytes(100))
    (tmp_path / "small").write_bytes(bytes(99))
    assert files_under(tmp_path, 100) == [tmp_path / "a" / "b" / "large"]


def test_work_folder_is_removed_whatever_happens(tmp_path: Path) -> None:
    seen = []

    def fail_inside() -> None:
        with work_folder(tmp_path / "var") as folder, subfolder(folder, "one") as inner:
            (inner / "file").write_bytes(b"x")
            seen.append(folder)
            raise BenchError("inside")

    with pytest.raises(BenchError, match="inside"):
        fail_inside()
    assert not seen[0].exists()
    assert (tmp_path / "var").is_dir()


def test_work_folder_refuses_a_file_system_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "file_system_of", lambda _: "tmpfs")
    with pytest.raises(BenchError, match="tmpfs"), work_folder(tmp_path):
        pass


def test_file_system_is_found_by_the_longest_mount_point() -> None:
    assert file_system_of(Path("/proc/self")) == "proc"


def test_too_little_disk_is_said_before_anything_runs(tmp_path: Path) -> None:
    require_free_bytes(tmp_path, 1)
    with pytest.raises(BenchError, match="MiB"):
        require_free_bytes(tmp_path, 1 << 62)
