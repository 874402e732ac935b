"""A large segment has several objects on their way: they are stored in any order, and committed in
the order of its bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from durablelog.chunk_slices import Slices
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.runtime import Runtime
from storagewriter import flush_loop
from storagewriter.flush_plan import ObjectPlan
from tests.storagewriter.fake_container import LOG_LATENCY_S, FakeContainer, run
from tier2.file_object_storage import FileObjectStorage
from tier2.memory_object_storage import MemoryBucket, MemoryObjectStorage
from tier2.object_storage import NO_METADATA

pytestmark = pytest.mark.usefixtures("active_or_idle")

OBJECT = 400
"""`object_bytes`."""
MANY: dict[str, Any] = {"upload_bytes_max": 10 * OBJECT, "uploads_max": 4, "consolidation": False}


class HeldPuts(MemoryObjectStorage):
    """Each put waits until it is let through, by its number."""

    def __init__(self, runtime: Runtime, bucket: MemoryBucket | None = None) -> None:
        super().__init__(runtime, bucket)
        self.gates: list[asyncio.Event] = []
        self.done: list[int] = []

    async def put(
        self,
        name: str,
        parts: Sequence[Buffer],
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        number, gate = len(self.gates), asyncio.Event()
        self.gates.append(gate)
        await gate.wait()
        await super().put(name, parts, unique_id, metadata)
        self.done.append(number)

    async def let(self, *numbers: int) -> None:
        for number in numbers:
            self.gates[number].set()
            await asyncio.sleep(0.1)

    async def let_all(self) -> None:
        """Those of now, and those that follow from them."""
        number = 0
        while number < len(self.gates):
            await self.let(number)
            number += 1


def held_puts(c: FakeContainer) -> HeldPuts:
    assert isinstance(c.storage, HeldPuts)
    return c.storage


def test_full_objects_of_one_segment_are_on_their_way_together() -> None:
    async def body(c: FakeContainer) -> None:
        puts, a = held_puts(c), c.create("a")
        c.append(a, 3 * OBJECT + 399)
        await asyncio.sleep(0.1)
        assert len(puts.gates) == 3
        assert c.writer.statistics().upload_bytes_in_flight == 3 * OBJECT
        await puts.let(2, 1)
        assert c.segment(a).storage_length == 0
        await puts.let(0)
        assert puts.done == [2, 1, 0]
        assert c.segment(a).storage_length == 3 * OBJECT
        assert [chunk.length for chunk in c.segment(a).chunks] == [OBJECT] * 3
        await puts.let(3)
        assert c.writer.unflushed_bytes == 0
        assert c.writer.statistics().objects_written == 4

    run(body, storage_type=HeldPuts, **MANY)


def test_an_upload_goes_on_with_what_has_been_appended_meanwhile() -> None:
    async def body(c: FakeContainer) -> None:
        puts, a = held_puts(c), c.create("a")
        c.append(a, OBJECT)
        await asyncio.sleep(0.1)
        c.append(a, 10 * OBJECT)
        await asyncio.sleep(0.1)
        assert len(puts.gates) == 1
        for number in range(11):
            await puts.let(number)
            on_their_way = c.writer.statistics().uploads_in_flight
            assert on_their_way == min(4, 10 - number)
        assert c.segment(a).storage_length == 11 * OBJECT

    run(body, storage_type=HeldPuts, **MANY)


def test_the_bounds_of_all_uploads_hold() -> None:
    async def body(c: FakeContainer) -> None:
        a = c.create("a")
        c.append(a, 9 * OBJECT)
        await asyncio.sleep(0.1)
        assert len(held_puts(c).gates) == 2
        await held_puts(c).let(0, 1)
        assert len(held_puts(c).gates) == 4

    run(body, storage_type=HeldPuts, **(MANY | {"upload_bytes_max": 2 * OBJECT + 1}))


def test_another_segment_that_is_due_goes_first() -> None:
    async def body(c: FakeContainer) -> None:
        puts, a, b = held_puts(c), c.create("a"), c.create("b")
        c.append(a, 9 * OBJECT)
        await asyncio.sleep(0.1)
        c.append(b, 100)
        await asyncio.sleep(0.1)
        assert len(puts.gates) == 4
        await puts.let(0, 4)
        assert c.segment(b).storage_length == 100
        await puts.let(*range(1, 4), *range(5, 10))
        assert c.segment(a).storage_length == 9 * OBJECT

    run(body, storage_type=HeldPuts, **MANY)


@pytest.mark.parametrize("in_slices", [False, True])
@pytest.mark.parametrize("offset", [10, OBJECT, OBJECT + 10, 3 * OBJECT + 10, 4 * OBJECT])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)])
def test_truncated_while_they_are_on_their_way(
    offset: int, order: Sequence[int], *, in_slices: bool
) -> None:
    """What Tier 2 still wants gets there, without a gap; the rest is garbage."""

    async def body(c: FakeContainer) -> None:
        puts, a = held_puts(c), c.create("a")
        c.append(a, 50)
        await asyncio.sleep(11)
        await puts.let(0)
        c.append(a, 5 * OBJECT)
        await asyncio.sleep(0.1)
        c.truncate(a, 50 + offset, in_slices=in_slices)
        await puts.let(*(number + 1 for number in order))
        for number in range(5, 9):
            if number < len(puts.gates):
                await puts.let(number)
        assert c.segment(a).storage_length == 50 + 5 * OBJECT
        kept = {chunk.object_name for chunk in c.segment(a).chunks}
        assert set(c.metadata.objects) == kept
        assert set(c.storage.bucket.objects) == kept | set(c.metadata.garbage)

    run(body, storage_type=HeldPuts, **MANY)


def test_what_follows_a_block_that_was_not_taken_is_garbage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The block comes while chunks before it are being released, those behind it afterwards: they
    would leave a gap.
    """
    monkeypatch.setattr(Slices, "chunks_max", 1)

    async def body(c: FakeContainer) -> None:
        puts, a = held_puts(c), c.create("a")
        for number in range(3):
            c.append(a, 50)
            await asyncio.sleep(11)
            await puts.let(number)
        c.append(a, 3 * OBJECT)
        await asyncio.sleep(0.1)
        puts.gates[3].set()
        await asyncio.sleep(LOG_LATENCY_S / 2)
        c.truncate(a, 150 + 10, in_slices=True)
        await asyncio.sleep(0.1)
        assert c.segment(a).storage_length == 150 + 10
        for number in range(4, 9):
            if number < len(puts.gates):
                await puts.let(number)
        assert len(c.metadata.garbage) == 3 + 3
        assert c.segment(a).storage_length == 150 + 3 * OBJECT

    run(body, storage_type=HeldPuts, **MANY)


