"""A store on a file system that is mounted read-only: it is read, and has no owner there."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from segmentstore import ReadOnlyFileSystemError, SegmentStoreError, TierUnavailableError
from segmentstore.contracts.disk import OsDisk, OsFile
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import open_tiny, run
from tests.support.suites import slow

ROOT = Path(__file__).resolve().parent.parent.parent


@slow(40)
@pytest.mark.parametrize("elsewhere", [True, False], ids=["tier2-elsewhere", "tier2-on-it"])
def test_the_reading_commands_work_on_a_real_read_only_mount(
    tmp_path: Path, elsewhere: bool
) -> None:
    mount = tmp_path / "disk"
    mount.mkdir()
    tier2 = (tmp_path / "objects" / "tier2").as_uri() if elsewhere else ""
    inside = f'mount -t tmpfs -o size=20m tmpfs "{mount}" && exec "$@"'
    script = [sys.executable, "-m", "tests.store.read_only_mount", str(mount), tier2]
    command = ["unshare", "-rm", "sh", "-c", inside, "sh", *script]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ},
        check=False,
    )
    words = "this test needs `unshare -rm` and a tmpfs: util-linux, and user namespaces (or root)\n"
    assert done.returncode == 0, words + done.stdout + done.stderr


class LocklessDisk(OsDisk):
    """One that refuses locks, as a file system does that is exported read-only, or to others."""

    def __init__(self, number: int) -> None:
        self._number = number

    def lock(self, path: str) -> OsFile:
        raise OSError(self._number, os.strerror(self._number), path)


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.EROFS, ReadOnlyFileSystemError), (errno.EACCES, TierUnavailableError)],
)
def test_a_lock_refused_for_want_of_permission_is_another_matter(
    tmp_path: Path, number: int, error: type[SegmentStoreError]
) -> None:
    async def opening() -> None:
        with pytest.raises(error):
            await open_tiny(tmp_path / "store", runtime=Runtime(disk=LocklessDisk(number)))

    run(opening())
