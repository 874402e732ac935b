"""What every ReadHandle must do, wherever the entries lie.

How an implementation joins: subclass `ReadHandleContract`, and give it a world that has one closed
ledger of at least ENTRIES_MIN entries. A world says what bytes they are, opens any number of
handles of it, and can damage an entry and delete the ledger, if there is a way to. One test of the
suite asks a world once; nothing in it is to be changed.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from pathlib import Path
from typing import Any

import pytest

from segmentstore.contracts.errors import DataCorruptionError, InvalidArgumentError
from segmentstore.contracts.ledgers import (
    EntryRangeError,
    LedgerEntry,
    LedgerNotFoundError,
    ReadHandle,
)

ENTRIES_MIN = 40


class HandleWorld(ABC):
    """One closed ledger."""

    entries: list[bytes]
    """Every entry as it was written."""
    batch_bytes_max: int
    """A batch has more only if it is one entry."""

    @abstractmethod
    async def open(self) -> ReadHandle:
        """One more handle of it."""

    async def damage(self, entry: int) -> bool:
        """Change a byte of it where it lies, so that it cannot be read whole.

        False if a world has no way to.
        """
        del entry
        return False

    async def delete(self) -> bool:
        """Delete it, though it is open; False if that cannot be. Then it cannot be read: also by
        handles that are open.
        """
        return False


async def read(
    handle: ReadHandle, first: int, last: int, into: list[bytes] | None = None
) -> list[bytes]:
    """These entries, whose ids are checked; also `into` a list, as far as they come."""
    found: list[bytes] = [] if into is None else into
    async with aclosing(handle.read(first, last)) as batches:
        async for batch in batches:
            assert batch, "an empty batch"
            for entry in batch:
                assert entry.entry_id == first + len(found)
                found.append(bytes(entry.data))
    return found


class ReadHandleContract(ABC):
    """The suite."""

    @abstractmethod
    def make_world(self, tmp_path: Path) -> AbstractAsyncContextManager[HandleWorld]: ...

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run(asyncio.wait_for(coroutine, 240))

    def check(self, tmp_path: Path, scenario: Callable[[HandleWorld], Awaitable[None]]) -> None:
        async def main() -> None:
            async with self.make_world(tmp_path) as world:
                assert len(world.entries) >= ENTRIES_MIN
                await scenario(world)

        self.run(main())

    def test_the_metadata_are_those_of_a_closed_ledger(self, tmp_path: Path) -> None:
        async def scenario(world: HandleWorld) -> None:
            handle, again = await world.open(), await world.open()
            metadata = handle.metadata
            assert handle.ledger_id == again.ledger_id
            assert metadata == again.metadata
            assert metadata.closed
            assert handle.last_entry == metadata.last_entry == len(world.entries) - 1
            assert handle.length == metadata.length == sum(map(len, world.entries))
            assert 1 <= metadata.ack_quorum <= metadata.write_quorum <= metadata.ensemble_size
            assert metadata.ensembles
            assert [ensemble.first_entry for ensemble in metadata.ensembles] == sorted(
                {0, *(ensemble.first_entry for ensemble in metadata.ensembles)}
            )
            for ensemble in metadata.ensembles:
                assert len(ensemble.bookies) == metadata.ensemble_size
            await handle.close()
            await again.close()

        self.check(tmp_path, scenario)

    def test_every_entry_is_read_as_it_was_written(self, tmp_path: Path) -> None:
        async def scenario(world: HandleWorld) -> None:
            handle = await world.open()
            last = handle.last_entry
            assert await read(handle, 0, last) == world.entries
            assert await read(handle, 0, last) == world.entries
            rng = random.Random(23)
            ranges = [(0, 0), (last, last), (last - 1, last), (last - 3, last - 2), (1, last)]
            for _ in range(30):
                first = rng.randint(0, last)
                ranges.append((first, rng.randint(first, min(last, first + 9))))
            for first, end in ranges:
                assert await read(handle, first, end) == world.entries[first : end + 1]
            await handle.close()

        self.check(tmp_path, scenario)

    def test_what_it_has_not_is_refused(self, tmp_path: Path) -> None:
        async def scenario(world: HandleWorld) -> None:
            handle = await world.open()
            last = handle.last_entry
            for bad in ((-1, 0), (0, last + 1), (last + 1, last + 1), (3, 2), (0, -1)):
                with pytest.raises(EntryRangeError, match=f"0 to {last}"):
                    await read(handle, *bad)
            assert await read(handle, last, last) == world.entries[-1:]
            await handle.close()

        self.check(tmp_path, scenario)

    def test_batches_are_bounded_and_their_bytes_stay(self, tmp_path: Path) -> None:
        async def scenario(world: HandleWorld) -> None:
            handle = await world.open()
            kept: list[LedgerEntry] = []
            async for batch in handle.read(0, handle.last_entry):
                size = sum(len(entry.data) for entry in batch)
                assert size <= world.batch_bytes_max or len(batch) == 1
                kept += batch
            await handle.close()
            assert [bytes(entry.data) for entry in kept] == world.entries

        self.check(tmp_path, scenario)

    def test_a_reader_may_leave_before_the_end(self, tmp_path: Path) -> None:
        async def scenario(world: HandleWorld) -> None:
            handle = await world.open()
            for _ in range(3):
                batches = handle.read(0, handle.last_entry)
                (first, *_) = await anext(batches)
                assert bytes(first.data) == world.entries[0]
                await batches.aclose()
            unread = handle.read(0, handle.last_entry)
            await unread.aclose()
            assert await read(handle, 0, handle.last_entry) == world.entries
            await handle.close()

        self.check(tmp_path, scenario)

    def test_readings_do_not_disturb_each_other(self, tmp_path: Path) -> None:
        async def scenario(world: HandleWorld) -> None:
            one, two = await world.open(), await world.open()
            last = one.last_entry
            starts = [(one, 0), (one, last // 2), (two, 0), (two, last)]
            found = await asyncio.gather(*(read(handle, first, last) for handle, first in starts))
            for (_, first), entries in zip(starts, found, strict=True):
                assert entries == world.entries[first:]
            await one.close()
            assert await read(two, 0, last) == world.entries
            await two.close()

        self.check(tmp_path, scenario)

    def test_a_cancelled_reader_harms_no_other(self, tmp_path: Path) -> None:
        async def scenario(world: HandleWorld) -> None:
            handle = await world.open()
            for turns in range(4):
                reader = asyncio.ensure_future(read(handle, 0, handle.last_entry))
                for _ in range(turns):
                    await asyncio.sleep(0)
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)
            assert await read(handle, 0, handle.last_entry) == world.entries
            await handle.close()

        self.check(tmp_path, scenario)

    def test_behind_close_nothing_is_read(self, tmp_path: Path) -> None:
        async def scenario(world: HandleWorld) -> None:
            handle, other = await world.open(), await world.open()
            under_way = handle.read(0, handle.last_entry)
            await anext(under_way)
            await handle.close()
            await handle.close()
            with pytest.raises(InvalidArgumentError) as refused:
                await read(handle, 0, 0)
            assert not isinstance(refused.value, EntryRangeError)
            # A reading that was under way says so, or has been at its end.
            with suppress(InvalidArgumentError):
                async for _ in under_way:
                    pass
            assert handle.last_entry == len(world.entries) - 1
            assert await read(other, 0, 0) == world.entries[:1]
            await other.close()

        self.check(tmp_path, scenario)

    def test_damage_is_named_where_it_is(self, tmp_path: Path) -> None:
        async def scenario(world: HandleWorld) -> None:
            middle = len(world.entries) // 2
            if not await world.damage(middle):
                return
            handle = await world.open()
            assert await read(handle, 0, middle - 1) == world.entries[:middle]
            for first, last in ((middle, middle), (0, handle.last_entry)):
                found: list[bytes] = []
                with pytest.raises(DataCorruptionError):
                    await read(handle, first, last, found)
                assert found == world.entries[first : first + len(found)]
                assert first + len(found) <= middle
            await handle.close()

        self.check(tmp_path, scenario)

    def test_what_was_deleted_is_not_found(self, tmp_path: Path) -> None:
        async def scenario(world: HandleWorld) -> None:
            handle = await world.open()
            assert await read(handle, 0, 0) == world.entries[:1]
            if not await world.delete():
                return
            with pytest.raises(LedgerNotFoundError) as missing:
                await read(handle, 0, handle.last_entry)
            assert missing.value.ledger_id == handle.ledger_id
            await handle.close()

        self.check(tmp_path, scenario)
