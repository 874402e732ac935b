"""What every DurableDataLog must do with its sealed parts; part of its contract."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

import pytest

from durablelog.durable_data_log import DurableDataLog, LogAddress, LogFrame
from durablelog.part_frames import PartFrames
from segmentstore.contracts.errors import ContainerStoppedError
from segmentstore.contracts.ledgers import LedgerNotFoundError, ReadHandle
from tests.contracts.log_world import LogWorld, append_all, payload, read_all


async def read_entries(handle: ReadHandle) -> list[bytes]:
    """All entries of a part."""
    return [
        bytes(entry.data) async for batch in handle.read(0, handle.last_entry) for entry in batch
    ]


async def entries_of_parts(log: DurableDataLog) -> dict[int, list[bytes]]:
    """All that is sealed, by number."""
    found: dict[int, list[bytes]] = {}
    for part in log.sealed_parts():
        handle = await log.open_part(part.number)
        found[part.number] = await read_entries(handle)
        await handle.close()
    return found


async def read_by_parts(log: DurableDataLog, container_id: int) -> list[LogFrame]:
    """The frames of all sealed parts, and behind them the others of the log."""
    frames = PartFrames(container_id)
    found: list[LogFrame] = []
    end: LogAddress | None = None
    for part in log.sealed_parts():
        handle = await log.open_part(part.number)
        found += [frame async for batch in frames.read(handle, part.number) for frame in batch]
        await handle.close()
        end = part.end
    async for batch in log.read(end):
        found += frames.follow(batch)
    return found


def contents(frames: list[LogFrame]) -> list[tuple[LogAddress, int, int, bytes]]:
    return [(frame.address, frame.sequence, frame.epoch, bytes(frame.payload)) for frame in frames]


class LogPartsContract(ABC):
    """In `DurableDataLogContract`, which says how to join."""

    world: LogWorld

    @abstractmethod
    async def opened(self) -> DurableDataLog: ...

    @staticmethod
    @abstractmethod
    def run(coroutine: Coroutine[Any, Any, None]) -> None: ...

    async def lived(self, openings: int = 3, appends: int = 30) -> DurableDataLog:
        """An open log with parts of several owners: each append is waited for."""
        number = 0
        for _ in range(openings):
            log = await self.opened()
            for _ in range(appends):
                await log.append([payload(number)])
                number += 1
            await log.close()
        return await self.opened()

    def test_a_log_says_in_which_part_a_frame_lies(self) -> None:
        async def main() -> None:
            log = await self.lived()
            frames = await read_all(log)
            parts = log.sealed_parts()
            assert parts
            for frame in frames:
                number = log.part_of(frame.address)
                inside = [part.number for part in parts if part.first <= frame.address < part.end]
                assert inside in ([number], []), "what is in no sealed part is behind them"
                assert inside or number > parts[-1].number
            await log.close()

        self.run(main())

    def test_sealed_parts_and_what_is_behind_them_are_the_log(self) -> None:
        async def scenario() -> None:
            log = await self.lived()
            await append_all(log, range(900, 1000))
            frames = contents(await read_all(log))
            assert contents(await read_by_parts(log, self.world.container_id)) == frames
            parts = log.sealed_parts()
            assert len(parts) >= 3
            found = await entries_of_parts(log)
            for part in parts:
                entries = found[part.number]
                inside = [frame for frame in frames if part.first <= frame[0] < part.end]
                assert len(inside) == len(entries)
                assert part.length == sum(map(len, entries))
                assert part.sealed_ms > 0
                for (_, _, _, data), entry in zip(inside, entries, strict=True):
                    assert entry.endswith(data)
                    assert len(entry) > len(data)
            for before, after in pairwise(parts):
                assert before.first < before.end <= after.first
                assert before.number < after.number
                assert before.sealed_ms <= after.sealed_ms
            assert len({part.ledger_id for part in parts}) == len(parts)
            await log.close()

        self.run(scenario())

    def test_a_part_is_the_same_for_every_owner(self) -> None:
        async def scenario() -> None:
            log = await self.lived()
            before = await entries_of_parts(log)
            metadata = {}
            for part in log.sealed_parts():
                handle = await log.open_part(part.number)
                assert handle.ledger_id == part.ledger_id
                assert handle.length == part.length
                metadata[part.number] = handle.metadata
                await handle.close()
            self.world.usurp()
            new = await self.opened()
            await append_all(new, range(1000, 1010))
            after = await entries_of_parts(new)
            for number, entries in before.items():
                assert after[number] == entries
                handle = await new.open_part(number)
                assert handle.metadata == metadata[number]
                await handle.close()
            await log.close()
            await new.close()

        self.run(scenario())

    def test_a_part_is_whole_wherever_the_log_is_truncated_in_it(self) -> None:
        async def scenario() -> None:
            log = await self.lived()
            before = await entries_of_parts(log)
            part = log.sealed_parts()[1]
            frames = [frame for frame in await read_all(log) if frame.address < part.end]
            await log.truncate(frames[-2].address)
            assert log.sealed_parts()[0].number == part.number
            assert (await entries_of_parts(log))[part.number] == before[part.number]
            await log.close()
            again = await self.opened()
            first = again.sealed_parts()[0]
            assert first[:-1] == part[:-1]
            assert (await entries_of_parts(again))[first.number] == before[part.number]
            await again.close()

        self.run(scenario())

    def test_a_part_that_is_open_stays_though_the_log_is_truncated_behind_it(self) -> None:
        async def scenario() -> None:
            log = await self.lived()
            before = await entries_of_parts(log)
            part = log.sealed_parts()[0]
            handle, other = await log.open_part(part.number), await log.open_part(part.number)
            assert log.statistics().held_bytes == 0
            await append_all(log, range(1000, 1100))
            await log.truncate((await read_all(log))[-1].address)
            assert part.number not in {left.number for left in log.sealed_parts()}
            with pytest.raises(LedgerNotFoundError):
                await log.open_part(part.number)
            await other.close()
            held = log.statistics().held_bytes
            # In memory a reader holds the frames, and no writer has to wait.
            assert held in {0, part.length}
            assert (log.health() is None) == (not held)
            assert await read_entries(handle) == before[part.number]
            await handle.close()
            assert log.statistics().held_bytes == 0
            assert log.health() is None
            await log.close()

        self.run(scenario())

    def test_parts_of_a_log_that_is_not_open(self) -> None:
        async def scenario() -> None:
            log = await self.lived(appends=5)
            part = log.sealed_parts()[0]
            handle = await log.open_part(part.number)
            under_way = handle.read(0, handle.last_entry)
            await anext(under_way)
            for missing in (0, 1 << 20):
                with pytest.raises(LedgerNotFoundError):
                    await log.open_part(missing)
            await log.close()
            for closed in (log, self.world.make_log()):
                with pytest.raises(ContainerStoppedError):
                    closed.sealed_parts()
                with pytest.raises(ContainerStoppedError):
                    await closed.open_part(part.number)
            with pytest.raises(ContainerStoppedError):
                await read_entries(handle)
            await under_way.aclose()
            await handle.close()

        self.run(scenario())

    def test_a_frame_of_unknown_outcome_is_in_the_parts_once(self) -> None:
        async def scenario() -> None:
            for first in range(0, 40, 10):
                log = await self.opened()
                await log.append([payload(first)])
                self.world.fail_append_after(1)
                await log.append([payload(first + 1)])
                await asyncio.gather(
                    *[log.append([payload(first + 2)]) for _ in range(5)], return_exceptions=True
                )
                await log.close()
            log = await self.opened()
            frames = contents(await read_all(log))
            assert contents(await read_by_parts(log, self.world.container_id)) == frames
            await log.close()

        self.run(scenario())
