"""Listings beside everything that changes meanwhile: what was there at the start, in order, each as
it is when it is given, and nothing that was deleted by then.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from durablelog.catalog.catalog_keys import NameKey
from durablelog.catalog.key_store import KeyBatch
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from segmentstore import segment_listing
from segmentstore.container import SegmentContainer, segment_scan
from segmentstore.contracts.errors import DataCorruptionError, TierUnavailableError
from segmentstore.contracts.metadata import SegmentMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid
from segmentstore.segment_listing import listed_segments
from tests.store.idle_world import IdleWorld, Kind, Known
from tests.support.suites import examples

T = TypeVar("T")
Listed = AsyncIterator[tuple[SegmentMetadata, SegmentContainer]]

NAMES = [f"{head}/{number}" for head in ("a", "b", "ä") for number in range(5)]
STEPS = (
    *("create", "create", "append", "upload", "seal", "delete", "merge", "merge"),
    *("activate", "evict", "evict", "evict some", "freeze", "write some", "checkpoint"),
)
BEHIND_A_WRITE = ("change and evict", "delete and write")
"""Steps that end with a write into the catalog: what was read before is of no use."""

kinds_of_steps = st.one_of(st.sampled_from(STEPS), st.sampled_from(BEHIND_A_WRITE))


def listed(worlds: list[IdleWorld], prefix: str) -> Listed:
    return listed_segments(cast("list[SegmentContainer]", worlds), prefix)


class OpenListing:
    """A listing, and what it has to give."""

    def __init__(self, worlds: list[IdleWorld], prefix: str) -> None:
        self.expected = {
            known.name: (world, segment_id)
            for world in worlds
            for segment_id, known in world.known.items()
            if known.name.startswith(prefix)
        }
        self.segments = listed(worlds, prefix)
        self.last = ""
        self.ended = False

    async def next(self) -> None:
        found = await anext(self.segments, None)
        behind = found[0].name if found is not None else None
        for name in sorted(self.expected):
            if behind is None or name < behind:
                world, segment_id = self.expected.pop(name)
                assert segment_id not in world.known, f"{name} was not listed"
        if found is None:
            assert not self.expected
            self.ended = True
            return
        segment, container = found
        assert segment.name > self.last
        self.last = segment.name
        world, segment_id = self.expected.pop(segment.name)
        assert cast("Any", container) is world
        assert segment.segment_id == segment_id
        assert Known(segment.name, segment.length, segment.sealed) == world.known[segment_id]


class ListingMachine(RuleBasedStateMachine):
    kind: Kind

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="listing-"))
        self.runner = asyncio.Runner()
        self.worlds = [IdleWorld(self.folder / str(number), self.kind) for number in range(2)]
        self.listings: list[OpenListing] = []
        for world in self.worlds:
            self.do(world.open())

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    async def step(self, data: st.DataObject, kind: str) -> None:
        number = data.draw(st.integers(0, len(NAMES) - 1))
        world = self.worlds[number % 2]
        await change(world, kind, number, data)

    @initialize(data=st.data(), count=st.integers(8, 15))
    def begin(self, data: st.DataObject, count: int) -> None:
        for number in range(count):
            self.worlds[number % 2].create(NAMES[number])
        for world in self.worlds:
            self.do(world.checkpoint())
            world.evict()

    @rule(data=st.data(), kinds=st.lists(kinds_of_steps, max_size=8))
    def steps(self, data: st.DataObject, kinds: list[str]) -> None:
        for kind in kinds:
            self.do(self.step(data, kind))

    @rule(data=st.data(), prefix=st.sampled_from(["", "", "", "a", "b/", "ä/3", "c", "\ud800"]))
    def open_listing(self, data: st.DataObject, prefix: str) -> None:
        if len(self.listings) < 3:
            self.listings.append(OpenListing(self.worlds, prefix))
            self.do(self.advance(self.listings[-1], data))

    @rule(data=st.data(), which=st.integers(0, 2), count=st.integers(1, 6))
    def go_on(self, data: st.DataObject, which: int, count: int) -> None:
        if self.listings:
            listing = self.listings[which % len(self.listings)]
            for _ in range(count):
                if not listing.ended:
                    self.do(self.advance(listing, data))

    @rule(which=st.integers(0, 2))
    def abandon(self, which: int) -> None:
        if which < len(self.listings):
            self.do(self.listings.pop(which).segments.aclose())  # type: ignore[attr-defined]

    async def advance(self, listing: OpenListing, data: st.DataObject | None) -> None:
        async def hook() -> None:
            assert data is not None
            for kind in data.draw(st.lists(kinds_of_steps, max_size=3)):
                await self.step(data, kind)

        self.listings.remove(listing)
        for world in self.worlds:
            world.hook = hook if data is not None else None
        try:
            await listing.next()
        finally:
            for world in self.worlds:
                world.hook = None
        if not listing.ended:
            self.listings.append(listing)

    def teardown(self) -> None:
        try:
            while self.listings:
                self.do(self.advance(self.listings[0], None))
            for world in self.worlds:
                assert_metadata_valid(world.metadata)
                assert world.metadata.segment_count == len(world.known)
        finally:
            for world in self.worlds:
                self.do(world.store.destroy())
            self.runner.close()
            shutil.rmtree(self.folder)


async def change(world: IdleWorld, kind: str, number: int, data: st.DataObject) -> None:
    """One step of a world."""
    segment_id = world.one(number)
    if kind == "create":
        if NAMES[number] not in {known.name for known in world.known.values()}:
            world.create(NAMES[number])
    elif kind == "upload":
        world.upload()
    elif kind == "evict":
        world.evict()
    elif kind == "evict some":
        world.evict(lambda segment: segment.segment_id % 2 == number % 2)
    elif kind == "freeze":
        world.freeze()
    elif kind == "write some":
        await world.write_some(1 + number)
    elif kind == "checkpoint":
        await world.checkpoint()
    elif segment_id is None:
        return
    elif kind == "append":
        await world.append(segment_id, 1 + number)
    elif kind == "change and evict":
        await world.append(segment_id, 1 + number)
        world.upload()
        await world.checkpoint()
        world.evict()
    elif kind == "delete and write":
        await world.delete(segment_id)
        await world.checkpoint()
    elif kind == "seal":
        await world.seal(segment_id)
    elif kind == "delete":
        await world.delete(segment_id)
    elif kind == "activate":
        await world.activated(segment_id)
    elif kind == "merge":
        other = world.one(data.draw(st.integers(0, 20)))
        assert other is not None
        await world.append(other, 1)
        await world.merge(segment_id, other)


both = pytest.mark.parametrize("kind", [MemoryKeyStore, RocksDbKeyStore])


@both
def test_a_listing_gives_what_was_there_at_its_start_but_what_was_deleted_by_then(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_scan, "NAMES_OF_A_SLICE", 2)
    monkeypatch.setattr(segment_scan, "NAMES_OF_A_PART", 4)
    monkeypatch.setattr(segment_listing, "LISTED_IN_A_TURN", 2)

    class Machine(ListingMachine):
        pass

    Machine.kind = kind
    number = 300 if kind is MemoryKeyStore else 30
    run_state_machine_as_test(
        Machine,
        settings=settings(max_examples=examples(number), stateful_step_count=60, deadline=None),
    )


@both
@pytest.mark.parametrize("part", [1, 3, 100])
def test_what_happens_to_segments_before_they_are_given(
    tmp_path: Path, kind: Kind, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_scan, "NAMES_OF_A_PART", part)

    async def main() -> None:
        world = IdleWorld(tmp_path / "keys", kind)
        await world.open()
        ids = {name: world.create(name) for name in "abcdefghi"}
        for each in ids.values():
            await world.append(each, 5)
        world.upload()
        await world.checkpoint()
        assert world.evict(lambda segment: segment.name != "b") == 8
        found = listed([world], "")
        assert (await anext(found))[0].name == "a"
        await world.append(ids["b"], 1)
        await world.append(ids["c"], 2)
        await world.delete(ids["d"])
        await world.delete(ids["e"])
        world.create("e")
        await world.merge(ids["g"], ids["f"])
        for late in ("ab", "cc", "hh", "k"):
            world.create(late)
        assert (await anext(found))[0].length == 6
        world.upload()
        await world.checkpoint()
        world.evict()
        assert world.metadata.segments == {}
        assert (await anext(found))[0].length == 7
        # The catalog still has it.
        await world.delete(ids["h"])
        assert [(each.name, each.length) async for each, _ in found] == [("g", 10), ("i", 5)]
        await world.store.close()

    asyncio.run(main())


@both
def test_a_segment_that_was_merged_is_left_out_while_it_is_still_there(
    tmp_path: Path, kind: Kind
) -> None:
    async def main() -> None:
        world = IdleWorld(tmp_path / "keys", kind)
        await world.open()
        ids = {name: world.create(name) for name in "abc"}
        await world.append(ids["b"], 5)
        found = listed([world], "")
        assert (await anext(found))[0].name == "a"
        await world.merge(ids["a"], ids["b"])
        assert ids["b"] in world.metadata.segments
        assert [each.name async for each, _ in found] == ["c"]
        await world.store.close()

    asyncio.run(main())


def test_where_all_is_in_memory_the_catalog_is_not_read(tmp_path: Path) -> None:
    async def main() -> None:
        # It is not open.
        world = IdleWorld(tmp_path / "keys", MemoryKeyStore)
        for name in "bca":
            world.create(name)
        assert [each.name async for each, _ in listed([world], "")] == ["a", "b", "c"]

    asyncio.run(main())


@both
def test_a_catalog_that_cannot_be_read_is_an_error_and_a_stopped_container_another(
    tmp_path: Path, kind: Kind
) -> None:
    async def main() -> None:
        world = IdleWorld(tmp_path / "keys", kind)
        await world.open()
        for name in "abc":
            world.create(name)
        await world.checkpoint()
        world.evict()
        first, second = listed([world], ""), listed([world], "")
        assert (await anext(first))[0].name == "a"
        assert (await anext(second))[0].name == "a"
        broken = KeyBatch()
        broken.put(NameKey("aa").encode(), b"no id")
        await world.store.apply(broken, world.store.sequence_number)
        with pytest.raises(DataCorruptionError, match=r"container 3, catalog: .*aa.*malformed"):
            await anext(listed([world], ""))
        await world.store.close()
        with pytest.raises(TierUnavailableError, match="container 3, catalog"):
            await anext(listed([world], ""))
        world.running = False
        with pytest.raises(InterruptedError):
            await anext(listed([world], ""))
        # What was read by then is given.
        assert [each.name async for each, _ in first] == ["b", "c"]
        # Another write makes that old.
        world.freeze()
        assert world.frozen is not None
        while world.frozen.encode_some(100) is not None:
            pass
        world.changes.written()
        with pytest.raises(InterruptedError):
            await anext(second)

    asyncio.run(main())
