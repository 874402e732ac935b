"""Segments through the public API: create, append, list."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from segmentstore import (
    AppendTooLargeError,
    AttributeUpdate,
    BadAttributeUpdateError,
    BadOffsetError,
    InvalidArgumentError,
    InvalidNameError,
    SegmentExistsError,
    UpdateType,
    segment_listing,
)
from segmentstore.container import segment_scan
from tests.store.harness import attribute, open_lazy, open_tiny, read_all, run


class TestCreateAndList:
    def test_a_new_segment_is_empty_and_open(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                before = datetime.now(UTC)
                info = await store.create_segment("logs/web-1")
                assert (info.name, info.start_offset, info.length, info.storage_length) == (
                    "logs/web-1",
                    0,
                    0,
                    0,
                )
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
                results = await asyncio.gather(
                    *(store.create_segment("x") for _ in range(5)), return_exceptions=True
                )
                assert [type(result) for result in results].count(SegmentExistsError) == 4

        run(main())

    @pytest.mark.parametrize(
        "name", ["", "x" * 1025, "é" * 513, "a\nb", "a\x00", "a\x7f", "\ud800", 7, None, b"x"]
    )
    def test_names_that_are_none(self, tmp_path: Path, name: str) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                with pytest.raises(InvalidNameError) as caught:
                    await store.create_segment(name)
                assert caught.value.name == name
                for call in (store.get_info, store.seal, store.delete, store.get_attributes):
                    with pytest.raises(InvalidNameError):
                        await call(name)
                with pytest.raises(InvalidNameError) as caught:
                    await store.append(name, b"x")
                assert not isinstance(caught.value.__context__, LookupError | TypeError)
                with pytest.raises(InvalidNameError):
                    await store.read(name, 0, 1)

        run(main())

    @pytest.mark.parametrize(
        "name", ["x" * 1024, "é" * 512, "日志/网络", " ", "a/../b", "🦫", "%2f#?"]
    )
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
                assert [info.name async for info in store.list_segments()] == [
                    "a/1",
                    "b",
                    "b/1",
                    "b/2",
                ]
                assert [info.name async for info in store.list_segments("b/")] == ["b/1", "b/2"]
                assert [info.name async for info in store.list_segments("z")] == []

        run(main())

    def test_other_calls_go_on_between_slices_of_a_listing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(segment_scan, "NAMES_OF_A_SLICE", 3)
        monkeypatch.setattr(segment_listing, "LISTED_IN_A_TURN", 2)

        async def main() -> None:
            async with open_tiny(tmp_path / "s", containers=2) as store:
                names = [f"{number * 37 % 100:02}" for number in range(60)]
                await asyncio.gather(*[store.create_segment(name) for name in names])
                turns: list[int] = []

                async def others() -> None:
                    while True:
                        turns.append(len(listed))
                        await asyncio.sleep(0)

                listed: list[str] = []
                beside = asyncio.create_task(others())
                async for info in store.list_segments():
                    listed.append(info.name)
                    if info.name == min(names):
                        # What is created later is not in it, nor is what was deleted.
                        await store.create_segment("99 late")
                        await store.delete(max(names))
                beside.cancel()
                assert listed == sorted(names)[:-1]
                assert turns.count(0) >= 60 // 3 - 2
                assert len({count for count in turns if count}) > 60 // 2 - 2

        run(main())


class TestAppend:
    def test_pipelined_appends_are_committed_in_the_order_of_the_calls(
        self, tmp_path: Path
    ) -> None:
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
                for future in (
                    store.append("x", bytes(4097)),
                    store.append_batch("x", [bytes(4000), bytes(97)]),
                ):
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
                first = store.append("x", buffer)
                buffer[:] = b"TWO"
                second = store.append("x", memoryview(buffer)[1:])
                await asyncio.gather(first, second)
                assert await read_all(store, "x") == b"oneWO"

        run(main())

    @pytest.mark.parametrize("data", ["text", None, 7, [b"x"]])
    def test_what_is_not_bytes_is_refused_through_the_future(
        self, tmp_path: Path, data: bytes
    ) -> None:
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
                assert all(
                    len(set(data[start : start + 7])) == 1 for start in range(0, len(data), 7)
                )

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
                futures = [
                    store.append("x", data, expected_offset=offset) for data, offset in calls
                ]
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
                await store.create_segment(
                    "x", [AttributeUpdate(attribute(1), UpdateType.REPLACE, 5)]
                )
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
