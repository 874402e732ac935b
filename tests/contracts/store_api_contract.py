"""What every store promises a program that changes it, wherever it is. Subclass it once for each
way to have one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from segmentstore import (
    AppendTooLargeError,
    AttributeUpdate,
    BadAttributeUpdateError,
    BadOffsetError,
    ContainerMismatchError,
    EndOfSegmentError,
    InvalidArgumentError,
    InvalidNameError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStoreError,
    SegmentTruncatedError,
    StoreApi,
    UpdateType,
)
from tests.contracts.store_api_world import WRITER, A, B, StoreApiWorld, all_of, put
from tests.store.harness import run


class StoreApiContract(StoreApiWorld):
    """Segments, appends, exactly-once writers."""

    # --- segments ---------------------------------------------------------------------------------

    def test_a_new_segment(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with self.open_api(tmp_path / "s") as (store, embedded):
                info = await store.create_segment("logs/a", [put(A, 5)])
                assert (info.name, info.length, info.sealed) == ("logs/a", 0, False)
                assert info == await store.get_info("logs/a") == await embedded.get_info("logs/a")
                assert await store.get_attributes("logs/a") == {A: 5}
                assert store.store_id == embedded.store_id
                with pytest.raises(SegmentExistsError) as caught:
                    await store.create_segment("logs/a")
                assert caught.value.name == "logs/a"

        run(main())

    @pytest.mark.parametrize("name", ["", "x" * 1025, "é" * 513, "a\nb", "\ud800", 7, None])
    def test_names_that_are_none(self, tmp_path: Path, name: Any) -> None:
        async def body(store: StoreApi) -> None:
            for call in (store.create_segment, store.get_info, store.seal, store.delete):
                with pytest.raises(InvalidNameError) as caught:
                    await call(name)
                assert caught.value.name == name
            with pytest.raises(InvalidNameError):
                await store.append(name, b"x")
            with pytest.raises(InvalidNameError):
                await store.read(name, 0, 1)

        self.check(tmp_path, body)

    @pytest.mark.parametrize("name", ["x" * 1024, "é" * 512, "日志", " ", "a/../b", "🦫"])
    def test_unusual_names(self, tmp_path: Path, name: str) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment(name)
            assert await store.append(name, b"data") == 0
            assert [info.name async for info in store.list_segments()] == [name]
            assert await all_of(store, name) == b"data"

        self.check(tmp_path, body)

    def test_a_listing_is_by_name_and_prefix(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            names = [f"b/{number:03}" for number in range(60)]
            await asyncio.gather(*(store.create_segment(name) for name in ["a", *names, "c"]))
            assert [info.name async for info in store.list_segments()] == ["a", *names, "c"]
            assert [info.name async for info in store.list_segments("b/")] == names
            assert [info.name async for info in store.list_segments("z")] == []
            with pytest.raises(InvalidArgumentError):
                [info async for info in store.list_segments(7)]  # type: ignore[arg-type]

        self.check(tmp_path, body, containers=3)

    def test_seal_truncate_and_delete(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            await store.append("x", bytes(100))
            await store.truncate("x", 40)
            with pytest.raises(SegmentTruncatedError) as truncated:
                await store.read("x", 39, 1)
            assert truncated.value.start_offset == 40
            with pytest.raises(BadOffsetError) as bad:
                await store.truncate("x", 101)
            assert (bad.value.expected, bad.value.actual) == (101, 100)
            assert await store.seal("x") == 100
            with pytest.raises(SegmentSealedError):
                await store.append("x", b"more")
            with pytest.raises(SegmentSealedError):
                await store.seal("x")
            with pytest.raises(EndOfSegmentError) as end:
                await store.read("x", 100, 1)
            assert end.value.length == 100
            await store.delete("x")
            for call in (store.get_info, store.delete, store.seal, store.get_attributes):
                with pytest.raises(SegmentNotFoundError, match="'x' does not exist"):
                    await call("x")

        self.check(tmp_path, body)

    def test_merges(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            for name in ("t", "a", "b", "c"):
                await store.create_segment(name)
                await store.append(name, name.encode() * 3)
            merged = await store.merge("t", "a", [put(A, 1)])
            assert (merged.offset, merged.length) == (3, 6)
            assert await store.merge_batch("t", ["b", "gone", "c"]) == [9, 9, 12]
            assert await store.merge_batch("t", []) == []
            assert await all_of(store, "t") == b"tttaaabbbccc"
            assert await store.get_attributes("t") == {A: 1}
            with pytest.raises(SegmentNotFoundError) as missing:
                await store.merge("t", "a")
            assert missing.value.name == "a"
            with pytest.raises(InvalidArgumentError, match="into itself"):
                await store.merge("t", "t")
            await store.create_segment("d")
            condition = AttributeUpdate(A, UpdateType.REPLACE_IF_GREATER, 1)
            with pytest.raises(BadAttributeUpdateError):
                await store.merge("t", "d", [condition])
            with pytest.raises(InvalidArgumentError):
                await store.merge_batch("t", "ab")

        self.check(tmp_path, body)

    def test_a_merge_across_containers(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            homes = {}
            for number in range(20):
                info = await store.create_segment(f"s{number}")
                homes[info.container_id] = info.name
            with pytest.raises(ContainerMismatchError) as caught:
                await store.merge(homes[0], homes[1])
            assert (caught.value.target_container, caught.value.source_container) == (0, 1)

        self.check(tmp_path, body, containers=2)

    # --- appends ----------------------------------------------------------------------------------

    def test_appends_are_in_the_order_of_the_calls(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            for name in ("x", "y"):
                await store.create_segment(name)
            pieces = [b"<%d>" % number * (number % 5) for number in range(300)]
            futures = [store.append("xy"[n % 2], piece) for n, piece in enumerate(pieces)]
            offsets = await asyncio.gather(*futures)
            for parity, name in enumerate("xy"):
                mine = pieces[parity::2]
                assert await all_of(store, name) == b"".join(mine)
                lengths = [sum(map(len, mine[:number])) for number in range(len(mine))]
                assert list(offsets[parity::2]) == lengths

        self.check(tmp_path, body)

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_data_of_all_kinds(self, tmp_path: Path, kind: Callable[[bytes], Any]) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            data = kind(b"hello")
            future = store.append("x", data)
            if isinstance(data, bytearray):
                data[:] = b"other"
            assert await future == 0
            assert await store.append("x", kind(b"")) == 5
            assert await store.append_batch("x", [kind(b"a"), b"", kind(b"bc")]) == 5
            assert await all_of(store, "x") == b"helloabc"

        self.check(tmp_path, body)

    def test_an_expected_offset(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            futures = [store.append("x", b"abc"), store.append("x", b"de", expected_offset=3)]
            assert await asyncio.gather(*futures) == [0, 3]
            with pytest.raises(BadOffsetError) as caught:
                await store.append("x", b"f", expected_offset=3)
            assert (caught.value.expected, caught.value.actual) == (3, 5)
            with pytest.raises(BadOffsetError):
                await store.append_batch("x", [b"f"], expected_offset=0)
            assert await all_of(store, "x") == b"abcde"

        self.check(tmp_path, body)

    def test_attributes_of_an_append(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            await store.append("x", b"abc", attributes=[put(A, 1)])
            condition = AttributeUpdate(A, UpdateType.REPLACE_IF_EQUALS, 2, 7)
            with pytest.raises(BadAttributeUpdateError) as caught:
                await store.append("x", b"def", 0, [put(B, 1), condition])
            assert (caught.value.attribute_id, caught.value.current) == (A, 1)
            assert str(caught.value).endswith("expected 7 (current value: 1)")
            absent = AttributeUpdate(A, UpdateType.REPLACE_IF_EQUALS, 2)
            with pytest.raises(BadAttributeUpdateError, match="expected None"):
                await store.update_attributes("x", [absent])
            assert await store.get_attributes("x") == {A: 1}
            assert (await store.get_info("x")).length == 3

        self.check(tmp_path, body)

    def test_what_is_no_append(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            wrong: Any = "text"
            calls: list[tuple[Callable[[], Awaitable[object]], type[SegmentStoreError]]] = [
                (lambda: store.append("x", wrong), InvalidArgumentError),
                (lambda: store.append("x", b"x", -1), InvalidArgumentError),
                (lambda: store.append("x", b"x", attributes=wrong), InvalidArgumentError),
                (lambda: store.append_batch("x", wrong), InvalidArgumentError),
                (lambda: store.append("x", bytes(4097)), AppendTooLargeError),
                (lambda: store.append("gone", b"x"), SegmentNotFoundError),
            ]
            # All on their way together: none disturbs another.
            made = [(call(), error) for call, error in calls]
            for future, error in made:
                with pytest.raises(error):
                    await future
            assert await store.append("x", bytes(4096)) == 0

        self.check(tmp_path, body)

    def test_many_large_appends_at_once(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            pieces = [bytes([number]) * 4096 for number in range(6)]
            offsets = await asyncio.gather(*(store.append("x", piece) for piece in pieces))
            assert list(offsets) == [number * 4096 for number in range(6)]
            assert await all_of(store, "x") == b"".join(pieces)

        self.check(tmp_path, body)

    # --- exactly-once writers ---------------------------------------------------------------------

    def test_a_writer_and_its_resends(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            async with store.writer("x", WRITER) as writer:
                assert (writer.writer_id, writer.last_event_number) == (WRITER, -1)
                futures = [writer.append(b"<%d>" % number) for number in range(20)]
                assert writer.last_event_number == 19
                offsets = await asyncio.gather(*futures)
            async with store.writer("x", WRITER) as writer:
                assert writer.last_event_number == 19
                again = [writer.append(b"<%d>" % number, number) for number in range(25)]
                assert await asyncio.gather(*again[:20]) == [None] * 20
                assert None not in await asyncio.gather(*again[20:])
            data = b"".join(b"<%d>" % number for number in range(25))
            assert await all_of(store, "x") == data
            assert offsets == [data.index(b"<%d>" % number) for number in range(20)]
            assert (await store.get_attributes("x"))[WRITER] == 24

        self.check(tmp_path, body)

    def test_a_writer_ends_with_its_first_refusal(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            async with store.writer("x", WRITER) as writer:
                assert await writer.append(b"a") == 0
                await store.seal("x")
                for _ in range(2):
                    with pytest.raises(SegmentSealedError):
                        await writer.append(b"b")

        self.check(tmp_path, body)

    def test_what_is_no_event(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            with pytest.raises(InvalidArgumentError):
                store.writer("x", "text")  # type: ignore[arg-type]
            async with store.writer("x", WRITER) as writer:
                with pytest.raises(InvalidArgumentError):
                    _ = writer.append("text")  # type: ignore[arg-type]
                with pytest.raises(InvalidArgumentError):
                    _ = writer.append(b"x", -1)
                with pytest.raises(AppendTooLargeError):
                    _ = writer.append(bytes(4097))
                assert writer.last_event_number == -1
                assert await writer.append(b"x") == 0

        self.check(tmp_path, body)

    def test_a_writer_of_a_missing_segment(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            with pytest.raises(SegmentNotFoundError):
                async with store.writer("x", WRITER):
                    pass

        self.check(tmp_path, body)

    def test_a_writer_stays_with_its_segment(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            writer = await store.writer("x", WRITER).open()
            assert await writer.append(b"a") == 0
            await store.delete("x")
            await store.create_segment("x")
            with pytest.raises(SegmentNotFoundError):
                await writer.append(b"b")
            assert (await store.get_info("x")).length == 0

        self.check(tmp_path, body)
