"""What every LedgerStore must do.

Subclass once per implementation and give it a `LedgerWorld` of three bookies.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from durablelog.bookkeeper.ledger_store import (
    EMPTY,
    OK,
    AddResult,
    LedgerError,
    LedgerState,
    LedgerStore,
    LedgerWriter,
    Replication,
)
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.ledgers import DigestType, Ensemble

NO_LEDGER: Final = -25
"""BookKeeper's NoSuchLedgerExistsOnMetadataServer."""
NOT_ENOUGH_BOOKIES: Final = -6
ALL_THREE: Final = Replication(3, 3, 2)


class LedgerWorld(ABC):
    """A cluster of three bookies that outlives its clients."""

    @abstractmethod
    async def connect(self) -> LedgerStore:
        """One more client, ready to use. The test closes it."""


class Results:
    """Listens to one writer, and can be waited for."""

    def __init__(self, writer: LedgerWriter) -> None:
        self.got: list[AddResult] = []
        """One for each entry."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        writer.on_results = self._take

    def _take(self, results: Sequence[AddResult]) -> None:
        for code, entry, entries in results:
            self.got.extend(
                AddResult(code, entry + number if code == OK else entry)
                for number in range(entries)
            )
        reached = [future for count, future in self._waiting if count <= len(self.got)]
        self._waiting = [item for item in self._waiting if item[0] > len(self.got)]
        for future in reached:
            future.set_result(None)

    async def until(self, count: int) -> list[AddResult]:
        """The first `count` results, when they are there."""
        if len(self.got) < count:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((count, future))
            await future
        return self.got[:count]


async def read_all(store: LedgerStore, ledger_id: int, first: int, last: int) -> list[bytes]:
    return [bytes(entry) async for batch in store.read(ledger_id, first, last) for entry in batch]


async def append_all(
    writer: LedgerWriter, results: Results, entries: Sequence[Sequence[Buffer]]
) -> None:
    """Append at once, wait for all; all must be durable and numbered in their order."""
    before = len(results.got)
    for parts in entries:
        writer.append(parts)
    got = (await results.until(before + len(entries)))[before:]
    assert got == [AddResult(OK, before + number) for number in range(len(entries))]


def entry(number: int, length: int = 100) -> bytes:
    return f"{number:08d}".encode().ljust(length, b".")


class LedgerStoreContract(ABC):
    world: LedgerWorld

    @abstractmethod
    def make_world(self, tmp_path: Path) -> LedgerWorld:
        """A world for one test: a new cluster, or one that tests share."""

    @pytest.fixture(autouse=True)
    def _world(self, tmp_path: Path) -> None:
        self.world = self.make_world(tmp_path)

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run(asyncio.wait_for(coroutine, 240))

    def test_entries_are_numbered_from_0_and_their_results_come_in_order(self) -> None:
        async def scenario() -> None:
            store = await self.world.connect()
            writer = await store.create(ALL_THREE, {})
            results = Results(writer)
            await append_all(writer, results, [[entry(number)] for number in range(2000)])
            assert await read_all(store, writer.ledger_id, 0, 1999) == [
                entry(number) for number in range(2000)
            ]
            await writer.close()
            assert len(results.got) == 2000
            await store.close()

        self.run(scenario())

    def test_one_append_after_another(self) -> None:
        async def scenario() -> None:
            store = await self.world.connect()
            writer = await store.create(ALL_THREE, {})
            results = Results(writer)
            for number in range(10):
                await append_all(writer, results, [[entry(number)]])
                assert await read_all(store, writer.ledger_id, number, number) == [entry(number)]
            await writer.close()
            await store.close()

        self.run(scenario())

    def test_entries_of_all_sizes_and_of_many_parts(self) -> None:
        sizes = [
            1,
            2,
            19,
            20,
            21,
            1000,
            65_535,
            65_536,
            65_537,
            300_000,
            (1 << 20) - 1024,
            1 << 20,
            (1 << 20) + 48,
            3,
        ]
        wanted = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
        many = [bytes([number % 251]) * (number % 7) for number in range(4000)]

        async def scenario() -> None:
            store = await self.world.connect()
            writer = await store.create(ALL_THREE, {})
            results = Results(writer)
            mixed: list[Sequence[Buffer]] = [
                [b"", whole[:7], bytearray(whole[7:11]), memoryview(whole)[11:], b""]
                for whole in wanted
            ]
            await append_all(writer, results, [*mixed, many, [b"the end"]])
            expected = [*wanted, b"".join(many), b"the end"]
            await writer.close()
            ledger = await store.describe(writer.ledger_id)
            assert (ledger.last_entry, ledger.length) == (
                len(expected) - 1,
                sum(map(len, expected)),
            )
            other = await self.world.connect()
            assert await read_all(other, writer.ledger_id, 0, len(expected) - 1) == expected
            await other.close()
            await store.close()

        self.run(scenario())

    def test_a_buffer_is_the_callers_again_when_the_result_is_there(self) -> None:
        async def scenario() -> None:
            store = await self.world.connect()
            writer = await store.create(ALL_THREE, {})
            results = Results(writer)
            buffer = bytearray(b"first")
            await append_all(writer, results, [[buffer]])
            buffer[:] = b"other"
            await append_all(writer, results, [[buffer]])
            assert await read_all(store, writer.ledger_id, 0, 1) == [b"first", b"other"]
            await writer.close()
            await store.close()

        self.run(scenario())

    def test_ranges_are_read_as_asked_for(self) -> None:
        async def scenario() -> None:
            store = await self.world.connect()
            writer = await store.create(ALL_THREE, {})
            await append_all(writer, Results(writer), [[entry(number)] for number in range(300)])
            ledger_id = writer.ledger_id
            for closed in (False, True):
                if closed:
                    await writer.close()
                for first, last in ((0, 0), (299, 299), (7, 130), (0, 299), (64, 127), (63, 64)):
                    expected = [entry(number) for number in range(first, last + 1)]
                    assert await read_all(store, ledger_id, first, last) == expected
                for first, last in ((0, -1), (5, 4), (300, 299)):
                    assert await read_all(store, ledger_id, first, last) == []
            await store.close()

        self.run(scenario())

    def test_what_was_read_stays_valid(self) -> None:
        async def scenario() -> None:
            store = await self.world.connect()
            writer = await store.create(ALL_THREE, {})
            await append_all(
                writer, Results(writer), [[entry(number, 5000)] for number in range(200)]
            )
            await writer.close()
            kept = [view async for batch in store.read(writer.ledger_id, 0, 199) for view in batch]
            assert [bytes(view) for view in kept] == [entry(number, 5000) for number in range(200)]
            await store.close()

        self.run(scenario())

    def test_a_reading_may_be_left_in_the_middle_and_several_go_on_beside_each_other(self) -> None:
        async def scenario() -> None:
            store = await self.world.connect()
            writer = await store.create(ALL_THREE, {})
            await append_all(
                writer, Results(writer), [[entry(number, 20_000)] for number in range(300)]
            )
            await writer.close()
            for _ in range(3):
                left = store.read(writer.ledger_id, 0, 299)
                assert bytes((await anext(left))[0]) == entry(0, 20_000)
                await left.aclose()  # type: ignore[attr-defined]
            readings = [
                read_all(store, writer.ledger_id, first, first + 99) for first in range(0, 201, 20)
            ]
            for number, got in enumerate(await asyncio.gather(*readings)):
                assert got == [
                    entry(place, 20_000) for place in range(number * 20, number * 20 + 100)
                ]
            await store.close()

        self.run(scenario())

    def test_reading_past_the_end_of_a_closed_ledger_is_an_error(self) -> None:
        async def scenario() -> None:
            store = await self.world.connect()
            writer = await store.create(ALL_THREE, {})
            await append_all(writer, Results(writer), [[b"only"]])
            await writer.close()
            with pytest.raises(LedgerError):
                await read_all(store, writer.ledger_id, 0, 1)
            await store.close()

        self.run(scenario())

    def test_a_ledger_says_whose_it_is_and_how_it_stands(self) -> None:
        custom = {
            "application": b"segmentstore",
            "store": b"5d0c",
            "container": b"3",
            "epoch": b"\x00\xff\n=\t",
        }

        async def scenario() -> None:
            store = await self.world.connect()
            writer = await store.create(Replication(3, 2, 2), custom)
            ledger = await store.describe(writer.ledger_id)
            assert (ledger.ledger_id, ledger.state) == (writer.ledger_id, LedgerState.OPEN)
            assert ledger.replication == Replication(3, 2, 2)
            assert ledger.custom == custom
            assert len(set(ledger.bookies)) == 3
            assert ledger.ensembles == (Ensemble(0, ledger.bookies),)
            assert ledger.digest_type is DigestType.CRC32C
            created_ms = ledger.created_ms
            assert created_ms > 0
            await append_all(writer, Results(writer), [[b"one"], [b"three"]])
            await writer.close()
            ledger = await store.describe(writer.ledger_id)
            assert ledger.created_ms == created_ms
            assert (ledger.state, ledger.last_entry, ledger.length) == (LedgerState.CLOSED, 1, 8)
            assert ledger.custom == custom
            assert await store.recover(writer.ledger_id) == ledger
            await store.close()

        self.run(scenario())

    def test_an_empty_ledger(self) -> None:
        async def scenario() -> None:
            store = await self.world.connect()
            for closed in (True, False):
                writer = await store.create(ALL_THREE, {})
                if closed:
                    await writer.close()
                ledger = await store.recover(writer.ledger_id)
                assert (ledger.state, ledger.last_entry, ledger.length) == (
                    LedgerState.CLOSED,
                    EMPTY,
                    0,
                )
                assert await store.describe(writer.ledger_id) == ledger
                assert await read_all(store, writer.ledger_id, 0, EMPTY) == []
                await writer.close()
            await store.close()

        self.run(scenario())

    def test_recovering_finds_everything_that_was_ok_and_changes_nothing_the_second_time(
        self,
    ) -> None:
        async def scenario() -> None:
            store, other = await self.world.connect(), await self.world.connect()
            writer = await store.create(ALL_THREE, {})
            await append_all(writer, Results(writer), [[entry(number)] for number in range(50)])
            ledger = await other.recover(writer.ledger_id)
            assert (ledger.state, ledger.last_entry, ledger.length) == (
                LedgerState.CLOSED,
                49,
                5000,
            )
            assert await other.recover(writer.ledger_id) == ledger
            assert await store.recover(writer.ledger_id) == ledger
            assert await read_all(other, writer.ledger_id, 0, 49) == [
                entry(number) for number in range(50)
            ]
            await writer.close()
            assert await store.describe(writer.ledger_id) == ledger
            await other.close()
            await store.close()

        self.run(scenario())

    def test_a_fenced_writer_gets_errors_for_ever_and_what_was_ok_before_is_inside(self) -> None:
        async def scenario() -> None:
            store, other = await self.world.connect(), await self.world.connect()
            writer = await store.create(ALL_THREE, {})
            results = Results(writer)
            sent = 0

            async def stream() -> None:
                nonlocal sent
                while all(result.code == OK for result in results.got):
                    writer.append([entry(sent)])
                    sent += 1
                    await results.until(sent - 32)

            async def fence() -> None:
                await results.until(100)
                await other.recover(writer.ledger_id)

            await asyncio.gather(stream(), fence())
            for number in range(sent, sent + 5):
                writer.append([entry(number)])
            await results.until(sent + 5)
            codes = [result.code for result in results.got]
            assert len(codes) == sent + 5
            good = codes.index(next(code for code in codes if code != OK))
            assert OK not in codes[good:]
            assert [result.entry for result in results.got[:good]] == list(range(good))
            ledger = await other.describe(writer.ledger_id)
            assert ledger.state is LedgerState.CLOSED
            assert 100 <= good <= ledger.last_entry + 1 <= sent
            found = await read_all(other, writer.ledger_id, 0, ledger.last_entry)
            assert found == [entry(number) for number in range(ledger.last_entry + 1)]
            await writer.close()
            assert await other.describe(writer.ledger_id) == ledger
            await other.close()
            await store.close()

        self.run(scenario())

    def test_a_client_fences_its_own_writer_too(self) -> None:
        async def scenario() -> None:
            store = await self.world.connect()
            writer = await store.create(ALL_THREE, {})
            results = Results(writer)
            await append_all(writer, results, [[b"before"]])
            assert (await store.recover(writer.ledger_id)).last_entry == 0
            writer.append([b"after"])
            assert (await results.until(2))[1].code != OK
            assert (await store.recover(writer.ledger_id)).last_entry == 0
            await writer.close()
            await store.close()

        self.run(scenario())

    def test_closing_seals_what_was_ok_and_silences_the_rest(self) -> None:
        async def scenario() -> None:
            store = await self.world.connect()
            writer = await store.create(ALL_THREE, {})
            results = Results(writer)
            await append_all(writer, results, [[entry(number)] for number in range(10)])
            for number in range(10, 200):
                writer.append([entry(number)])
            closing = asyncio.gather(writer.close(), writer.close())
            await closing
            heard = len(results.got)
            ledger = await store.recover(writer.ledger_id)
            assert heard <= ledger.last_entry + 1 <= 200
            found = await read_all(store, writer.ledger_id, 0, ledger.last_entry)
            assert found == [entry(number) for number in range(ledger.last_entry + 1)]
            await writer.close()
            assert len(results.got) == heard
            await store.close()

        self.run(scenario())

    def test_ledgers_of_one_client_do_not_mix(self) -> None:
        async def scenario() -> None:
            store = await self.world.connect()
            writers = [
                await store.create(ALL_THREE, {"number": str(number).encode()})
                for number in range(4)
            ]
            assert len({writer.ledger_id for writer in writers}) == 4
            results = [Results(writer) for writer in writers]
            for number in range(100):
                for place, writer in enumerate(writers):
                    writer.append([entry(number * 10 + place)])
            for place, writer in enumerate(writers):
                assert await results[place].until(100) == [
                    AddResult(OK, number) for number in range(100)
                ]
                await writer.close()
            for place, writer in enumerate(writers):
                found = await read_all(store, writer.ledger_id, 0, 99)
                assert found == [entry(number * 10 + place) for number in range(100)]
            await store.close()

        self.run(scenario())

    def test_deleting(self) -> None:
        async def scenario() -> None:
            store, other = await self.world.connect(), await self.world.connect()
            kept, writer = await store.create(ALL_THREE, {}), await store.create(ALL_THREE, {})
            await append_all(writer, Results(writer), [[b"x"]])
            await writer.close()
            await other.delete(writer.ledger_id)
            await other.delete(writer.ledger_id)
            for gone in (store.recover, store.describe):
                with pytest.raises(LedgerError) as failure:
                    await gone(writer.ledger_id)
                assert failure.value.code == NO_LEDGER
            with pytest.raises(LedgerError) as failure:
                await read_all(store, writer.ledger_id, 0, 0)
            assert failure.value.code == NO_LEDGER
            ids = await store.list_ids()
            assert kept.ledger_id in ids
            assert writer.ledger_id not in ids
            await writer.close()
            await kept.close()
            await other.close()
            await store.close()

        self.run(scenario())

    def test_deleting_under_a_writer_leaves_nothing_that_can_be_recovered(self) -> None:
        async def scenario() -> None:
            store, other = await self.world.connect(), await self.world.connect()
            writer = await store.create(ALL_THREE, {})
            await append_all(writer, Results(writer), [[b"x"]])
            await other.recover(writer.ledger_id)
            await other.delete(writer.ledger_id)
            await writer.close()
            with pytest.raises(LedgerError) as failure:
                await store.recover(writer.ledger_id)
            assert failure.value.code == NO_LEDGER
            await other.close()
            await store.close()

        self.run(scenario())

    def test_a_reader_without_the_log_sees_and_reads_what_is_acknowledged_and_disturbs_no_owner(
        self,
    ) -> None:
        async def scenario() -> None:
            store, other = await self.world.connect(), await self.world.connect()
            writer = await store.create(ALL_THREE, {})
            results = Results(writer)
            assert await other.confirmed(writer.ledger_id) == EMPTY
            for count in (1, 20):
                before = len(results.got)
                await append_all(
                    writer, results, [[entry(before + number)] for number in range(count)]
                )
                # The writer is idle from here on: it confirms to the bookies by itself.
                while (last := await other.confirmed(writer.ledger_id)) != len(results.got) - 1:
                    assert EMPTY <= last < len(results.got)
                assert await read_all(other, writer.ledger_id, 0, last) == [
                    entry(number) for number in range(last + 1)
                ]
            assert (await other.describe(writer.ledger_id)).state is LedgerState.OPEN
            await append_all(writer, results, [[entry(21)]])
            await writer.close()
            assert await other.confirmed(writer.ledger_id) == 21
            await other.delete(writer.ledger_id)
            with pytest.raises(LedgerError) as failure:
                await other.confirmed(writer.ledger_id)
            assert failure.value.code == NO_LEDGER
            await other.close()
            await store.close()

        self.run(scenario())

    def test_ledgers_are_listed_in_ascending_order(self) -> None:
        async def scenario() -> None:
            store = await self.world.connect()
            ours = []
            for _ in range(5):
                writer = await store.create(ALL_THREE, {})
                ours.append(writer.ledger_id)
                await writer.close()
            ids = list(await store.list_ids())
            assert ids == sorted(set(ids))
            assert set(ours) <= set(ids)
            await store.close()

        self.run(scenario())

    def test_too_few_bookies_is_said(self) -> None:
        async def scenario() -> None:
            store = await self.world.connect()
            with pytest.raises(LedgerError) as failure:
                await store.create(Replication(9, 9, 9), {})
            assert failure.value.code == NOT_ENOUGH_BOOKIES
            writer = await store.create(Replication(1, 1, 1), {})
            await append_all(writer, Results(writer), [[b"one copy"]])
            await writer.close()
            await store.close()

        self.run(scenario())

    def test_closing_the_client_fails_its_writers_and_seals_nothing(self) -> None:
        async def scenario() -> None:
            store, other = await self.world.connect(), await self.world.connect()
            writer = await store.create(ALL_THREE, {})
            results = Results(writer)
            await append_all(writer, results, [[b"durable"]])
            await store.close()
            await store.close()
            writer.append([b"too late"])
            assert (await results.until(2))[1].code != OK
            await writer.close()
            for call in (
                store.create(ALL_THREE, {}),
                store.recover(writer.ledger_id),
                store.list_ids(),
            ):
                with pytest.raises(LedgerError):
                    await call
            assert (await other.describe(writer.ledger_id)).state is LedgerState.OPEN
            assert (await other.recover(writer.ledger_id)).last_entry == 0
            await other.close()

        self.run(scenario())
