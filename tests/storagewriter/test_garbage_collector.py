"""Deletion of what the log says is garbage: lag, use, failures, restart, clocks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from durablelog.checkpoint_codec import decode_checkpoint, encode_checkpoint
from durablelog.operations import (
    DeletionClockOperation,
    ObjectsDeletedOperation,
    ReplaceChunksOperation,
    StorageUpdateOperation,
)
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.chunks import ObjectRecord
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.object_states import GarbageObject
from storagewriter import consolidator, object_uploader
from storagewriter.deletion_clock import READINGS_PER_LAG
from storagewriter.garbage_collector import DELETES_MAX, MARKERS_INTERVAL_S
from tests.storagewriter.fake_container import FakeContainer, make_config, run
from tests.support.loop_clock import LoopBoot, LoopClock
from tier2.object_names import object_name
from tier2.unique_ids import UNIQUE_ID_BYTES

LAG_S = 1000.0
SLACK_S = 3.0
YEAR_MS = 365 * 24 * 3600 * 1000


async def _garbage(c: FakeContainer, count: int = 1) -> list[str]:
    """Make so many objects and release them."""
    names = []
    for number in range(count):
        segment_id = c.create(f"garbage{number}")
        c.append(segment_id, 1)
        await c.writer.flush(segment_id)
        names += [chunk.object_name for chunk in c.segment(segment_id).chunks]
        c.delete(segment_id)
    assert set(names) <= set(c.metadata.garbage)
    return names


def _clock(c: FakeContainer) -> LoopClock:
    assert isinstance(c.runtime.clock, LoopClock)
    return c.runtime.clock


def _boot(c: FakeContainer) -> LoopBoot:
    assert isinstance(c.runtime.boot, LoopBoot)
    return c.runtime.boot


def _deletions(c: FakeContainer) -> Iterable[int]:
    return [len(each.names) for each in c.log if isinstance(each, ObjectsDeletedOperation)]


def test_an_object_goes_after_the_lag_and_not_before() -> None:
    async def body(c: FakeContainer) -> None:
        await _garbage(c)
        await asyncio.sleep(LAG_S - SLACK_S)
        assert c.object_count == 1
        assert await c.writer.garbage_collector.collect_now() == 0
        await asyncio.sleep(2 * SLACK_S)
        assert c.object_count == 0
        assert not c.metadata.garbage
        assert c.writer.statistics().garbage_deleted == 1

    run(body)


def test_live_objects_stay() -> None:
    async def body(c: FakeContainer) -> None:
        a = c.create("a")
        c.append(a, 10)
        await c.writer.flush()
        await _garbage(c)
        await asyncio.sleep(10 * LAG_S)
        assert set(c.storage.bucket.objects) == set(c.metadata.objects)

    run(body)


def test_an_object_in_use_waits() -> None:
    async def body(c: FakeContainer) -> None:
        names = await _garbage(c, 3)
        c.in_use.add(names[1])
        await asyncio.sleep(LAG_S + SLACK_S)
        assert set(c.storage.bucket.objects) == {names[1]}
        c.in_use.clear()
        await asyncio.sleep(SLACK_S)
        assert c.object_count == 0

    run(body)


@pytest.mark.parametrize("jump_ms", [10 * YEAR_MS, -10 * YEAR_MS, 60_000_000, -500_000])
@pytest.mark.parametrize("when", ["before", "at", "after"])
def test_a_clock_that_jumps_changes_nothing(jump_ms: int, when: str) -> None:
    """Before, it is ahead or behind for the one operation that releases the object, and right
    again then.
    """

    async def body(c: FakeContainer) -> None:
        segment_id = c.create("a")
        c.append(segment_id, 1)
        await c.writer.flush()
        _clock(c).offset_ms += jump_ms if when != "after" else 0
        c.delete(segment_id)
        await asyncio.sleep(LAG_S / 3)
        _clock(c).offset_ms += {"before": -jump_ms, "at": 0, "after": jump_ms}[when]
        await asyncio.sleep(LAG_S * 2 / 3 - SLACK_S)
        assert c.object_count == 1
        await asyncio.sleep(2 * SLACK_S)
        assert c.object_count == 0

    run(body)


@pytest.mark.parametrize("jump_ms", [10 * YEAR_MS, -10 * YEAR_MS])
@pytest.mark.parametrize("machine", ["same boot", "another boot"])
def test_a_clock_that_jumps_between_owners_changes_nothing(jump_ms: int, machine: str) -> None:
    async def main() -> None:
        c = FakeContainer(make_config())
        c.writer.start()
        await _garbage(c)
        await asyncio.sleep(LAG_S / 2)
        await c.writer.stop()
        _clock(c).offset_ms += jump_ms
        if machine == "another boot":
            _boot(c).start_anew()
        await asyncio.sleep(LAG_S / 4)
        after = c.restart(make_config())
        after.writer.start()
        # Time without an owner counts on the same boot alone.
        left_s = LAG_S / (4 if machine == "same boot" else 2)
        await asyncio.sleep(left_s - SLACK_S)
        assert after.object_count == 1
        await asyncio.sleep(2 * SLACK_S + LAG_S / READINGS_PER_LAG)
        assert after.object_count == 0
        await after.writer.stop()

    run_virtual(main())


@pytest.mark.parametrize("machine", ["same boot", "another boot"])
def test_owners_that_live_shorter_than_the_lag_get_there_together(machine: str) -> None:
    """With nothing between them, on any machine; with much between them, on the same one."""

    async def main() -> None:
        c = FakeContainer(make_config())
        lives = 0
        while c.metadata.garbage or not lives:
            c.writer.start()
            if not lives:
                await _garbage(c)
            await asyncio.sleep(LAG_S / 4)
            await c.writer.stop()
            lives += 1
            if machine == "another boot":
                _boot(c).start_anew()
            c = c.restart(make_config())
        assert lives == 5
        assert c.object_count == 0

    run_virtual(main())


def test_short_visits_on_one_boot_delete_in_the_end() -> None:
    """As `segmentstore gc` makes them, on a store that no other process has open."""

    async def main() -> None:
        c = FakeContainer(make_config())
        c.writer.start()
        await _garbage(c)
        for _ in range(4):
            await c.writer.stop()
            await asyncio.sleep(LAG_S / 3)
            assert c.object_count == 1
            c = c.restart(make_config())
            c.writer.start()
            await asyncio.sleep(0.01)
        assert c.object_count == 0
        await c.writer.stop()

    run_virtual(main())


def test_garbage_of_an_older_version_is_counted_from_the_first_owner_on() -> None:
    """What it kept is wall time, and may be of any year."""

    async def main() -> None:
        c = FakeContainer(make_config())
        c.writer.start()
        (name,) = await _garbage(c)
        await c.writer.stop()
        old = c.metadata.garbage[name]
        metadata = ContainerMetadata(7)
        metadata.garbage[name] = GarbageObject(old.record, old.unreferenced_ms + 10 * YEAR_MS)
        blob = encode_checkpoint(metadata)
        assert decode_checkpoint(blob).garbage[name].since_ms is None
        after = FakeContainer(make_config(), c)
        after.metadata.adopt(decode_checkpoint(blob))
        after.writer.start()
        await asyncio.sleep(LAG_S - SLACK_S)
        assert after.object_count == 1
        assert after.metadata.garbage[name].since_ms == 0
        await asyncio.sleep(2 * SLACK_S)
        assert after.object_count == 0
        await after.writer.stop()

    run_virtual(main())


def test_what_the_log_released_behind_a_reading_is_left_for_the_next() -> None:
    """A log that is slow must not make an object older than it is."""

    async def body(c: FakeContainer) -> None:
        (first,) = await _garbage(c)
        await asyncio.sleep(LAG_S / 2)
        reading = DeletionClockOperation(5, bytes(16), 6, c.metadata.sequence_number)
        second = c.create("b")
        c.append(second, 1)
        await c.writer.flush()
        (name,) = (chunk.object_name for chunk in c.segment(second).chunks)
        c.delete(second)
        c.put(reading)
        assert c.metadata.garbage[first].since_ms is not None
        assert c.metadata.garbage[name].since_ms is None

    run(body)


def test_readings_are_few_and_stop_with_the_garbage() -> None:
    async def body(c: FakeContainer) -> None:
        await _garbage(c, 3)
        await asyncio.sleep(LAG_S + SLACK_S)
        assert not c.metadata.garbage
        count = len(c.log)
        assert (
            READINGS_PER_LAG / 2
            < len([each for each in c.log if isinstance(each, DeletionClockOperation)])
            < 66
        )
        await asyncio.sleep(10 * LAG_S)
        assert len(c.log) == count

    run(body)


@pytest.mark.parametrize("method", ["delete", "head"])
@pytest.mark.parametrize("after_effect", [False, True])
def test_an_unknown_outcome_forgets_nothing(method: str, after_effect: bool) -> None:
    async def body(c: FakeContainer) -> None:
        await _garbage(c, 2)
        c.storage.fail(method, 10**9, after_effect=after_effect)  # type: ignore[arg-type]
        await asyncio.sleep(LAG_S + 3600)
        assert len(c.metadata.garbage) == 2
        assert "deletion in tier2" in (c.writer.health() or "")
        # Backed off to half a minute at most: not a try a second.
        assert 100 < c.writer.statistics().garbage_failures < 700
        c.storage.heal()
        await asyncio.sleep(60)
        assert not c.metadata.garbage
        assert c.object_count == 0
        assert c.writer.health() is None

    run(body)


def test_many_go_in_batches() -> None:
    async def body(c: FakeContainer) -> None:
        c.in_use.update(await _garbage(c, 230))
        await asyncio.sleep(LAG_S + SLACK_S)
        c.in_use.clear()
        assert await c.writer.garbage_collector.collect_now() == 230
        assert _deletions(c) == [100, 100, 30]

    run(body)


def test_two_passes_at_once_delete_once() -> None:
    async def body(c: FakeContainer) -> None:
        c.in_use.update(await _garbage(c, 5))
        await asyncio.sleep(LAG_S + SLACK_S)
        c.in_use.clear()
        collector = c.writer.garbage_collector
        assert sorted(await asyncio.gather(collector.collect_now(), collector.collect_now())) == [
            0,
            5,
        ]

    run(body)


@pytest.mark.parametrize("deleted_already", [False, True])
def test_the_next_owner_goes_on(deleted_already: bool) -> None:
    async def main() -> None:
        c = FakeContainer(make_config())
        c.writer.start()
        names = await _garbage(c, 3)
        await asyncio.sleep(LAG_S / 2)
        await c.writer.stop()
        if deleted_already:
            await c.storage.delete(names[0])
        after = c.restart(make_config())
        after.writer.start()
        await asyncio.sleep(LAG_S / 2 - 2 * SLACK_S)
        assert len(after.metadata.garbage) == 3
        await asyncio.sleep(2 * SLACK_S + LAG_S / READINGS_PER_LAG)
        assert not after.metadata.garbage
        assert after.object_count == 0
        await after.writer.stop()

    run_virtual(main())


def test_a_deletion_costs_two_requests_and_few_are_under_way_at_once() -> None:
    async def body(c: FakeContainer) -> None:
        await _garbage(c, 30)
        most, deleting = 0, 0
        delete = c.storage.delete

        async def counted(name: str) -> None:
            nonlocal most, deleting
            deleting += 1
            most = max(most, deleting)
            await asyncio.sleep(0.01)
            await delete(name)
            deleting -= 1

        c.storage.delete = counted  # type: ignore[method-assign]
        before = c.storage.statistics()
        await asyncio.sleep(LAG_S + SLACK_S)
        after = c.storage.statistics()
        assert c.object_count == 0
        assert after.requests("delete") - before.requests("delete") == 30
        assert after.requests("head") - before.requests("head") == 30
        assert most == DELETES_MAX

    run(body, orphan_sweep_interval_s=0.0)


def test_an_object_is_not_forgotten_between_the_operations_that_name_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Garbage by the first and deleted before the last, it would be live again by that one, without
    its bytes.
    """
    monkeypatch.setattr(object_uploader, "OPERATION_CHUNKS", 1)

    async def body(c: FakeContainer) -> None:
        ids = [c.create(f"s{number}") for number in range(20)]
        for each in ids:
            c.append(each, 10)
        c.read_gate = asyncio.Event()
        flush = asyncio.create_task(c.writer.flush())
        await asyncio.sleep(SLACK_S)
        put = c.storage.put

        async def late(name: str, parts: Sequence[Buffer], unique_id: bytes) -> None:
            await put(name, parts, unique_id)
            if ids[0] in c.metadata.segments:
                c.delete(ids[0])

        monkeypatch.setattr(c.storage, "put", late)
        c.read_gate.set()
        await flush
        await asyncio.sleep(SLACK_S)
        assert c.metadata.objects.keys() == c.storage.bucket.objects.keys()
        assert not c.writer.in_flight_names

    run(body, deletion_lag_s=0.0)