def test_an_upload_that_lost_a_block_ends_though_appends_go_on() -> None:
    """What it went on with would be garbage, object after object."""

    async def body(c: FakeContainer) -> None:
        puts, a = held_puts(c), c.create("a")
        c.read_gate = asyncio.Event()
        c.append(a, 4 * OBJECT)
        await asyncio.sleep(0.1)
        c.truncate(a, 10)
        c.read_gate.set()
        await asyncio.sleep(0.1)
        for number in range(40):
            await puts.let(number)
            c.append(a, OBJECT)
            await asyncio.sleep(0.1)
        assert len(c.metadata.garbage) <= MANY["uploads_max"]
        assert c.segment(a).storage_length >= 35 * OBJECT
        while number + 1 < len(puts.gates):
            number += 1
            await puts.let(number)

    run(body, storage_type=HeldPuts, **MANY)


def test_a_plan_in_progress_keeps_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are planned one in each turn, behind a large one that is on its way already."""
    monkeypatch.setattr(flush_loop, "SEGMENTS_OF_A_TURN", 1)

    async def body(c: FakeContainer) -> None:
        puts, a = held_puts(c), c.create("a")
        many = [c.create(f"s{number}") for number in range(12)]
        c.append(many[0], 5)
        await asyncio.sleep(9.99)
        for each in many[1:]:
            c.append(each, 5)
        c.append(a, 90)
        pending = c.writer._pending
        collect_aged = pending.collect_aged

        def collect(now: float, segments_max: int) -> float | None:
            due = collect_aged(now, segments_max)
            if many[0] in pending.ready and c.segment(a).length == 90:
                # In the turn in which the small one is due, the large one is, and goes before it.
                c.append(a, 5 * OBJECT)
                pending.ready[many[0]] = pending.ready.pop(many[0])
            return due

        monkeypatch.setattr(pending, "collect_aged", collect)
        add = c.writer._uploads._add

        def checked_add(plan: ObjectPlan) -> None:
            add(plan)
            assert c.writer._uploads.count <= 2
            assert c.writer._uploads.bytes_in_flight <= 2 * OBJECT

        monkeypatch.setattr(c.writer._uploads, "_add", checked_add)
        await asyncio.sleep(1)
        assert c.writer._uploads.count == 2
        for number in range(10):
            if number < len(puts.gates):
                await puts.let(number)

    bounds = {"uploads_max": 2, "upload_bytes_max": 2 * OBJECT}
    run(body, storage_type=HeldPuts, **(MANY | bounds))


def test_deleted_while_they_are_on_their_way() -> None:
    async def body(c: FakeContainer) -> None:
        puts, a = held_puts(c), c.create("a")
        c.append(a, 4 * OBJECT)
        await asyncio.sleep(0.1)
        c.delete(a)
        await puts.let(1, 0, 2, 3)
        assert not c.metadata.objects
        assert len(c.metadata.garbage) == 4
        assert c.writer.unflushed_bytes == 0

    run(body, storage_type=HeldPuts, **MANY)


def test_a_merge_ends_the_upload_and_is_linked() -> None:
    async def body(c: FakeContainer) -> None:
        puts, a, b = held_puts(c), c.create("a"), c.create("b")
        c.append(b, 2 * OBJECT)
        await asyncio.sleep(0.1)
        c.append(a, 2 * OBJECT + 50)
        c.merge(a, b)
        c.append(a, OBJECT)
        await asyncio.sleep(0.1)
        await puts.let_all()
        assert c.segment(a).storage_length == 5 * OBJECT + 50
        assert not c.segment(a).merges

    run(body, storage_type=HeldPuts, **MANY)


def test_a_close_waits_for_them_and_begins_no_more() -> None:
    async def body(c: FakeContainer) -> None:
        puts, a = held_puts(c), c.create("a")
        c.append(a, 9 * OBJECT)
        await asyncio.sleep(0.1)
        draining = asyncio.ensure_future(c.writer.drain(5.0))
        await puts.let(3, 1, 0)
        assert not draining.done()
        await puts.let(2)
        await asyncio.sleep(1)
        assert draining.done()
        assert len(puts.gates) == 4
        assert c.segment(a).storage_length == 4 * OBJECT

    run(body, storage_type=HeldPuts, **MANY)


def test_a_failing_commit_stops_all_of_them() -> None:
    async def body(c: FakeContainer) -> None:
        puts, a = held_puts(c), c.create("a")
        c.append(a, 4 * OBJECT)
        await asyncio.sleep(0.1)
        c.commit_error = RuntimeError("the log is lost")
        await puts.let(0)
        assert [str(failure) for failure in c.failures] == ["the log is lost"]
        assert c.writer.statistics().uploads_in_flight == 0
        c.failures.clear()
        c.commit_error = None

    run(body, storage_type=HeldPuts, **MANY)


def test_an_object_of_several_segments_is_an_upload_of_its_own() -> None:
    async def body(c: FakeContainer) -> None:
        puts, a, b = held_puts(c), c.create("a"), c.create("b")
        c.append(a, 20)
        c.append(b, 20)
        await asyncio.sleep(11)
        c.append(b, 3 * OBJECT)
        await asyncio.sleep(0.1)
        assert len(puts.gates) == 1
        await puts.let(0)
        assert len(puts.gates) == 4
        await puts.let(1, 2, 3)
        assert c.writer.unflushed_bytes == 0

    run(body, storage_type=HeldPuts, **MANY)


class LocalHeldPuts(HeldPuts):
    """To a disk that the log may share."""

    @property
    def is_local(self) -> bool:
        return True


@pytest.mark.parametrize(("uploads_max", "on_their_way"), [(1, 1), (2, 2), (4, 2)])
def test_to_a_local_disk_one_object_of_a_segment_is_sent_and_the_next_is_read_meanwhile(
    uploads_max: int, on_their_way: int
) -> None:
    async def body(c: FakeContainer) -> None:
        puts, a = held_puts(c), c.create("a")
        c.append(a, 3 * OBJECT)
        for number in range(3):
            await asyncio.sleep(0.1)
            assert len(puts.gates) == number + 1
            assert c.bytes_read == min(number + on_their_way, 3) * OBJECT
            assert c.writer.statistics().uploads_in_flight == min(on_their_way, 3 - number)
            await puts.let(number)
        assert c.segment(a).storage_length == 3 * OBJECT

    run(body, storage_type=LocalHeldPuts, **{**MANY, "uploads_max": uploads_max})


@pytest.mark.parametrize("in_slices", [False, True])
@pytest.mark.parametrize("offset", [10, OBJECT, OBJECT + 10, 2 * OBJECT, 2 * OBJECT + 10])
def test_truncated_while_one_is_sent_and_the_next_was_read(offset: int, *, in_slices: bool) -> None:
    """What is no longer needed is not sent."""

    async def body(c: FakeContainer) -> None:
        puts, a = held_puts(c), c.create("a")
        c.append(a, 3 * OBJECT)
        await asyncio.sleep(0.1)
        c.truncate(a, offset, in_slices=in_slices)
        await puts.let_all()
        assert len(puts.gates) == (3 if offset < 2 * OBJECT else 2)
        assert c.segment(a).storage_length == 3 * OBJECT
        kept = {chunk.object_name for chunk in c.segment(a).chunks}
        assert set(c.metadata.objects) == kept
        assert set(c.storage.bucket.objects) == kept | set(c.metadata.garbage)

    run(body, storage_type=LocalHeldPuts, **MANY)


def test_deleted_while_one_is_sent_the_next_is_not() -> None:
    async def body(c: FakeContainer) -> None:
        puts, a = held_puts(c), c.create("a")
        c.append(a, 3 * OBJECT)
        await asyncio.sleep(0.1)
        assert c.bytes_read == 2 * OBJECT
        c.delete(a)
        await puts.let(0)
        assert len(puts.gates) == 1
        assert c.writer.unflushed_bytes == 0

    run(body, storage_type=LocalHeldPuts, **MANY)


def test_a_folder_is_local_and_memory_is_not(tmp_path: Path) -> None:
    runtime = Runtime()
    assert FileObjectStorage(str(tmp_path), runtime).is_local
    assert not MemoryObjectStorage(runtime).is_local
