"""The whole public API against a plain model, with crashes, a lost cache and a Tier 2 that goes
away among its rules.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from operator import methodcaller
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from segmentstore import (
    AttributeUpdate,
    EndOfSegmentError,
    SegmentStore,
    SegmentStoreError,
    TierUnavailableError,
    UpdateType,
)
from segmentstore.contracts.metadata_checks import assert_metadata_valid
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import WorldDisk, attribute, open_tiny
from tests.store.plain_model import PlainModel, RefusedError
from tests.support.suites import size, sized

T = TypeVar("T")

EXAMPLES = size("STORE_MODEL_EXAMPLES", 6, 60)
HELD_BACK_S = 0.5
"""A call that has not come back by then, with Tier 2 away, is one that is held back: Tier 2 comes
back for it.
"""

NAMES = ["a", "b", "c", "a#transaction." + "0" * 32, "scope/d", "e"]
names = st.sampled_from(NAMES)
picks = st.tuples(st.integers(0, 11), names)
"""Mostly one of the segments that are there (by number), sometimes any name."""
payloads = st.binary(max_size=60) | st.integers(0, 700).map(
    lambda length: bytes(i * 7 % 251 for i in range(length))
)
attribute_ids = st.integers(1, 3).map(attribute)
values = st.integers(-3, 3) | st.sampled_from([2**63 - 1, 1 - 2**63, -(2**63)])
updates = st.builds(
    AttributeUpdate,
    id=attribute_ids,
    type=st.sampled_from(list(UpdateType)),
    value=values,
    expected=st.none() | st.integers(-3, 3) | st.just(-(2**63)),
)
update_lists = st.lists(updates, min_size=1, max_size=3)
writer_ids = st.integers(101, 102).map(attribute)
shares = st.floats(0, 1)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="store-model-"))
        self.disk = WorldDisk()
        self.away = False
        self.lives = 0
        self.store: SegmentStore | None = None

    @initialize(
        containers=st.integers(1, 3),
        frame=st.sampled_from([64, 200, 1000]),
        flush=st.sampled_from([50, 100, 400]),
        age=st.sampled_from([0.0, 0.01, 1000.0]),
        tail=st.sampled_from([50, 200, 100_000]),
        checkpoint=st.sampled_from([5, 40, 1000]),
        made=st.lists(names, min_size=2, max_size=6, unique=True),
    )
    def begin(
        self,
        containers: int,
        frame: int,
        flush: int,
        age: float,
        tail: int,
        checkpoint: int,
        made: list[str],
    ) -> None:
        self.model = PlainModel(containers)
        self.location = str(self.folder / "0")
        self.options: dict[str, object] = {
            "containers": containers,
            "frame_bytes_max": frame,
            "log_file_bytes": 8 * 1024 + frame,
            "flush_bytes": flush,
            "flush_age_s": age,
            "tail_bytes_max": tail,
            "checkpoint_operations": checkpoint,
        }
        self.reopen()
        for name in made:
            self.make(name)

    # --- how calls are made -----------------------------------------------------------------------

    def reopen(self) -> None:
        async def opened() -> SegmentStore:
            async with asyncio.timeout(60):
                return await open_tiny(
                    self.location, runtime=Runtime(disk=self.disk), **self.options
                )

        self.store = self.runner.run(opened())

    def pick(self, pick: tuple[int, str]) -> str:
        number, name = pick
        there = sorted(self.model.segments)
        return there[number % len(there)] if number and there else name

    @property
    def open_store(self) -> SegmentStore:
        assert self.store is not None
        return self.store

    def run(self, make: Callable[[SegmentStore], Awaitable[T]]) -> T:
        """One call; with Tier 2 away it may be held back, and then Tier 2 comes back."""

        async def call() -> T:
            future = asyncio.ensure_future(make(self.open_store))
            if self.away:
                done, _ = await asyncio.wait([future], timeout=HELD_BACK_S)
                if not done:
                    self.bring_tier2_back()
            async with asyncio.timeout(60):
                return await future

        return self.runner.run(call())

    def compare(
        self, make: Callable[[SegmentStore], Awaitable[Any]], expect: Callable[[], Any]
    ) -> Any:
        """The call gives what the model gives, or the error the model asks for."""
        try:
            expected = expect()
        except RefusedError as refused:
            wanted = refused.error
        else:
            got = self.run(make)
            assert got == expected
            return got
        with pytest.raises(SegmentStoreError) as caught:
            self.run(make)
        assert type(caught.value) is wanted, (caught.value, wanted)
        return None

    def bring_tier2_back(self) -> None:
        self.away = False
        self.disk.heal()

    # --- changes ----------------------------------------------------------------------------------

    @rule(name=names)
    def create(self, name: str) -> None:
        self.make(name)

    def make(self, name: str) -> None:
        async def call(store: SegmentStore) -> None:
            info = await store.create_segment(name)
            assert (info.name, info.length, info.container_id) == (
                name,
                0,
                self.model.container(name),
            )

        self.compare(call, lambda: self.model.create(name))

    @rule(pick=picks, data=payloads)
    def append(self, pick: tuple[int, str], data: bytes) -> None:
        name = self.pick(pick)
        self.compare(lambda store: store.append(name, data), lambda: self.model.append(name, data))

    @rule(pick=picks, items=st.lists(payloads, max_size=4))
    def append_batch(self, pick: tuple[int, str], items: list[bytes]) -> None:
        name = self.pick(pick)
        self.compare(
            lambda store: store.append_batch(name, items),
            lambda: self.model.append(name, b"".join(items)),
        )

    @rule(pick=picks, data=payloads, right=st.booleans(), changes=st.none() | update_lists)
    def append_conditionally(
        self, pick: tuple[int, str], data: bytes, right: bool, changes: list[AttributeUpdate] | None
    ) -> None:
        name = self.pick(pick)
        segment = self.model.segments.get(name)
        length = (len(segment.data) if segment else 0) + (not right)
        self.compare(
            lambda store: store.append(
                name, data, expected_offset=length, attributes=changes or ()
            ),
            lambda: self.model.append(name, data, length, changes or ()),
        )

    @rule(pick=picks, changes=update_lists)
    def update_attributes(self, pick: tuple[int, str], changes: list[AttributeUpdate]) -> None:
        name = self.pick(pick)
        self.compare(
            lambda store: store.update_attributes(name, changes),
            lambda: self.model.update(name, changes),
        )

    @rule(pick=picks, writer_id=writer_ids, data=payloads, step=st.integers(-2, 3))
    def append_event(self, pick: tuple[int, str], writer_id: UUID, data: bytes, step: int) -> None:
        name = self.pick(pick)
        segment = self.model.segments.get(name)
        number = max(0, (segment.attributes.get(writer_id, -1) if segment else -1) + step)

        async def call(store: SegmentStore) -> int | None:
            async with store.writer(name, writer_id) as writer:
                return await writer.append(data, number)

        self.compare(call, lambda: self.model.event(name, writer_id, number, data))

    @rule(pick=picks, draw=st.integers(0, 3))
    def seal(self, pick: tuple[int, str], draw: int) -> None:
        if draw:
            return
        name = self.pick(pick)
        self.compare(lambda store: store.seal(name), lambda: self.model.seal(name))

    @rule(pick=picks, share=shares, beyond=st.sampled_from([0, 0, 0, 0, 1]))
    def truncate(self, pick: tuple[int, str], share: float, beyond: int) -> None:
        name = self.pick(pick)
        segment = self.model.segments.get(name)
        offset = int(len(segment.data) * share) + beyond if segment else 0
        self.compare(
            lambda store: store.truncate(name, offset), lambda: self.model.truncate(name, offset)
        )

    @rule(pick=picks, pick_source=picks, changes=st.none() | update_lists)
    def merge(
        self,
        pick: tuple[int, str],
        pick_source: tuple[int, str],
        changes: list[AttributeUpdate] | None,
    ) -> None:
        into, source = self.pick(pick), self.pick(pick_source)
        if into != source:
            self.compare(
                lambda store: store.merge(into, source, changes or ()),
                lambda: self.model.merge(into, source, changes or ()),
            )

    @rule(pick=picks, draw=st.integers(0, 3))
    def delete(self, pick: tuple[int, str], draw: int) -> None:
        if draw:
            return
        name = self.pick(pick)
        self.compare(lambda store: store.delete(name), lambda: self.model.delete(name))

    # Whether Tier 2 is away depends on real time (`run`), so no precondition may ask for it: what
    # is drawn must not.

    @rule(pick=picks)
    def flush_one(self, pick: tuple[int, str]) -> None:
        if self.away:
            return
        name = self.pick(pick)
        self.compare(lambda store: store.flush(name), lambda: (self.model.find(name), None)[1])
        if name in self.model.segments:
            info = self.run(lambda store: store.get_info(name))
            assert info.storage_length == info.length

    @rule()
    def flush(self) -> None:
        if self.away:
            return
        self.run(lambda store: store.flush())
        for name in self.model.segments:
            info = self.run(lambda store, name=name: store.get_info(name))  # type: ignore[misc]
            assert info.storage_length == info.length

    @rule()
    def checkpoint(self) -> None:
        self.run(lambda store: store.checkpoint())

    # --- reads ------------------------------------------------------------------------------------

    @rule(
        pick=picks, share=shares, length=st.integers(1, 300), beyond=st.sampled_from([0, 0, 0, 1])
    )
    def read(self, pick: tuple[int, str], share: float, length: int, beyond: int) -> None:
        name = self.pick(pick)
        segment = self.model.segments.get(name)
        offset = int(len(segment.data) * share) + beyond if segment else 0
        try:
            expected = self.model.readable(name, offset)
        except RefusedError as refused:
            with pytest.raises(refused.error):
                self.run(lambda store: store.read(name, offset, length))
            return
        try:
            data = self.run(lambda store: store.read(name, offset, length))
        except TierUnavailableError:
            assert self.away
            return
        assert bool(data) == bool(expected)
        assert len(data) <= length
        assert expected.startswith(data)

    @rule(pick=picks, share=shares)
    def read_on(self, pick: tuple[int, str], share: float) -> None:
        name = self.pick(pick)
        segment = self.model.segments.get(name)
        if segment is not None:
            self.check_bytes(name, segment.start + int((len(segment.data) - segment.start) * share))

    def check_bytes(self, name: str, offset: int) -> None:
        async def read(store: SegmentStore) -> bytes:
            reader = store.reader(name, offset)
            data = b"".join([chunk async for chunk in reader])
            assert reader.offset == offset + len(data)
            return data

        try:
            data = self.run(read)
        except TierUnavailableError:
            assert self.away
            return
        assert data == bytes(self.model.segments[name].data[offset:])

    @invariant()
    def properties_agree(self) -> None:
        if self.store is None:
            return

        async def look(store: SegmentStore) -> dict[str, tuple[int, int, bool, dict[UUID, int]]]:
            return {
                info.name: (
                    info.start_offset,
                    info.length,
                    info.sealed,
                    await store.get_attributes(info.name),
                )
                async for info in store.list_segments()
            }

        assert self.run(look) == {
            name: (segment.start, len(segment.data), segment.sealed, segment.attributes)
            for name, segment in self.model.segments.items()
        }

    def check_everything(self) -> None:
        self.properties_agree()
        for name, segment in self.model.segments.items():
            self.check_bytes(name, segment.start)
            if segment.sealed:
                with pytest.raises(EndOfSegmentError):
                    self.run(methodcaller("read", name, len(segment.data), 1))
        for container in self.open_store._containers:
            assert_metadata_valid(container.metadata)
            container._read_index.check()

    # --- misfortunes ------------------------------------------------------------------------------

    @rule(damage=st.booleans())
    def lose_cache(self, damage: bool) -> None:
        for path in sorted(Path(self.location, "cache").rglob("*")):
            if not path.is_file():
                continue
            if damage:
                path.write_bytes(b"\xff" * path.stat().st_size)
            else:
                path.unlink()

    @rule()
    def tier2_goes_away(self) -> None:
        self.away = True
        self.disk.tier2_away()

    @rule()
    def tier2_comes_back(self) -> None:
        self.bring_tier2_back()

    @rule()
    def close_and_reopen(self) -> None:
        self.runner.run(self.close())
        self.reopen()
        self.check_everything()

    @rule(
        burst=st.lists(st.tuples(picks, payloads), max_size=12),
        turns=st.integers(0, 8),
    )
    def crash_and_reopen(self, burst: list[tuple[tuple[int, str], bytes]], turns: int) -> None:
        """What was acknowledged is there; of what was on its way, in each container the first so
        many. While callers are held back, requests of two segments may change places: then in each
        segment.
        """
        self.lives += 1
        copy = str(self.folder / str(self.lives))
        sends = [(self.pick(pick), data) for pick, data in burst]

        held_back = False

        async def crash() -> list[tuple[str, bytes, bool]]:
            nonlocal held_back
            futures = [self.open_store.append(name, data) for name, data in sends]
            for _ in range(turns):
                await asyncio.sleep(0)
            self.disk.crash_copy(self.location, copy)
            done = [future.done() and future.exception() is None for future in futures]
            containers = self.open_store.stats()["containers"].values()
            held_back = any(each["processor"]["throttled_s"] for each in containers)
            await self.close()
            await asyncio.gather(*futures, return_exceptions=True)
            return [
                (name, data, acknowledged)
                for (name, data), acknowledged in zip(sends, done, strict=True)
            ]

        sent = self.runner.run(crash())
        shutil.rmtree(self.location)
        self.location = copy
        self.reopen()
        by_order: dict[object, list[tuple[str, bytes, bool]]] = {}
        for item in sent:
            order = item[0] if held_back else self.model.container(item[0])
            by_order.setdefault(order, []).append(item)
        for items in by_order.values():
            self.adopt_unknown(items)
        self.check_everything()

    def adopt_unknown(self, sent: list[tuple[str, bytes, bool]]) -> None:
        """Move the model on over appends that keep their order, as far as the reopened store turns
        out to have them.
        """
        must = max(
            (number for number, (*_, acknowledged) in enumerate(sent, 1) if acknowledged), default=0
        )

        async def look(store: SegmentStore) -> dict[str, int]:
            return {info.name: info.length async for info in store.list_segments()}

        lengths = self.run(look)
        for number, (name, data, _) in enumerate(sent):
            segment = self.model.segments.get(name)
            if segment is None or segment.sealed:
                continue
            there = lengths[name] >= len(segment.data) + len(data)
            if not there:
                assert number >= must, "an acknowledged append is lost"
                return
            segment.data += data

    async def close(self) -> None:
        if self.store is not None:
            store, self.store = self.store, None
            async with asyncio.timeout(60):
                await store.close()

    def teardown(self) -> None:
        try:
            if self.store is not None:
                self.bring_tier2_back()
                self.check_everything()
                self.run(lambda store: store.flush())
                self.runner.run(self.close())
                self.reopen()
                self.check_everything()
        finally:
            self.runner.run(self.close())
            self.runner.close()
            shutil.rmtree(self.folder)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestStoreMachine.pytestmark = [  # type: ignore[attr-defined]
    pytest.mark.timeout(300 + 3 * EXAMPLES),
    sized(60),
]
