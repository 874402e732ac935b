"""What every DurableDataLog must do. Subclass once per implementation and give it a `LogWorld`."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from durablelog.durable_data_log import DurableDataLog, LogAddress
from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    NotPrimaryError,
    SegmentStoreError,
    TierUnavailableError,
)
from tests.contracts.log_world import (
    PAYLOAD_BYTES_MAX,
    LogWorld,
    append_all,
    payload,
    read_all,
    read_payloads,
)
from tests.contracts.retained_parts_contract import RetainedPartsContract

__all__ = [
    "PAYLOAD_BYTES_MAX",
    "DurableDataLogContract",
    "LogWorld",
    "append_all",
    "payload",
    "read_all",
    "read_payloads",
]


def _note(order: list[int], number: int, _future: object) -> None:
    order.append(number)


class DurableDataLogContract(RetainedPartsContract):
    world: LogWorld

    def test_ranges_of_payloads_are_read_by_place(self) -> None:
        async def main() -> None:
            log = await self.opened()
            await append_all(log, range(50))
            frames = await read_all(log)
            places = [frame.payload_address for frame in frames]
            if not log.reads_ranges:
                assert await log.read_ranges([(1, 1, 1)]) == [None]
                assert log.payload_address(frames[0].address) is None
                await log.close()
                return
            wanted = [
                (place + begin, length, crc32c(frame.payload[begin : begin + length]))
                for frame, place in zip(frames, places, strict=True)
                if place is not None
                for begin, length in ((0, len(frame.payload)), (3, 10))
            ]
            assert len(wanted) == 2 * len(frames)
            assert [log.payload_address(frame.address) for frame in frames] == places
            expected = [
                bytes(frame.payload[begin : begin + length])
                for frame in frames
                for begin, length in ((0, len(frame.payload)), (3, 10))
            ]
            assert await log.read_ranges(wanted) == expected
            address, length, checksum = wanted[0]
            beyond = [(address, length, checksum ^ 1), (1 << 62, 1, 0), (address, 1 << 30, 0)]
            assert await log.read_ranges(beyond) == [None, None, None]
            # What is truncated may be there or not, and is never anything else.
            await log.truncate(frames[-1].address)
            await append_all(log, range(50, 100))
            for found, content in zip(await log.read_ranges(wanted), expected, strict=True):
                assert found in (None, content)
            assert (await log.read_ranges(wanted))[-2:] == expected[-2:]
            await log.close()
            with pytest.raises(ContainerStoppedError):
                await log.read_ranges(wanted)

        self.run(main())

    @abstractmethod
    def make_world(self, tmp_path: Path) -> LogWorld: ...

    @pytest.fixture(autouse=True)
    def _world(self, tmp_path: Path) -> None:
        self.world = self.make_world(tmp_path)

    async def opened(self) -> DurableDataLog:
        log = self.world.make_log()
        await log.open()
        return log

    @staticmethod
    def run(coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run(asyncio.wait_for(coroutine, 240))

    def test_a_new_log_is_empty_and_in_epoch_1(self) -> None:
        async def scenario() -> None:
            log = await self.opened()
            assert log.epoch == 1
            assert log.payload_bytes_max == PAYLOAD_BYTES_MAX
            assert await read_all(log) == []
            await log.close()

        self.run(scenario())

    def test_frames_are_read_back_in_order_with_their_parts_joined(self) -> None:
        async def scenario() -> None:
            log = await self.opened()
            addresses = [
                await log.append([b"a", bytearray(b"bc"), memoryview(b"xdx")[1:2]]),
                await log.append([b"e"]),
            ]
            frames = await read_all(log)
            assert [bytes(frame.payload) for frame in frames] == [b"abcd", b"e"]
            assert [frame.address for frame in frames] == addresses
            assert [frame.sequence for frame in frames] == [1, 2]
            assert {frame.epoch for frame in frames} == {1}
            await log.close()

        self.run(scenario())

    def test_many_pipelined_appends_are_acknowledged_in_order(self) -> None:
        async def scenario() -> None:
            log = await self.opened()
            order: list[int] = []
            futures = []
            for number in range(500):
                future = log.append([payload(number)])
                future.add_done_callback(partial(_note, order, number))
                futures.append(future)
            addresses = await asyncio.gather(*futures)
            await asyncio.sleep(0)
            assert order == list(range(500))
            assert addresses == sorted(set(addresses))
            assert await read_payloads(log) == [payload(number) for number in range(500)]
            await log.close()

        self.run(scenario())

    def test_a_cancelled_caller_harms_no_other(self) -> None:
        async def scenario() -> None:
            log = await self.opened()
            futures = [log.append([payload(number)]) for number in range(3)]
            futures[1].cancel()
            await futures[0]
            await futures[2]
            assert await read_payloads(log) == [payload(number) for number in range(3)]
            await log.close()

        self.run(scenario())

    def test_payload_sizes(self) -> None:
        async def scenario() -> None:
            log = await self.opened()
            for bad in ([], [b""], [b"x" * PAYLOAD_BYTES_MAX, b"x"]):
                with pytest.raises(ValueError, match="payload"):
                    _ = log.append(bad)
            largest = bytes(range(200)) * 2
            await log.append([largest])
            await log.append([b"x"])
            assert await read_payloads(log) == [largest, b"x"]
            await log.close()

        self.run(scenario())

    def test_reopening_keeps_frames_raises_the_epoch_and_goes_on_counting(self) -> None:
        async def scenario() -> None:
            for epoch in range(1, 6):
                log = await self.opened()
                assert log.epoch == epoch
                await append_all(log, range((epoch - 1) * 10, epoch * 10))
                await log.close()
            log = await self.opened()
            frames = await read_all(log)
            assert [frame.sequence for frame in frames] == list(range(1, 51))
            assert [bytes(frame.payload) for frame in frames] == [
                payload(number) for number in range(50)
            ]
            assert [frame.epoch for frame in frames] == [1 + number // 10 for number in range(50)]
            assert [frame.address for frame in frames] == sorted(
                {frame.address for frame in frames}
            )
            await log.close()

        self.run(scenario())

    def test_opening_without_appending_changes_nothing_but_the_epoch(self) -> None:
        async def scenario() -> None:
            log = await self.opened()
            await append_all(log, range(5))
            await log.close()
            for epoch in range(2, 7):
                log = await self.opened()
                assert log.epoch == epoch
                assert await read_payloads(log) == [payload(number) for number in range(5)]
                await log.close()

        self.run(scenario())

    def test_reading_from_an_address(self) -> None:
        async def scenario() -> None:
            log = await self.opened()
            addresses = await append_all(log, range(100))
            for first in (0, 1, 37, 99):
                expected = [payload(number) for number in range(first, 100)]
                assert await read_payloads(log, addresses[first]) == expected
            await log.close()

        self.run(scenario())

    def test_the_last_address_is_in_the_last_acknowledged_frame(self) -> None:
        async def scenario() -> None:
            log = await self.opened()
            assert log.last_address() is None
            addresses = await append_all(log, range(100))
            assert log.last_address() == addresses[-1]
            places = [log.place_of(address) for address in addresses]
            assert len(set(places)) in {1, 100}
            await log.truncate(addresses[-1])
            assert log.last_address() == addresses[-1]
            await log.close()
            again = await self.opened()
            last = again.last_address()
            assert last is not None
            # An opening may have copied the frame on.
            assert (await read_all(again))[-1].address <= last
            (later,) = await append_all(again, range(100, 101))
            assert last < later
            assert again.last_address() == later
            await again.close()

        self.run(scenario())

    def test_truncation_moves_the_start_and_survives_reopening(self) -> None:
        async def scenario() -> None:
            log = await self.opened()
            addresses = await append_all(log, range(100))
            for first in (3, 40, 99):
                await log.truncate(addresses[first])
                assert await read_payloads(log) == [payload(number) for number in range(first, 100)]
                assert await read_payloads(log, addresses[0]) == [
                    payload(number) for number in range(first, 100)
                ]
            await log.close()
            log = await self.opened()
            frames = await read_all(log)
            assert [(frame.sequence, bytes(frame.payload)) for frame in frames] == [
                (100, payload(99))
            ]
            await append_all(log, range(100, 102))
            assert [frame.sequence for frame in await read_all(log)] == [100, 101, 102]
            await log.close()

        self.run(scenario())

    def test_a_truncation_at_or_below_the_start_is_ignored_and_one_behind_the_end_refused(
        self,
    ) -> None:
        async def scenario() -> None:
            log = await self.opened()
            addresses = await append_all(log, range(10))
            await log.truncate(addresses[5])
            for address in (addresses[5], addresses[2], LogAddress(0)):
                await log.truncate(address)
            assert len(await read_all(log)) == 5
            with pytest.raises(ValueError, match=r"address|behind"):
                await log.truncate(LogAddress(addresses[9] + 10_000_000))
            await append_all(log, range(10, 12))
            assert len(await read_all(log)) == 7
            await log.close()

        self.run(scenario())

    def test_readers_beside_appends_get_at_least_what_was_acknowledged(self) -> None:
        async def scenario() -> None:
            log = await self.opened()
            acknowledged = 0

            async def reader() -> None:
                while acknowledged < 300:
                    least = acknowledged
                    payloads = await read_payloads(log)
                    assert len(payloads) >= least
                    assert payloads == [payload(number) for number in range(len(payloads))]
                    await asyncio.sleep(0)

            async with asyncio.TaskGroup() as group:
                group.create_task(reader())
                group.create_task(reader())
                for start in range(0, 300, 10):
                    await append_all(log, range(start, start + 10))
                    acknowledged = start + 10
            await log.close()

        self.run(scenario())

    def test_a_reader_survives_a_truncation_behind_its_back(self) -> None:
        async def scenario() -> None:
            log = await self.opened()
            addresses = await append_all(log, range(300))
            batches = log.read()
            seen = [bytes(frame.payload) for frame in await anext(batches)]
            await log.truncate(addresses[299])
            async for batch in batches:
                seen += [bytes(frame.payload) for frame in batch]
            assert seen == [payload(number) for number in range(300)]
            await log.close()

        self.run(scenario())

    def test_opening_fences_the_owner_before(self) -> None:
        async def scenario() -> None:
            old = await self.opened()
            addresses = await append_all(old, range(5))
            await old.check_primary()
            self.world.usurp()
            new = await self.opened()
            assert new.epoch > old.epoch
            await new.check_primary()
            with pytest.raises(NotPrimaryError):
                await old.check_primary()
            for number in (900, 901):
                with pytest.raises(NotPrimaryError):
                    await old.append([payload(number)])
            with pytest.raises(SegmentStoreError):
                await old.truncate(addresses[4])
            assert await read_payloads(new) == [payload(number) for number in range(5)]
            await append_all(new, range(5, 8))
            assert await read_payloads(new) == [payload(number) for number in range(8)]
            await old.close()
            await new.close()
            again = await self.opened()
            assert await read_payloads(again) == [payload(number) for number in range(8)]
            await again.close()

        self.run(scenario())

    def test_an_owner_that_never_wrote_leaves_late_frames_of_the_fenced_one_out(self) -> None:
        async def scenario() -> None:
            old = await self.opened()
            await append_all(old, range(5))
            self.world.usurp()
            new = await self.opened()
            await new.close()
            with pytest.raises(NotPrimaryError):
                await old.append([payload(900)])
            await old.close()
            again = await self.opened()
            assert await read_payloads(again) == [payload(number) for number in range(5)]
            await again.close()

        self.run(scenario())

    def test_a_fenced_owner_cannot_truncate(self) -> None:
        async def scenario() -> None:
            old = await self.opened()
            addresses = await append_all(old, range(5))
            self.world.usurp()
            new = await self.opened()
            with pytest.raises(NotPrimaryError):
                await old.truncate(addresses[3])
            assert len(await read_all(new)) == 5
            await append_all(new, range(5, 6))
            await old.close()
            await new.close()

        self.run(scenario())

    def test_the_first_failure_fails_all_later_appends(self) -> None:
        async def scenario() -> None:
            log = await self.opened()
            await append_all(log, range(1))
            self.world.fail_append_after(1)
            await log.append([payload(1)])
            results = await asyncio.gather(
                *[log.append([payload(9)]) for _ in range(50)], return_exceptions=True
            )
            assert all(isinstance(result, TierUnavailableError) for result in results)
            with pytest.raises(TierUnavailableError):
                await log.append([payload(9)])
            assert log.statistics().frames_in_flight == 0
            await log.close()
            log = await self.opened()
            payloads = await read_payloads(log)
            assert payloads[:2] == [payload(0), payload(1)]
            assert set(payloads[2:]) <= {payload(9)}
            await append_all(log, range(2, 4))
            assert (await read_payloads(log))[-2:] == [payload(2), payload(3)]
            await log.close()

        self.run(scenario())

    def test_closing_resolves_what_is_in_flight(self) -> None:
        async def scenario() -> None:
            log = await self.opened()
            futures = [log.append([payload(number)]) for number in range(100)]
            await log.close()
            results = await asyncio.gather(*futures, return_exceptions=True)
            assert all(isinstance(result, int | ContainerStoppedError) for result in results)
            acknowledged = [result for result in results if isinstance(result, int)]
            assert results[: len(acknowledged)] == acknowledged
            with pytest.raises(ContainerStoppedError):
                await log.append([b"x"])
            log = await self.opened()
            payloads = await read_payloads(log)
            assert len(payloads) >= len(acknowledged)
            assert payloads == [payload(number) for number in range(len(payloads))]
            await log.close()

        self.run(scenario())

    def test_close_is_idempotent_even_at_once_and_before_open(self) -> None:
        async def scenario() -> None:
            never = self.world.make_log()
            await never.close()
            log = await self.opened()
            await asyncio.gather(log.close(), log.close())
            await log.close()
            with pytest.raises(ContainerStoppedError):
                await log.open()
            with pytest.raises(ContainerStoppedError):
                await log.append([b"x"])

        self.run(scenario())

    def test_statistics(self) -> None:
        async def scenario() -> None:
            log = await self.opened()
            futures = [log.append([payload(number, 100)]) for number in range(10)]
            assert log.statistics().frames_in_flight == 10
            assert log.statistics().bytes_in_flight == 1000
            addresses = await asyncio.gather(*futures)
            numbers = log.statistics()
            assert (numbers.epoch, numbers.frames_in_flight, numbers.bytes_in_flight) == (1, 0, 0)
            assert (numbers.frames_appended, numbers.bytes_appended) == (10, 1000)
            assert 1 <= numbers.syncs <= 10
            assert numbers.log_bytes >= 1000
            assert numbers.files >= 1
            await log.truncate(addresses[9])
            assert 100 <= log.statistics().log_bytes <= 200
            await log.close()

        self.run(scenario())
