"""Readers and exactly-once writers, bound to the segment and not to its name."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from segmentstore import (
    ATTRIBUTE_UNSET,
    AppendTooLargeError,
    AttributeUpdate,
    InvalidArgumentError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStore,
    SegmentTruncatedError,
    TooManyAttributesError,
    UpdateType,
)
from tests.store.harness import attribute, open_tiny, read_all, run, until
from tests.store.test_segment_reads import waiting_readers

WRITER = attribute(1)


class TestReader:
    def test_offset_is_where_the_next_chunk_begins(self, tmp_path: Path) -> None:
        async def main() -> None:
            data = bytes(range(250)) * 2
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                await store.append("x", data)
                await store.flush()
                reader = store.reader("x", 17)
                position = 17
                async for chunk in reader:
                    assert isinstance(chunk, bytes)
                    assert chunk == data[position : position + len(chunk)]
                    position += len(chunk)
                    assert reader.offset == position
                assert position == 500
                await store.append("x", b"more")
                assert await anext(reader) == b"more"

        run(main())

    def test_follows_to_the_seal(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")

                async def follow() -> bytes:
                    return b"".join([chunk async for chunk in store.reader("x", follow=True)])

                readers = [asyncio.ensure_future(follow()) for _ in range(3)]
                expected = b""
                for number in range(50):
                    piece = b"<%d>" % number * (number % 7)
                    await store.append("x", piece)
                    expected += piece
                    if number % 10 == 0:
                        await store.flush()
                await store.seal("x")
                assert await asyncio.gather(*readers) == [expected] * 3

        run(main())

    @pytest.mark.parametrize("end", ["delete", "merge"])
    def test_a_follower_of_what_goes_away(self, tmp_path: Path, end: str) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                await store.create_segment("y")
                step = asyncio.ensure_future(anext(store.reader("x", follow=True)))
                await until(lambda: waiting_readers(store) == 1)
                await (store.delete("x") if end == "delete" else store.merge("y", "x"))
                with pytest.raises(SegmentNotFoundError):
                    await step

        run(main())

    def test_overtaken_by_truncation(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                await store.append("x", bytes(300))
                reader = store.reader("x")
                await anext(reader)
                await store.truncate("x", 300)
                with pytest.raises(SegmentTruncatedError) as caught:
                    await anext(reader)
                assert caught.value.start_offset == 300

        run(main())

    def test_bytes_in_hand_stay_right(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                await store.append("x", b"keep " * 100)
                await store.flush()
                chunks = [chunk async for chunk in store.reader("x")]
                await store.create_segment("y")
                for _ in range(20):
                    await store.append("y", b"other" * 50)
                    await store.flush()
                    await read_all(store, "y")
                await store.delete("x")
                assert b"".join(chunks) == b"keep " * 100

        run(main())

    def test_a_closed_store_ends_followers(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await open_tiny(tmp_path / "s")
            await store.create_segment("x")
            step = asyncio.ensure_future(anext(store.reader("x", follow=True)))
            await until(lambda: waiting_readers(store) == 1)
            await store.close()
            from segmentstore import ContainerStoppedError

            with pytest.raises(ContainerStoppedError):
                await step

        run(main())


class TestWriter:
    def test_numbers_go_on_across_sessions_and_restarts(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                async with store.writer("x", WRITER) as writer:
                    assert writer.last_event_number == -1
                    assert await writer.append(b"0") == 0
                    assert await writer.append(b"1") == 1
                    assert writer.last_event_number == 1
                async with store.writer("x", WRITER) as writer:
                    assert writer.last_event_number == 1
                    assert await writer.append(b"2") == 2
                await store.checkpoint()
            async with open_tiny(tmp_path / "s") as store:
                assert await store.get_attributes("x") == {WRITER: 2}
                async with store.writer("x", WRITER) as writer:
                    assert writer.last_event_number == 2
                    assert await writer.append(b"no", 2) is None
                    assert await writer.append(b"no", 0) is None
                    assert await writer.append(b"9", 9) == 3
                    assert await writer.append(b"no", 5) is None
                    assert writer.last_event_number == 9
                    assert await writer.append(b"A") == 4
                assert await read_all(store, "x") == b"0129A"

        run(main())

    def test_two_sessions_of_one_writer_double_nothing(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                sessions = [store.writer("x", WRITER) for _ in range(3)]
                futures = [
                    session.append(b"<%d>" % number, number)
                    for number in range(100)
                    for session in sessions
                ]
                results = await asyncio.gather(*futures)
                assert sum(result is not None for result in results) == 100
                assert await read_all(store, "x") == b"".join(
                    b"<%d>" % number for number in range(100)
                )

        run(main())

    def test_a_repeat_is_acknowledged_no_earlier_than_what_it_repeats(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                writer = store.writer("x", WRITER)
                for number in range(50):
                    first = writer.append(bytes(number * 7), number)
                    second = writer.append(bytes(number * 7), number)
                    order: list[object] = []
                    first.add_done_callback(order.append)
                    second.add_done_callback(order.append)
                    assert await second is None
                    await first
                    await asyncio.sleep(0)
                    assert order == [first, second]

        run(main())

    def test_writers_do_not_know_of_each_other(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")

                async def write(number: int) -> None:
                    async with store.writer("x", attribute(number)) as writer:
                        for event in range(20):
                            await writer.append(b"%02d:%02d;" % (number, event))

                await asyncio.gather(*(write(number) for number in range(1, 9)))
                events = (await read_all(store, "x")).decode().split(";")[:-1]
                for number in range(1, 9):
                    assert [event for event in events if event.startswith(f"{number:02d}")] == [
                        f"{number:02d}:{event:02d}" for event in range(20)
                    ]

        run(main())

    def test_large_events(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                writer = store.writer("x", WRITER)
                await asyncio.gather(
                    *(writer.append(bytes([number]) * 900, number) for number in (0, 1, 1, 2, 0))
                )
                assert await read_all(store, "x") == b"\0" * 900 + b"\1" * 900 + b"\2" * 900
                with pytest.raises(AppendTooLargeError):
                    await writer.append(bytes(4097))

        run(main())

    def test_refusals(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                await store.create_segment("y")
                with pytest.raises(InvalidArgumentError):
                    store.writer("x", "not a UUID")  # type: ignore[arg-type]
                writer = store.writer("x", WRITER)
                for number in (-1, 2**63):
                    with pytest.raises(InvalidArgumentError):
                        await writer.append(b"", number)
                with pytest.raises(InvalidArgumentError):
                    await writer.append("text")  # type: ignore[arg-type]
                await writer.append(b"last", 2**63 - 1)
                with pytest.raises(InvalidArgumentError):
                    await writer.append(b"no number is left")
                await store.seal("x")
                late = store.writer("x", WRITER)
                with pytest.raises(SegmentSealedError):
                    await writer.append(b"", 5)
                await store.merge("y", "x")
                with pytest.raises(SegmentSealedError):
                    await writer.append(b"", 6)
                with pytest.raises(SegmentNotFoundError):
                    await late.append(b"", 6)

        run(main())

    @pytest.mark.parametrize("in_queue", [False, True])
    def test_a_session_ends_with_a_refusal_that_comes_later(
        self, tmp_path: Path, in_queue: bool
    ) -> None:
        """Where an event is packed. What refused it is over by the next one."""

        async def main() -> None:
            other = attribute(2)
            full = AttributeUpdate(other, UpdateType.REPLACE, 1)
            free = AttributeUpdate(other, UpdateType.REPLACE, ATTRIBUTE_UNSET)
            in_flight = 1 if in_queue else 1 << 20
            async with open_tiny(
                tmp_path / "s", attributes_per_segment_max=1, in_flight_bytes_max=in_flight
            ) as store:
                await store.create_segment("x")
                await store.update_attributes("x", [full])
                async with store.writer("x", WRITER) as writer:
                    sent = [store.append("x", bytes(150)) for _ in range(50)]
                    refused = writer.append(b"0")
                    if not in_queue:
                        await asyncio.wait((refused,))
                    freed = asyncio.ensure_future(store.update_attributes("x", [free]))
                    await asyncio.sleep(0)
                    behind = writer.append(b"1")
                    await asyncio.gather(*sent, freed)
                    with pytest.raises(TooManyAttributesError) as caught:
                        await behind
                    assert refused.exception() is caught.value
                async with store.writer("x", WRITER) as writer:
                    assert writer.last_event_number == -1
                    for number in range(2):
                        await writer.append(b"%d" % number)
                assert (await read_all(store, "x")).endswith(b"\x0001")

        run(main())

    def test_resending_everything_after_a_failure_doubles_nothing(self, tmp_path: Path) -> None:
        async def main() -> None:
            events = [b"[%d]" % number * 3 for number in range(200)]
            for attempt in range(5):
                store = await open_tiny(tmp_path / "s")
                if attempt == 0:
                    await store.create_segment("x")
                writer = store.writer("x", WRITER)
                futures = [writer.append(event, number) for number, event in enumerate(events)]
                for _ in range(attempt * 2):
                    await asyncio.sleep(0)
                await store.close()
                await asyncio.gather(*futures, return_exceptions=True)
            async with open_tiny(tmp_path / "s") as store:
                assert await read_all(store, "x") == b"".join(events)

        run(main())


def test_a_writers_number_is_an_attribute_and_merges_do_not_carry_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await both(store)

    async def both(store: SegmentStore) -> None:
        await store.create_segment("t")
        await store.create_segment("s")
        await store.writer("t", WRITER).append(b"t", 3)
        await store.writer("s", WRITER).append(b"s", 8)
        await store.merge("t", "s")
        assert await store.get_attributes("t") == {UUID(int=1): 3}
        assert store.writer("t", WRITER).last_event_number == 3

    run(main())