def test_nor_between_those_of_a_consolidation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consolidator, "OPERATION_CHUNKS", 1)

    class Changing(FakeContainer):
        """Deletes the first segment in front of the first replacement of chunks."""

        async def commit(self, operation: Any) -> None:
            if isinstance(operation, ReplaceChunksOperation) and 1 in self.metadata.segments:
                self.delete(1)
            await super().commit(operation)

    async def main() -> None:
        c = Changing(make_config(deletion_lag_s=0.0, consolidation_bytes=500))
        c.writer.start()
        ids = [c.create(f"s{number}") for number in range(20)]
        for _ in range(3):
            for each in ids:
                c.append(each, 10)
            await c.writer.flush()
        await asyncio.sleep(10)
        assert c.writer.statistics().consolidations
        assert c.metadata.objects.keys() == c.storage.bucket.objects.keys()
        c.check_stored()
        await c.writer.stop()
        assert not c.failures

    run_virtual(main())


def test_a_marker_that_stays_is_not_asked_for_in_every_pass() -> None:
    """After a restore the marker of the store before it stays until a person removes it."""

    async def body(c: FakeContainer) -> None:
        asked = 0
        there: str | None = "another store has its marker there"

        async def shared_with() -> str | None:
            nonlocal asked
            asked += 1
            return there

        collector = c.writer.garbage_collector
        collector._shared_with = shared_with
        name = object_name(c.metadata.container_id, 1, "flush", bytes(UNIQUE_ID_BYTES))
        await c.commit(StorageUpdateOperation(objects=[ObjectRecord(name, 1, 0)]))
        collector.notice()
        await asyncio.sleep(LAG_S + 10 * MARKERS_INTERVAL_S)
        assert 5 <= asked <= 11
        assert list(c.metadata.garbage) == [name]
        (own,) = await _garbage(c)
        await asyncio.sleep(2 * LAG_S)
        assert own not in c.metadata.garbage, "what is provably ours waits for no other"
        there = None
        assert await collector.collect_now() == 1, "who asks is told what is true now"

    run(body)
