from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from segmentstore import (
    AppendTooLargeError,
    AttributeUpdate,
    BadAttributeUpdateError,
    BadOffsetError,
    EndOfSegmentError,
    InvalidArgumentError,
    InvalidNameError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStore,
    SegmentTruncatedError,
    UpdateType,
)
from tests.store.harness import attribute, open_lazy, open_tiny, read_all, run, until


def waiting_readers(store: SegmentStore) -> int:
    return sum(container.read_index.statistics().readers_waiting for container in store._containers)


class TestCreateAndList:
    def test_a_new_segment_is_empty_and_open(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                before = datetime.now(UTC)
                info = await store.create_segment("logs/web-1")
                assert (info.name, info.start_offset, info.length, info.storage_length) == ("logs/web-1", 0, 0, 0)
                assert not info.sealed
                assert not info.sealed_in_storage
                assert info.container_id == 0
                assert abs((info.created - before).total_seconds()) < 10
                assert info.created.tzinfo is UTC
                assert info == await store.get_info("logs/web-1")
                assert await store.read("logs/web-1", 0, 10) == b""

        run(main())

    def test_a_name_is_taken_once(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                results = await asyncio.gather(*(store.create_segment("x") for _ in range(5)), return_exceptions=True)
                assert [type(result) for result in results].count(SegmentExistsError) == 4

        run(main())

    @pytest.mark.parametrize("name", ["", "x" * 1025, "é" * 513, "a\nb", "a\x00", "a\x7f", "\ud800", 7, None, b"x"])
    def test_names_that_are_none(self, tmp_path: Path, name: str) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                with pytest.raises(InvalidNameError) as caught:
                    await store.create_segment(name)
                assert caught.value.name == name
                for call in (store.get_info, store.seal, store.delete, store.get_attributes):
                    with pytest.raises(InvalidNameError):
                        await call(name)
                with pytest.raises(InvalidNameError):
                    await store.append(name, b"x")
                with pytest.raises(InvalidNameError):
                    await store.read(name, 0, 1)

        run(main())

    @pytest.mark.parametrize("name", ["x" * 1024, "é" * 512, "日志/网络", " ", "a/../b", "🦫", "%2f#?"])
    def test_unusual_names_live_through_a_restart(self, tmp_path: Path, name: str) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment(name)
                await store.append(name, b"data")
                await store.flush()
                await store.checkpoint()
            async with open_tiny(tmp_path / "s") as store:
                assert [info.name async for info in store.list_segments()] == [name]
                assert await read_all(store, name) == b"data"

        run(main())

    def test_listing_is_sorted_and_by_prefix(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s", containers=3) as store:
                for name in ("b/2", "a/1", "b/1", "c", "b"):
                    await store.create_segment(name)
                await store.delete("c")
                assert [info.name async for info in store.list_segments()] == ["a/1", "b", "b/1", "b/2"]
                assert [info.name async for info in store.list_segments("b/")] == ["b/1", "b/2"]
                assert [info.name async for info in store.list_segments("z")] == []

        run(main())


class TestAppend:
    def test_pipelined_appends_land_in_the_order_of_the_calls(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                pieces = [b"<%d>" % number for number in range(500)]
                futures = [store.append("x", piece) for piece in pieces]
                assert all(isinstance(future, asyncio.Future) for future in futures)
                offsets = await asyncio.gather(*futures)
                assert offsets == [len(b"".join(pieces[:number])) for number in range(500)]
                assert await read_all(store, "x") == b"".join(pieces)

        run(main())

    @pytest.mark.parametrize("length", [0, 1, 127, 128, 199, 200, 201, 400, 1000, 4096])
    def test_sizes_around_and_above_a_frame(self, tmp_path: Path, length: int) -> None:
        async def main() -> None:
            data = bytes(number % 253 for number in range(length))
            async with open_lazy(tmp_path / "s") as store:
                await store.create_segment("x")
                futures = [store.append("x", piece) for piece in (b"ab", data, b"c")]
                offsets = await asyncio.gather(*futures)
                assert offsets == [0, 2, 2 + length]
                assert await read_all(store, "x") == b"ab" + data + b"c"
            async with open_lazy(tmp_path / "s") as store:
                assert await read_all(store, "x") == b"ab" + data + b"c"
                await store.flush()
                assert await read_all(store, "x") == b"ab" + data + b"c"

        run(main())

    def test_too_large_is_refused_and_changes_nothing(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                for future in (store.append("x", bytes(4097)), store.append_batch("x", [bytes(4000), bytes(97)])):
                    with pytest.raises(AppendTooLargeError) as caught:
                        await future
                    assert (caught.value.length, caught.value.length_max) == (4097, 4096)
                assert (await store.get_info("x")).length == 0

        run(main())

    def test_any_buffer_is_taken_as_it_was_at_the_call(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                buffer = bytearray(b"one")
                first = store.append("x", buffer)  # type: ignore[arg-type] # a bytearray is taken as well
                buffer[:] = b"TWO"
                second = store.append("x", memoryview(buffer)[1:])  # type: ignore[arg-type]
                await asyncio.gather(first, second)
                assert await read_all(store, "x") == b"oneWO"

        run(main())

    @pytest.mark.parametrize("data", ["text", None, 7, [b"x"]])
    def test_what_is_not_bytes_is_refused_through_the_future(self, tmp_path: Path, data: bytes) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                future = store.append("x", data)
                with pytest.raises(InvalidArgumentError):
                    await future
                with pytest.raises(InvalidArgumentError):
                    await store.append_batch("x", [data])

        run(main())

    def test_a_batch_is_contiguous_among_many_callers(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")

                async def caller(mark: bytes) -> None:
                    for _ in range(20):
                        await store.append_batch("x", [mark] * 7)

                await asyncio.gather(*(caller(bytes([65 + number])) for number in range(10)))
                data = await read_all(store, "x")
                assert len(data) == 10 * 20 * 7
                assert all(len(set(data[start : start + 7])) == 1 for start in range(0, len(data), 7))

        run(main())

    def test_an_empty_batch_and_an_empty_append_are_legal(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                assert await store.append_batch("x", []) == 0
                assert await store.append("x", b"") == 0
                assert await store.append("x", b"a") == 0
                assert await store.append("x", b"", expected_offset=1) == 1
                await store.flush()
            async with open_tiny(tmp_path / "s") as store:
                assert await read_all(store, "x") == b"a"

        run(main())

    def test_a_condition_that_does_not_hold(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                calls = [(b"abc", 0), (b"no", 0), (b"def", 3), (b"no", 7)]
                futures = [store.append("x", data, expected_offset=offset) for data, offset in calls]
                results = await asyncio.gather(*futures, return_exceptions=True)
                assert results[0::2] == [0, 3]
                for result, given, there in ((results[1], 0, 3), (results[3], 7, 6)):
                    assert isinstance(result, BadOffsetError)
                    assert (result.name, result.expected, result.actual) == ("x", given, there)
                assert await read_all(store, "x") == b"abcdef"

        run(main())

    @pytest.mark.parametrize("offset", [-1, 2**63, 1.5, "0", True])
    def test_an_expected_offset_that_is_none(self, tmp_path: Path, offset: int) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                with pytest.raises(InvalidArgumentError):
                    await store.append("x", b"", expected_offset=offset)

        run(main())

    def test_attributes_are_checked_before_the_offset(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x", [AttributeUpdate(attribute(1), UpdateType.REPLACE, 5)])
                bad = [AttributeUpdate(attribute(1), UpdateType.NONE, 6)]
                with pytest.raises(BadAttributeUpdateError):
                    await store.append("x", b"", expected_offset=99, attributes=bad)

        run(main())

    def test_a_cancelled_append_does_not_disturb_its_neighbours(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                futures = [store.append("x", b"%d" % number) for number in range(6)]
                futures[3].cancel()
                await asyncio.gather(*futures, return_exceptions=True)
                assert await read_all(store, "x") in {b"01245", b"012345"}
                assert await store.append("x", b"!") == (await store.get_info("x")).length - 1

        run(main())


class TestRead:
    def test_every_offset_and_length_from_everywhere(self, tmp_path: Path) -> None:
        """Half in Tier 2, half not; then everything in Tier 2 and nothing in memory."""

        async def main() -> None:
            data = bytes(number % 251 for number in range(700))
            async with open_lazy(tmp_path / "s", tail_bytes_max=100) as store:
                await store.create_segment("x")
                await store.append("x", data[:390])
                await store.flush("x")
                await store.append("x", data[390:])
                await check(store)
            async with open_lazy(tmp_path / "s") as store:
                await check(store)
                await store.flush()
                await store.checkpoint()
            async with open_lazy(tmp_path / "s") as store:
                await check(store)

        async def check(store: SegmentStore) -> None:
            data = bytes(number % 251 for number in range(700))
            for offset in [*range(0, 700, 23), 389, 390, 391, 699]:
                for length in (1, 15, 64, 65, 1000):
                    got = await store.read("x", offset, length)
                    assert 1 <= len(got) <= length
                    assert got == data[offset : offset + len(got)]

        run(main())

    def test_outside_of_the_segment(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                await store.append("x", b"0123456789")
                with pytest.raises(BadOffsetError) as beyond:
                    await store.read("x", 11, 1)
                assert (beyond.value.expected, beyond.value.actual) == (11, 10)
                await store.truncate("x", 4)
                with pytest.raises(SegmentTruncatedError) as below:
                    await store.read("x", 3, 1)
                assert below.value.start_offset == 4
                assert await store.read("x", 4, 100) == b"456789"
                assert await store.read("x", 10, 1) == b""
                assert await store.read("x", 10, 1, wait=0) == b""
                await store.seal("x")
                with pytest.raises(EndOfSegmentError) as end:
                    await store.read("x", 10, 1)
                assert end.value.length == 10
                assert await store.read("x", 9, 5) == b"9"

        run(main())

    @pytest.mark.parametrize(
        ("offset", "length", "wait"),
        [(-1, 1, None), (0, 0, None), (0, -5, None), (0, 1, -1), (0.0, 1, None), (0, 1, "1")],
    )
    def test_arguments_that_are_none(self, tmp_path: Path, offset: int, length: int, wait: float | None) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                with pytest.raises(InvalidArgumentError):
                    await store.read("x", offset, length, wait)

        run(main())


class TestTail:
    """A read at the tail waits, and is woken by whatever settles what it waits for."""

    def test_the_wait_ends_without_data(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                assert await store.read("x", 0, 10, wait=0.01) == b""
                assert waiting_readers(store) == 0

        run(main())

    def test_woken_by_an_append(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                reads = [asyncio.ensure_future(store.read("x", 0, 10, wait=50)) for _ in range(3)]
                await until(lambda: waiting_readers(store) >= 1)
                await store.append("x", b"")
                await store.append("x", b"now")
                assert await asyncio.gather(*reads) == [b"now"] * 3

        run(main())

    def test_woken_by_seal(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                read = asyncio.ensure_future(store.read("x", 0, 10, wait=50))
                await until(lambda: waiting_readers(store) == 1)
                await store.seal("x")
                with pytest.raises(EndOfSegmentError):
                    await read

        run(main())

    def test_woken_by_delete(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                read = asyncio.ensure_future(store.read("x", 0, 10, wait=50))
                await until(lambda: waiting_readers(store) == 1)
                await store.delete("x")
                with pytest.raises(SegmentNotFoundError):
                    await read

        run(main())

    @pytest.mark.parametrize("content", [b"", b"source"])
    def test_woken_by_merge_on_both_sides(self, tmp_path: Path, content: bytes) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                await store.create_segment("y")
                await store.append("y", content)
                target = asyncio.ensure_future(store.read("x", 0, 10, wait=50))
                source = asyncio.ensure_future(store.read("y", len(content), 10, wait=50))
                await until(lambda: waiting_readers(store) == 2)
                await store.merge("x", "y")
                with pytest.raises(SegmentNotFoundError):
                    await source
                if not content:
                    await store.append("x", b"later")
                assert await target == (content or b"later")

        run(main())

    def test_truncation_to_the_tail_leaves_it_waiting(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                await store.append("x", b"abc")
                read = asyncio.ensure_future(store.read("x", 3, 10, wait=50))
                await until(lambda: waiting_readers(store) == 1)
                await store.truncate("x", 3)
                await store.append("x", b"d")
                assert await read == b"d"

        run(main())

    def test_a_cancelled_wait_leaves_nothing_behind(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                read = asyncio.ensure_future(store.read("x", 0, 10, wait=50))
                await until(lambda: waiting_readers(store) == 1)
                read.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await read
                assert waiting_readers(store) == 0

        run(main())


class TestSealTruncateDelete:
    def test_a_sealed_segment_takes_nothing_more(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                futures = [store.append("x", b"abc"), asyncio.ensure_future(store.seal("x")), store.append("x", b"no")]
                results = await asyncio.gather(*futures, return_exceptions=True)
                assert results[0] == 0
                # The coroutine of `seal` begins a turn later than the appends' own calls.
                assert results[1] in {3, 5}
                length = (await store.get_info("x")).length
                for call in (store.append("x", b""), store.append_batch("x", [b"y"]), store.seal("x")):
                    with pytest.raises(SegmentSealedError):
                        await call
                with pytest.raises(SegmentSealedError):
                    await store.update_attributes("x", [AttributeUpdate(attribute(1), UpdateType.REPLACE, 1)])
                await store.truncate("x", 2)
                await store.flush()
                info = await store.get_info("x")
                assert (info.sealed, info.sealed_in_storage, info.length, info.start_offset) == (True, True, length, 2)
            async with open_tiny(tmp_path / "s") as store:
                assert (await store.get_info("x")).sealed
                with pytest.raises(SegmentSealedError):
                    await store.append("x", b"y")
                await store.delete("x")

        run(main())

    def test_truncation_goes_forward_inside_of_the_segment(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                await store.append("x", bytes(100))
                await store.truncate("x", 0)
                await store.truncate("x", 50)
                await store.truncate("x", 50)
                for offset, there in ((49, 50), (101, 100)):
                    with pytest.raises(BadOffsetError) as caught:
                        await store.truncate("x", offset)
                    assert (caught.value.expected, caught.value.actual) == (offset, there)
                with pytest.raises(InvalidArgumentError):
                    await store.truncate("x", -1)
                await store.truncate("x", 100)
                assert await store.append("x", b"on") == 100
                assert await read_all(store, "x", 100) == b"on"

        run(main())

    def test_truncated_and_deleted_objects_leave_tier2(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                for _ in range(10):
                    await store.append("x", bytes(200))
                    await store.flush()
                full = len(store._containers[0].metadata.objects)
                await store.truncate("x", 1500)
                await until(lambda: len(objects()) < full)
                assert await read_all(store, "x", 1500) == bytes(500)
                await store.delete("x")
                await until(lambda: not objects())
                # The log says so a moment later.
                await until(lambda: not store._containers[0].metadata.garbage)

        def objects() -> list[str]:
            # os.walk passes over folders that go away meanwhile.
            tree = os.walk(tmp_path / "s" / "tier2")
            return [name for _, _, names in tree for name in names if name.startswith("flush-")]

        run(main())

    def test_a_name_made_again_is_another_segment(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                old = await store.create_segment("x", [AttributeUpdate(attribute(1), UpdateType.REPLACE, 1)])
                await store.append("x", b"old bytes")
                await store.flush()
                reader = store.reader("x", 4)
                writer = store.writer("x", attribute(9))
                await store.delete("x")
                with pytest.raises(SegmentNotFoundError):
                    await store.get_info("x")
                new = await store.create_segment("x")
                assert new.segment_id > old.segment_id
                await store.append("x", b"NEW")
                assert await read_all(store, "x") == b"NEW"
                assert await store.get_attributes("x") == {}
                with pytest.raises(SegmentNotFoundError):
                    await anext(reader)
                with pytest.raises(SegmentNotFoundError):
                    await writer.append(b"event")
                assert await read_all(store, "x") == b"NEW"
            async with open_tiny(tmp_path / "s") as store:
                assert (await store.get_info("x")).segment_id == new.segment_id
                assert await read_all(store, "x") == b"NEW"
                await store.delete("x")
                assert (await store.create_segment("x")).segment_id > new.segment_id

        run(main())

    def test_calls_on_what_is_not_there(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("there")
                calls: list[Callable[[], Awaitable[object]]] = [
                    lambda: store.append("x", b""),
                    lambda: store.append_batch("x", [b""]),
                    lambda: store.read("x", 0, 1),
                    lambda: store.get_info("x"),
                    lambda: store.seal("x"),
                    lambda: store.truncate("x", 0),
                    lambda: store.delete("x"),
                    lambda: store.merge("x", "there"),
                    lambda: store.merge("there", "x"),
                    lambda: store.get_attributes("x"),
                    lambda: store.update_attributes("x", []),
                    lambda: store.update_attributes("x", [AttributeUpdate(attribute(1), UpdateType.REPLACE, 1)]),
                    lambda: store.flush("x"),
                ]
                for call in calls:
                    with pytest.raises(SegmentNotFoundError) as caught:
                        await call()
                    assert caught.value.name == "x"
                with pytest.raises(SegmentNotFoundError):
                    store.reader("x")
                with pytest.raises(SegmentNotFoundError):
                    store.writer("x", attribute(1))

        run(main())
