"""A store with an archive, as tests of it have it."""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import segmentstore
from durablelog.data_frame import header_length_at, parse_header
from durablelog.data_frame_reader import DataFrameReader
from durablelog.durable_data_log import LogAddress, LogFrame
from durablelog.operation_codec import decode_operation
from segmentstore import SegmentStore
from segmentstore.container.log_archiver import LogArchiver
from segmentstore.contracts.reports import ArchivedEntry
from segmentstore.contracts.runtime import BootTime, Runtime
from tests.store.harness import TINY, WorldDisk, until

DAY_S = 86400.0
ARCHIVING: Mapping[str, Any] = {
    **TINY,
    "flush_age_s": 0.01,
    "offload_above_bytes": 1 << 20,
    "archive_deletion_lag_s": 0.0,
}
MANY = 160


class Clock:
    """Wall time that a test sets forward: files have the system's. Time passes, or it jumps."""

    def __init__(self) -> None:
        self.now_ms = time.time_ns() // 1_000_000
        self._jumped_ms = self.now_ms

    def time_ms(self) -> int:
        self.now_ms += 1
        return self.now_ms

    def boot(self) -> BootTime:
        return BootTime(bytes(16), self.now_ms - self._jumped_ms)

    def pass_s(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)

    def jump_s(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)
        self._jumped_ms += int(seconds * 1000)


class World:
    """One store in a folder, its archive in another."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.disk = WorldDisk()
        self.clock = Clock()
        self.runtime = Runtime(disk=self.disk, clock=self.clock, boot=self.clock.boot)
        self.archive = folder / "archive"
        self.settings = {**ARCHIVING, "archive": self.archive, **settings}

    @asynccontextmanager
    async def open(self, name: str = "s", **settings: object) -> AsyncIterator[SegmentStore]:
        options: Any = {**self.settings, **settings}
        location = self.folder / name
        async with segmentstore.open(location, runtime=self.runtime, **options) as store:
            yield store

    def archive_fails(self) -> None:
        """From now on the folder of the archive refuses everything."""
        self.disk.trap = lambda _call, path: (
            OSError(errno.EIO, "away", path) if f"{os.sep}archive{os.sep}" in path else None
        )

    def objects(self) -> set[str]:
        return {
            path.relative_to(self.archive).as_posix()
            for path in self.archive.rglob("*")
            if path.is_file() and "ledger" in path.name and "~" not in path.as_posix()
        }


def archiver(store: SegmentStore) -> LogArchiver:
    found = store._containers[0]._archiver
    assert found is not None
    return found


def archive_of(store: SegmentStore) -> Any:
    return store._containers[0].metadata.archive


def log_parts(store: SegmentStore) -> list[int]:
    return [part.number for part in store._containers[0]._log.sealed_parts() if part.length]


def is_truncated_to(store: SegmentStore, number: int) -> bool:
    """Whether the log has no part up to this one any more."""
    return log_parts(store)[0] > number


async def fill(store: SegmentStore, name: str = "x", count: int = MANY) -> bytes:
    """Several log files of appends; gives all bytes of the segment."""
    if not [each async for each in store.list_segments(name)]:
        await store.create_segment(name)
    before = (await store.get_info(name)).length
    for number in range(count):
        await store.append(name, b"%07d " % (before // 8 + number) * 20)
    return b"".join(b"%07d " % (before // 8 + number) * 20 for number in range(count))


async def all_archived(store: SegmentStore, *, hot_deleted: bool = False) -> None:
    """The archive has every part that is sealed now."""
    last = max(log_parts(store), default=0)
    await until(
        lambda: (
            (archive_of(store).hot_deleted if hot_deleted else archive_of(store).last_number)
            >= last
        )
    )


async def operations_in(store: SegmentStore) -> list[Any]:
    """Every operation that ends in the archive, read from there alone, with its part's number."""
    place = store._parts.archive
    assert place is not None
    reader, found = DataFrameReader(), []
    async for _, part in archiver(store).lists.parts():
        handle = await place.offloader.read_offloaded(part.ledger_id, part.uid)
        assert (handle.last_entry + 1, handle.length) == (part.entries, part.length)
        async with aclosing(handle.read(0, handle.last_entry)) as batches:
            async for batch in batches:
                for entry_id, data in batch:
                    header = parse_header(memoryview(data), 0)
                    assert header is not None
                    payload = memoryview(data)[header_length_at(memoryview(data), 0) :]
                    address = LogAddress(part.number << 32 | entry_id)
                    frame = LogFrame(address, header.sequence, header.epoch, payload)
                    for record in reader.feed(frame):
                        operation = decode_operation(record.data)
                        found.append((part, record.first_frame_address, operation))
        await handle.close()
    return found


def names_in(store: SegmentStore) -> set[str]:
    """The objects of the parts that are in the archive, few enough for the tail."""
    archive = archive_of(store)
    assert not archive.lists
    return {
        f"{uuid.UUID(bytes=part.uid)}-ledger-{part.ledger_id}{suffix}"
        for part in archive.tail[archive.first :]
        for suffix in ("", "-index")
    }


def names_of(parts: list[ArchivedEntry]) -> set[str]:
    names = [f"{uuid.UUID(part.uid)}-ledger-{part.ledger_id}" for part in parts]
    return {*names, *(f"{name}-index" for name in names)}
