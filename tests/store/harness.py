"""Stores as the tests of the public API open them: real files, settings so small that the rare
paths are common.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

import segmentstore
from segmentstore import StoreApi
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.disk import OsDisk, OsFile
from segmentstore.contracts.owned_tasks import owned_tasks
from segmentstore.contracts.runtime import Runtime
from segmentstore.opening import OpeningStore
from segmentstore.store_folder import read_store_file
from tests.support.eager_loop import SPEED, EagerLoop

T = TypeVar("T")

POLL_S = (0.002, 0.01)

TINY: Mapping[str, Any] = {
    "frame_bytes_max": 200,
    "log_file_bytes": 8 * 1024 + 200,
    "checkpoint_operations": 40,
    "checkpoint_bytes": 4096,
    "flush_bytes": 100,
    "flush_age_s": 0.02,
    "object_bytes": 400,
    "upload_bytes_max": 800,
    "unflushed_target_bytes": 1000,
    "extent_bytes": 16,
    "deletion_lag_s": 0.0,
    "piece_bytes": 64,
    "fetched_bytes_max": 128,
    "tail_bytes_max": 200,
    "cache_bytes_max": 64 * 1024,
    "append_bytes_max": 4096,
}
LAZY: Mapping[str, Any] = {
    **TINY,
    "flush_bytes": 400,
    "flush_age_s": 1000.0,
    "unflushed_target_bytes": 1 << 30,
}
"""Tiny, but nothing goes to Tier 2 before it is asked to or a segment has 400 bytes."""
UNFLUSHED: Mapping[str, Any] = {
    **LAZY,
    "flush_bytes": 1 << 20,
    "object_bytes": 1 << 20,
    "upload_bytes_max": 1 << 21,
    "cache_bytes_max": 1 << 20,
    "tail_bytes_max": 1 << 20,
}
"""Tiny, but nothing goes to Tier 2 before it is asked to.

The tail has room for everything: bytes that a late spiller had to drop would be flushed at once.
"""


def open_tiny(
    location: object, *, runtime: Runtime | None = None, **options: object
) -> OpeningStore:
    return segmentstore.open(str(location), runtime=runtime, **{**TINY, **options})


def open_lazy(
    location: object, *, runtime: Runtime | None = None, **options: object
) -> OpeningStore:
    return segmentstore.open(str(location), runtime=runtime, **{**LAZY, **options})


def run(main: Coroutine[Any, Any, T], *, limit_s: float = 240) -> T:
    """`asyncio.run` with a bound below that of a test: a call that hangs fails its test instead of
    the whole run. No machine is so slow that work of seconds takes that long.
    """

    async def bounded() -> T:
        async with asyncio.timeout(limit_s):
            return await main

    return asyncio.run(bounded())


def read_store_id(location: object) -> str:
    """Of the store in a folder, open or not."""
    file = read_store_file(str(location), Runtime())
    assert file is not None, location
    return file.store_id


async def bury() -> None:
    """End the tasks of stores whose process is dead, which cannot close: their calls never
    return.
    """
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0)
    while tasks := owned_tasks():
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def read_all(store: StoreApi, name: str, offset: int = 0) -> bytes:
    return b"".join([chunk async for chunk in store.reader(name, offset)])


def attribute(number: int) -> UUID:
    return UUID(int=number)


Trap = Callable[[str, str], Exception | None]
"""From (call, path) to the error it ends in; None lets it pass."""


class WorldDisk(OsDisk):
    """The operating system's disk without waiting for the device, which can be frozen, copied, and
    made to fail.

    A killed process loses nothing by the missing syncs. Calls come from the adapters' threads;
    every one that changes something passes the gate, so a copy taken behind the gate is the disk at
    one instant.
    """

    def __init__(self) -> None:
        self.gate = threading.RLock()
        self.trap: Trap | None = None
        """Asked before each call."""

    def crash_copy(self, source: object, target: object) -> str:
        """What a SIGKILL now would leave of an open store: its folder, without the throw-away
        cache.
        """
        with self.gate:
            ignored = shutil.ignore_patterns("cache", "*.sock")
            shutil.copytree(str(source), str(target), ignore=ignored)
        return str(target)

    def tier2_away(self) -> None:
        """From now on nothing below a folder `tier2` answers."""
        self.trap = lambda _call, path: (
            OSError(errno.EIO, "away", path) if _is_tier2(path) else None
        )

    def log_sync_fails(self) -> None:
        """From now on no sync of a log file succeeds."""
        self.trap = lambda call, path: (
            OSError(errno.EIO, "broken", path)
            if call == "sync" and f"{os.sep}log{os.sep}" in path
            else None
        )

    def heal(self) -> None:
        self.trap = None

    def reach(self, call: str, path: str) -> None:
        error = self.trap(call, path) if self.trap is not None else None
        if error is not None:
            raise error

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
    ) -> OsFile:
        self.reach("open", path)
        with self.gate:
            file = super().open(path, write=write, create=create, exclusive=exclusive)
        return WorldFile(file._descriptor, self, path)

    def rename(self, source: str, target: str) -> None:
        self.reach("rename", target)
        with self.gate:
            super().rename(source, target)

    def link(self, source: str, target: str) -> None:
        self.reach("link", target)
        with self.gate:
            super().link(source, target)

    def unlink(self, path: str) -> None:
        self.reach("unlink", path)
        with self.gate:
            super().unlink(path)

    def make_directory(self, path: str) -> None:
        with self.gate:
            super().make_directory(path)

    def remove_directory(self, path: str) -> None:
        with self.gate:
            super().remove_directory(path)

    def sync_directory(self, path: str) -> None:
        self.reach("sync_directory", path)


class WorldFile(OsFile):
    def __init__(self, descriptor: int, disk: WorldDisk, path: str) -> None:
        super().__init__(descriptor)
        self._disk = disk
        self._path = path

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._disk.reach("pwrite", self._path)
        with self._disk.gate:
            super().pwrite(buffers, offset)

    def pread(self, offset: int, length: int) -> bytes:
        self._disk.reach("pread", self._path)
        return super().pread(offset, length)

    def truncate(self, length: int) -> None:
        with self._disk.gate:
            super().truncate(length)

    def sync(self) -> None:
        self._disk.reach("sync", self._path)


def _is_tier2(path: str) -> bool:
    return f"{os.sep}tier2{os.sep}" in path or path.endswith(f"{os.sep}tier2")


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until it holds; bounded by the test's own time-out.

    Asked each 2 ms of real time at first, and each 10 ms later: some conditions cost a millisecond.
    """
    speed = SPEED if isinstance(asyncio.get_running_loop(), EagerLoop) else 1.0
    pause_s = POLL_S[0]
    while not condition():
        await asyncio.sleep(pause_s * speed)
        pause_s = min(pause_s * 1.1, POLL_S[1])
