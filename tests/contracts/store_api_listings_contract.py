"""What every store promises a program that lists its logs, its blocks in Tier 2 and its garbage."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from segmentstore import (
    ContainerStoppedError,
    InvalidNameError,
    SegmentNotFoundError,
    StoreApi,
    WrongEventLoopError,
)
from segmentstore.container import log_listing
from segmentstore.contracts.reports import GarbageItem, GarbageReport
from segmentstore.server import store_listings
from tests.contracts.store_api_world import StoreApiWorld
from tests.store.harness import UNFLUSHED, run


class StoreListingsContract(StoreApiWorld):
    """Each listing alike, in many parts."""

    @pytest.fixture(autouse=True)
    def _small_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store_listings, "ROWS_OF_A_PART", 3)
        monkeypatch.setattr(log_listing, "FRAMES_OF_A_PORTION", 2)

    def place_in(self, address: int) -> str:
        """What the place of a frame says of its address: of a log in files."""
        return f"offset {address & 0xFFFFFFFF}"

    def test_frames(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            for _ in range(20):
                await store.append("x", bytes(100))
            frames = [frame async for frame in store.list_frames()]
            assert {frame.container_id for frame in frames} == {0, 1}
            for container_id in (0, 1):
                of_one = [each for each in frames if each.container_id == container_id]
                first = of_one[0].sequence
                assert [each.sequence - first for each in of_one] == list(range(len(of_one)))
                assert of_one == sorted(of_one, key=lambda each: each.address)
                # A cluster may have moved a container while its hosts joined.
                epochs = [each.epoch for each in of_one]
                assert epochs == sorted(epochs)
            assert len(frames) > 20
            assert all(self.place_in(each.address) in each.place for each in frames)

        self.check(tmp_path, body, containers=2, **UNFLUSHED)

    def test_operations(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            info = await store.create_segment("x")
            for number in range(10):
                await store.append("x", bytes(100 + number))
            large = bytes(1000)
            assert await store.append("x", large) == 1045
            await store.seal("x")
            operations = [each async for each in store.list_operations()]
            numbers = [each.sequence for each in operations]
            assert numbers == sorted(set(numbers))
            assert operations[0].kind == "checkpoint"
            said = [(each.kind, each.what) for each in operations if each.kind != "checkpoint"]
            name = f"segment {info.segment_id}"
            # The large one is in several frames.
            assert (said[0], said[-2]) == (
                ("create", "name x"),
                ("append", f"{name}, 1000 bytes at 1045"),
            )
            assert said[-1][0] == "seal"
            assert [kind for kind, _ in said].count("append") == 11
            assert all(each.size > 0 and each.time_ms > 0 for each in operations)
            frames = [each.address async for each in store.list_frames()]
            assert {each.address for each in operations} <= set(frames)

        self.check(tmp_path, body, **UNFLUSHED)

    def test_what_comes_during_a_listing_is_not_waited_for(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            for _ in range(20):
                await store.append("x", bytes(100))
            before = [each.sequence async for each in store.list_operations()]
            listed = []
            async with aclosing(store.list_operations()) as operations:
                async for each in operations:
                    await store.append("x", bytes(100))
                    listed.append(each.sequence)
            assert listed == before

        self.check(tmp_path, body, **{**UNFLUSHED, "checkpoint_operations": 10_000})

    def test_what_is_truncated_during_a_listing_is_left_out(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            for listing in (store.list_frames, store.list_operations):
                await asyncio.gather(*(store.append("x", bytes(180)) for _ in range(100)))
                before = [each.sequence async for each in listing()]
                seen: list[int] = []
                async with aclosing(listing()) as entries:
                    async for each in entries:
                        seen.append(each.sequence)
                        if len(seen) == 1:
                            await store.flush()
                            await store.checkpoint()
                assert seen == sorted(set(seen))
                assert set(seen) < set(before)

        self.check(tmp_path, body, **{**UNFLUSHED, "checkpoint_operations": 10_000})

    def test_blocks(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            for name in ("a", "b", "c"):
                await store.create_segment(name)
                for number in range(4):
                    await store.append(name, bytes(50))
                    if name != "c" and number % 2:
                        await store.flush()
            blocks = [each async for each in store.list_blocks()]
            assert {each.state for each in blocks} == {"live"}
            for name, length in (("a", 200), ("b", 200), ("c", 0)):
                of_one = [each for each in blocks if each.segment == name]
                assert sum(each.length or 0 for each in of_one) == length
                assert [each async for each in store.list_blocks(name)] == of_one
            await store.delete("a")
            blocks = [each async for each in store.list_blocks()]
            states = {(each.state, each.segment) for each in blocks}
            assert states == {("live", "b"), ("waiting for deletion", None)}
            with pytest.raises(SegmentNotFoundError):
                _ = [each async for each in store.list_blocks("a")]
            with pytest.raises(InvalidNameError):
                _ = [each async for each in store.list_blocks("\n")]

        self.check(tmp_path, body, **{**UNFLUSHED, "deletion_lag_s": 1000.0})

    def test_a_merged_segment_is_named_until_its_blocks_are_the_targets(
        self, tmp_path: Path
    ) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            await store.create_segment("y")
            await store.append("x", bytes(40))
            await store.append("y", bytes(50))
            await store.flush("y")
            await store.merge("x", "y")
            blocks = [each async for each in store.list_blocks()]
            assert {each.segment for each in blocks} <= {"x", "y (merged)"}
            await store.flush()
            after = [each async for each in store.list_blocks()]
            assert sum(each.length or 0 for each in after if each.segment == "x") == 90

        self.check(tmp_path, body, **UNFLUSHED)

    def test_garbage_is_found_and_left(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            for number in range(8):
                await store.create_segment(f"s{number}")
                await store.append(f"s{number}", bytes(450))
                await store.flush()
                await store.delete(f"s{number}")
            found = [each async for each in store.find_garbage()]
            again = [each async for each in store.find_garbage()]
            names = [each.name for each in found if isinstance(each, GarbageItem)]
            assert len(names) == 8
            assert names == [each.name for each in again if isinstance(each, GarbageItem)]
            collected = await store.collect_garbage()
            report = GarbageReport.of(found)
            assert [(each.state, each.name, each.size) for each in report.items] == [
                (each.state, each.name, each.size) for each in collected.items
            ]
            assert all(item.until is not None for item in report.items)
            assert report.findings == collected.findings

        self.check(tmp_path, body, **{**UNFLUSHED, "deletion_lag_s": 1000.0})

    def test_one_that_is_left_in_the_middle_is_closed(self, tmp_path: Path) -> None:
        async def body(store: StoreApi) -> None:
            await store.create_segment("x")
            for _ in range(20):
                await store.append("x", bytes(100))
            for _ in range(3 * store_listings.LISTINGS_MAX):
                async with aclosing(store.list_operations()) as operations:
                    assert (await anext(operations)).kind == "checkpoint"

        self.check(tmp_path, body, **UNFLUSHED)

    def test_after_the_close_and_elsewhere(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with self.open_api(tmp_path / "s") as (store, _):
                await store.close()
                for listing in (
                    store.list_frames,
                    store.list_operations,
                    store.list_blocks,
                    store.find_garbage,
                ):
                    with pytest.raises(ContainerStoppedError):
                        _ = [each async for each in listing()]

        run(main())

    def test_another_event_loop(self, tmp_path: Path) -> None:
        async def elsewhere(store: StoreApi) -> None:
            for listing in (store.list_frames, store.find_garbage):
                with pytest.raises(WrongEventLoopError):
                    await anext(listing())

        async def body(store: StoreApi) -> None:
            await asyncio.to_thread(asyncio.run, elsewhere(store))

        self.check(tmp_path, body)
