"""Random lives of a container against plain bytearrays: whatever happened, a read gives the truth.

Covers of the scenario catalogue (section 3.4), by chance: 57, 59 to 62, 66, 68, 70 (by pressure),
71, 72, 75.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from readindex.config import ReadIndexConfig
from recovery.harness.simulation.virtual_loop import VirtualLoop
from segmentstore.contracts.errors import (
    BadOffsetError,
    EndOfSegmentError,
    SegmentNotFoundError,
    SegmentTruncatedError,
)
from tests.readindex.world import TINY, SlowCache, World
from tests.support.suites import examples

CONFIGS = (
    TINY,
    replace(TINY, fetched_bytes_max=64, fetches_in_flight_max=1),
    replace(TINY, fetched_bytes_max=1280, fetches_in_flight_max=16, stream_idle_s=0.01),
    replace(
        TINY, random_bytes=1, piece_bytes=5, get_bytes_max=11, fetched_bytes_max=60, turn_bytes=1
    ),
    replace(TINY, catch_up_bytes_per_s=500),
    replace(TINY, read_ahead_bytes_max=0),
    replace(TINY, logged_places_max=5),
)


class ReadIndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.written = 0

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def act(self, name: str, *arguments: Any, **named: Any) -> None:
        async def call() -> None:
            getattr(self.world, name)(*arguments, **named)

        self.run(call())

    def pick(self, data: st.DataObject, *, open_only: bool = False) -> int:
        ids = [
            segment_id
            for segment_id, segment in self.world.metadata.segments.items()
            if segment.merged_into is None and not (open_only and segment.sealed)
        ]
        if not ids:
            self.act("create")
            return self.world.metadata.sequence_number
        return data.draw(st.sampled_from(ids))

    @initialize(config=st.sampled_from(CONFIGS), latency_s=st.sampled_from((0.0, 0.0007)))
    def start(self, config: ReadIndexConfig, latency_s: float) -> None:
        async def make() -> World:
            cache = SlowCache(config.cache_bytes_max + 20)
            cache.latency_s = latency_s
            return await World(config, cache).open()

        self.world: World = self.run(make())
        for _ in range(3):
            self.act("create")

    @rule(
        data=st.data(),
        sizes=st.lists(st.integers(0, 50), min_size=1, max_size=5),
        way=st.sampled_from(({}, {"replayed": True}, {"placed": True})),
    )
    def append(self, data: st.DataObject, sizes: list[int], way: dict[str, bool]) -> None:
        segment_id = self.pick(data, open_only=True)
        for size in sizes:
            payload = bytes((self.written + i) * 31 % 251 for i in range(size))
            self.written += size
            self.act("append", segment_id, payload, **way)

    @rule()
    def log_goes(self) -> None:
        """What lies in the log is not found by place any more; a pass still finds it."""
        self.world.log_cut = len(self.world.logged)

    @rule(data=st.data(), size=st.integers(1, 120))
    def flush(self, data: st.DataObject, size: int) -> None:
        self.pick(data)
        self.act("flush", data.draw(st.sampled_from(sorted(self.world.metadata.segments))), size)

    @rule()
    def flush_and_link_everything(self) -> None:
        for segment_id in sorted(self.world.metadata.segments, reverse=True):
            if segment_id in self.world.metadata.segments:
                self.act("flush", segment_id)
                while self.world.can_link(segment_id):
                    self.act("link", segment_id)
                    self.act("flush", segment_id)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        segment_id = self.pick(data)
        segment = self.world.segment(segment_id)
        self.act(
            "truncate", segment_id, data.draw(st.integers(segment.start_offset, segment.length))
        )

    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        target, source = self.pick(data, open_only=True), self.pick(data)
        if target != source and self.world.segment(source).start_offset == 0:
            self.act("merge", target, source)
            self.act("create")

    @rule(data=st.data())
    def consolidate(self, data: st.DataObject) -> None:
        self.act("consolidate", self.pick(data))

    @rule(data=st.data())
    @precondition(lambda self: len(self.world.metadata.segments) > 3)
    def delete_or_seal(self, data: st.DataObject) -> None:
        self.act(data.draw(st.sampled_from(("delete", "seal"))), self.pick(data))

    @rule(what=st.sampled_from(("wipe", "corrupt", "break", "mend")), data=st.data())
    def cache_trouble(self, what: str, data: st.DataObject) -> None:
        cache = self.world.cache
        if what == "wipe":
            cache.wipe()
        elif what == "corrupt" and cache.addresses():
            cache.corrupt(data.draw(st.sampled_from(cache.addresses())))
        elif what in ("break", "mend"):
            cache.broken = what == "break"

    @rule(failures=st.integers(0, 2))
    def storage_trouble(self, failures: int) -> None:
        self.world.source.unavailable = failures

    @rule(seconds=st.floats(0.0, 2.0))
    def pass_time(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @rule(data=st.data(), length=st.integers(1, 80), readers=st.integers(1, 3))
    def read(self, data: st.DataObject, length: int, readers: int) -> None:
        segment_id = self.pick(data)
        segment = self.world.segment(segment_id)
        offset = data.draw(st.integers(max(0, segment.start_offset - 1), segment.length + 1))

        async def read_many() -> list[bytes | BaseException]:
            reads = (self.world.index.read(segment_id, offset, length) for _ in range(readers))
            return await asyncio.gather(*reads, return_exceptions=True)

        for result in self.run(read_many()):
            if offset < segment.start_offset:
                assert isinstance(result, SegmentTruncatedError)
                assert result.start_offset == segment.start_offset
            elif offset > segment.length:
                assert isinstance(result, BadOffsetError)
            elif offset == segment.length and segment.sealed:
                assert isinstance(result, EndOfSegmentError)
            elif offset == segment.length:
                assert result == b""
            else:
                assert isinstance(result, bytes), repr(result)
                assert 1 <= len(result) <= length
                assert result == self.world.truth[segment_id][offset : offset + len(result)]

    @rule(data=st.data())
    def read_through(self, data: st.DataObject) -> None:
        segment_id = self.pick(data)
        segment = self.world.segment(segment_id)

        async def read_all() -> bytes:
            result = bytearray()
            while segment.start_offset + len(result) < segment.length:
                result += await self.world.index.read(
                    segment_id, segment.start_offset + len(result), 1000
                )
            return bytes(result)

        assert self.run(read_all()) == self.world.truth[segment_id][segment.start_offset :]

    @rule(
        data=st.data(),
        places=st.lists(st.tuples(st.floats(0, 0.99), st.integers(1, 70)), min_size=1, max_size=4),
        name=st.sampled_from(
            ("nothing", "flush", "truncate", "append", "consolidate", "delete", "pass_time")
        ),
    )
    def readers_in_sequence(
        self, data: st.DataObject, places: list[tuple[float, int]], name: str
    ) -> None:
        """Each reads on from a place of its own, in steps of its own, while something happens to
        the segment.
        """
        segment_id = self.pick(data, open_only=True)
        segment = self.world.segment(segment_id)
        truth = self.world.truth[segment_id]
        begin, end = segment.start_offset, segment.length

        async def read_on(start: int, size: int) -> None:
            offset = start
            while offset < end:
                try:
                    got = await self.world.index.read(segment_id, offset, size)
                except (SegmentTruncatedError, SegmentNotFoundError):
                    assert name in ("truncate", "delete")
                    return
                assert 1 <= len(got) <= size
                assert got == truth[offset : offset + len(got)]
                offset += len(got)
                self.world.index.check()

        async def race() -> None:
            reads = [
                asyncio.ensure_future(read_on(begin + int(share * (end - begin)), size))
                for share, size in places
            ]
            await asyncio.sleep(data.draw(st.sampled_from((0, 0.0005, 0.0035))))
            if name == "pass_time":
                await asyncio.sleep(3.0)
            elif name != "nothing":
                arguments: dict[str, list[Any]] = {
                    "truncate": [(begin + end) // 2],
                    "append": [b"x" * 40],
                }
                getattr(self.world, name)(segment_id, *arguments.get(name, []))
            await asyncio.gather(*reads)

        self.run(race())

    @rule(data=st.data())
    def read_unflushed(self, data: st.DataObject) -> None:
        self.pick(data)
        segment_id = data.draw(st.sampled_from(sorted(self.world.metadata.segments)))
        segment = self.world.segment(segment_id)
        start = max(segment.start_offset, segment.storage_length)
        if start < segment.length:
            end = data.draw(st.integers(start + 1, segment.length))
            got = self.run(self.world.unflushed(segment_id, start, end - start))
            assert got == self.world.truth[segment_id][start:end]

    @rule(
        data=st.data(), sizes=st.tuples(st.integers(0, 40), st.integers(17, 60), st.integers(0, 70))
    )
    def link_while_reading(self, data: st.DataObject, sizes: tuple[int, int, int]) -> None:
        """What is moved to other offsets while its bytes are on their way is right all the same."""
        for _ in sizes:
            self.act("create")
        ids = sorted(self.world.metadata.segments)[-3:]
        for segment_id, size in zip(ids, sizes, strict=True):
            self.act("append", segment_id, bytes((self.written + i) % 251 for i in range(size)))
            self.written += size
        # What was appended first has left memory for the cache by then.
        self.run(asyncio.sleep(0.1))
        target, source, _ = ids
        self.act("merge", target, source)
        self.act("flush", source)
        self.act("flush", target)
        self.race(data, target, "link", from_offset=sizes[0])

    @rule(
        data=st.data(),
        name=st.sampled_from(("flush", "truncate", "append", "consolidate", "delete")),
    )
    def change_while_reading(self, data: st.DataObject, name: str) -> None:
        self.race(data, self.pick(data, open_only=True), name)

    def race(self, data: st.DataObject, segment_id: int, name: str, from_offset: int = 0) -> None:
        """Read while the segment is changed."""
        segment = self.world.segment(segment_id)
        if segment.start_offset >= segment.length:
            return
        begin = max(segment.start_offset, from_offset)
        offset = data.draw(st.integers(begin, segment.length - 1))
        choices: dict[str, list[Any]] = {"truncate": [segment.length], "append": [b"x" * 40]}
        arguments = choices.get(name, [])

        delay_s = data.draw(st.sampled_from((0, 0.0005, 0.001, 0.002)))

        async def race() -> bytes | None:
            reading = asyncio.ensure_future(self.world.index.read(segment_id, offset, 50))
            await asyncio.sleep(delay_s)
            getattr(self.world, name)(segment_id, *arguments)
            try:
                return await reading
            except (SegmentTruncatedError, SegmentNotFoundError):
                assert name in ("truncate", "delete")
                return None

        result = self.run(race())
        if result is not None:
            assert len(result) >= 1
            assert result == self.world.truth[segment_id][offset : offset + len(result)]

    @invariant()
    def consistent(self) -> None:
        if hasattr(self, "world"):
            self.world.index.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.run(self.world.index.close())
            self.run(self.world.index.close())
        self.runner.close()


TestReadIndexMachine = pytest.mark.timeout(300)(ReadIndexMachine.TestCase)
ReadIndexMachine.TestCase.settings = settings(
    max_examples=examples(100),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
