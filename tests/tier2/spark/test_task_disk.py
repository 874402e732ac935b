"""What a task writes does not stay in memory; what the engine writes does."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from segmentstore.contracts.disk import OsDisk
from tier2.spark.common.task_disk import BulkDisk

SIZE = 4 * 1024 * 1024
FILES = 7


def is_cached(path: Path) -> bool:
    """Whether a page in the middle is in the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return bool(os.preadv(descriptor, [bytearray(4096)], SIZE // 2, os.RWF_NOWAIT))
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


def can_report(folder: Path) -> bool:
    """Whether its file system says what is cached: those whose files are nowhere but in memory do
    not.
    """
    path = folder / "asked"
    path.write_bytes(bytes(SIZE))
    try:
        return is_cached(path)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return False


@pytest.mark.parametrize(
    ("disk", "stays"), [(OsDisk(), True), (BulkDisk(), False)], ids=["engine", "task"]
)
def test_what_is_synced_stays_cached_or_not(disk: OsDisk, stays: bool, tmp_path: Path) -> None:
    # The kernel keeps a page that anything else refers to at that moment, and drops one when it is
    # short of memory. So most files decide.
    cached = 0
    for number in range(FILES):
        path = tmp_path / f"file-{number}"
        data = os.urandom(SIZE)
        file = disk.open(str(path), write=True, create=True, exclusive=True)
        file.pwrite([data[:100], data[100:]], 0)
        file.sync()
        file.close()
        cached += is_cached(path) if can_report(tmp_path) else stays
        assert path.read_bytes() == data
    assert (cached * 2 > FILES) is stays
