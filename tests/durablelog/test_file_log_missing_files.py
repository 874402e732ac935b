"""A file that an owner opens by its name is missing: it gets the reason, whatever it was about to
do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from durablelog.file.file_log import FileLog
from durablelog.file.log_folder import LogFolder
from segmentstore.contracts.disk import OsDisk, OsFile
from segmentstore.contracts.errors import NotPrimaryError, TierUnavailableError
from segmentstore.contracts.runtime import Runtime
from tests.contracts.durable_data_log_contract import (
    PAYLOAD_BYTES_MAX,
    append_all,
    payload,
    read_payloads,
)
from tests.support.fake_kernel import syncs_by  # noqa: F401 - each test runs both ways

FILE_BYTES = 8192


class Disk(OsDisk):
    """Lets something happen just before a file is opened by a name that ends in `ending`."""

    ending = ""
    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
    ) -> OsFile:
        if self.ending and path.endswith(self.ending):
            self.ending = ""
            self.meanwhile()
        return super().open(path, write=write, create=create, exclusive=exclusive)


def make_log(folder: Path, disk: OsDisk) -> FileLog:
    runtime = Runtime(disk=disk)
    return FileLog(
        str(folder), 0, runtime, file_bytes=FILE_BYTES, payload_bytes_max=PAYLOAD_BYTES_MAX
    )


async def append_until_it_fails(log: FileLog) -> None:
    for number in range(200):
        await log.append([payload(number)])


async def truncate_at_the_end(log: FileLog) -> None:
    await log.truncate(log._folder.last_address)


async def read(log: FileLog) -> None:
    await read_payloads(log)


WAYS = {
    "append": (append_until_it_fails, ".tmp"),
    "truncate": (truncate_at_the_end, ".tmp"),
    "truncate, looking at the frame": (truncate_at_the_end, ".log"),
    "read": (read, ".log"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_folder_that_goes_in_the_middle_is_named(tmp_path: Path, way: str) -> None:
    folder = tmp_path / "log"
    work, ending = WAYS[way]

    async def scenario() -> None:
        disk = Disk()
        log = make_log(folder, disk)
        await log.open()
        await append_all(log, range(3))

        def move() -> None:
            folder.rename(tmp_path / "away")

        disk.meanwhile, disk.ending = move, ending
        with pytest.raises(TierUnavailableError, match=f"folder is not at {folder} any more"):
            await work(log)
        assert not folder.exists()
        await log.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("way", ["truncate, looking at the frame", "read"])
def test_a_file_that_a_later_owner_removed_in_the_middle_is_reported_as_that_owner(
    tmp_path: Path, way: str
) -> None:
    work, ending = WAYS[way]

    async def scenario() -> None:
        disk = Disk()
        log = make_log(tmp_path, disk)
        await log.open()
        # One group: no later one proves it durable, so the later owner takes it over.
        await append_all(log, range(1))
        later = LogFolder(str(tmp_path), 0, OsDisk(), "later")

        def follow() -> None:
            (tmp_path / "LOCK").unlink()
            later.open(FILE_BYTES)

        disk.meanwhile, disk.ending = follow, ending
        with pytest.raises(NotPrimaryError):
            await work(log)
        await log.close()
        later.close()

    asyncio.run(scenario())
