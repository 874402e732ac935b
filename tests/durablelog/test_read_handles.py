"""The parts of logs in files and in memory against the contract of read handles."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from durablelog.data_frame import parse_header
from durablelog.durable_data_log import DurableDataLog
from durablelog.file.file_log import FileLog
from durablelog.file.file_log_view import FileLogView
from durablelog.file.log_layout import FILE_HEADER_LENGTH, split_address
from durablelog.file.part_reading import PIECE_BYTES
from durablelog.memory_data_log import MemoryDataLog, MemoryLogStore
from recovery.harness.simulation.ledger import SimulatedLedgerLog, SimulatedLedgerStore
from segmentstore.contracts.ledgers import ReadHandle
from segmentstore.contracts.paced_reading import PacedReadHandle
from segmentstore.contracts.rate_limiter import RateLimiter
from segmentstore.contracts.runtime import Runtime
from tests.contracts.read_handle_contract import HandleWorld, ReadHandleContract
from tests.harness.fake_process import FakeProcess, fake_world

FRAME_BYTES_MAX = 400_000
SIZES = (1, 100, 5_000, 30_000, 17, 30_001)
LARGE = {30: FRAME_BYTES_MAX}
"""By number: larger than what is read at once."""


async def filled(
    log: DurableDataLog, sizes: Sequence[int] = SIZES, large: Mapping[int, int] = LARGE
) -> None:
    """Frames of all sizes."""
    for number in range(120):
        length = large.get(number % 60, sizes[number % len(sizes)])
        await log.append([bytes([number]) * length])


class PartWorld(HandleWorld):
    """The largest part of a log."""

    batch_bytes_max = PIECE_BYTES

    def __init__(self, log: DurableDataLog) -> None:
        self.log = log
        self.part = max(log.sealed_parts(), key=lambda part: part.length)
        self.number = self.part.number

    async def open(self) -> ReadHandle:
        return await self.log.open_part(self.number)


class FilePartWorld(PartWorld):
    def __init__(self, log: FileLog | FileLogView) -> None:
        super().__init__(log)
        self.path = _path(log, self.number)
        self.places: list[int] = []
        self.entries = []
        data = memoryview(Path(self.path).read_bytes())
        position = FILE_HEADER_LENGTH
        while position < split_address(self.part.end)[1]:
            header = parse_header(data, position)
            assert header is not None
            self.places.append(position)
            self.entries.append(bytes(data[position : position + header.frame_length]))
            position += header.frame_length

    async def damage(self, entry: int) -> bool:
        flip_byte(self.path, self.places[entry] + len(self.entries[entry]) - 1)
        return True

    async def delete(self) -> bool:
        os.unlink(self.path)
        return True


def flip_byte(path: str, offset: int) -> None:
    data = bytearray(Path(path).read_bytes())
    data[offset] ^= 1
    Path(path).write_bytes(data)


def _path(log: FileLog | FileLogView, number: int) -> str:
    return log._folder.path_of(number)


def file_log(folder: Path) -> FileLog:
    return FileLog(str(folder), 0, Runtime(), file_bytes=1 << 23, payload_bytes_max=FRAME_BYTES_MAX)


class TestPartsOfAFileLog(ReadHandleContract):
    def make_world(self, tmp_path: Path) -> AbstractAsyncContextManager[HandleWorld]:
        @asynccontextmanager
        async def world() -> AsyncIterator[HandleWorld]:
            for _ in range(2):
                log = file_log(tmp_path)
                await log.open()
                await filled(log)
                await log.close()
            log = file_log(tmp_path)
            await log.open()
            yield FilePartWorld(log)
            await log.close()

        return world()


class PacedWorld(HandleWorld):
    """Another world's ledger, read through a rate."""

    def __init__(self, inner: HandleWorld) -> None:
        self._inner = inner
        self._limiter = RateLimiter(1 << 40)
        self.entries = inner.entries
        self.batch_bytes_max = inner.batch_bytes_max

    async def open(self) -> ReadHandle:
        return PacedReadHandle(await self._inner.open(), self._limiter)

    async def damage(self, entry: int) -> bool:
        return await self._inner.damage(entry)

    async def delete(self) -> bool:
        return await self._inner.delete()


class TestPacedPartsOfAFileLog(TestPartsOfAFileLog):
    def make_world(self, tmp_path: Path) -> AbstractAsyncContextManager[HandleWorld]:
        @asynccontextmanager
        async def world() -> AsyncIterator[HandleWorld]:
            async with super(TestPacedPartsOfAFileLog, self).make_world(tmp_path) as inner:
                yield PacedWorld(inner)

        return world()


class TestPartsOfAViewedFileLog(ReadHandleContract):
    def make_world(self, tmp_path: Path) -> AbstractAsyncContextManager[HandleWorld]:
        @asynccontextmanager
        async def world() -> AsyncIterator[HandleWorld]:
            for _ in range(2):
                log = file_log(tmp_path)
                await log.open()
                await filled(log)
                await log.close()
            view = FileLogView(str(tmp_path), 0, Runtime())
            await view.open()
            yield FilePartWorld(view)
            await view.close()

        return world()


class MemoryPartWorld(PartWorld):
    """Nothing else has what is in memory: what was appended is what is expected."""

    def __init__(self, log: DurableDataLog, entries: list[bytes]) -> None:
        super().__init__(log)
        self.entries = entries


async def memory_world(
    log: DurableDataLog,
    again: DurableDataLog,
    sizes: Sequence[int] = SIZES,
    large: Mapping[int, int] = LARGE,
) -> MemoryPartWorld:
    await log.open()
    await filled(log, sizes, large)
    await log.close()
    await again.open()
    part = max(again.sealed_parts(), key=lambda part: part.length)
    handle = await again.open_part(part.number)
    entries = [
        bytes(entry.data) async for batch in handle.read(0, handle.last_entry) for entry in batch
    ]
    await handle.close()
    frames = [frame async for batch in again.read(part.first) for frame in batch]
    for frame, entry in zip(frames, entries, strict=False):
        assert entry.endswith(frame.payload)
    return MemoryPartWorld(again, entries)


class TestPartsOfAMemoryLog(ReadHandleContract):
    def make_world(self, tmp_path: Path) -> AbstractAsyncContextManager[HandleWorld]:
        @asynccontextmanager
        async def world() -> AsyncIterator[HandleWorld]:
            store = MemoryLogStore()
            made = await memory_world(MemoryDataLog(store, 0), MemoryDataLog(store, 0))
            yield made
            await made.log.close()

        return world()


class TestPartsOfASimulatedLog(ReadHandleContract):
    process: FakeProcess

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        with fake_world() as world:
            self.process = world.process()
            self.process.run(asyncio.wait_for(coroutine, 240))

    def make_world(self, tmp_path: Path) -> AbstractAsyncContextManager[HandleWorld]:
        @asynccontextmanager
        async def world() -> AsyncIterator[HandleWorld]:
            store = SimulatedLedgerStore()
            log = SimulatedLedgerLog(store, 0, self.process, FRAME_BYTES_MAX)
            again = SimulatedLedgerLog(store, 0, self.process, FRAME_BYTES_MAX)
            made = await memory_world(log, again, sizes=(1, 100, 250, 17), large={})
            yield made
            await made.log.close()

        return world()
