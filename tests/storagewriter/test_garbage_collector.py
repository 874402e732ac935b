"""Deletion of what the log says is garbage: lag, use, failures, restart, clocks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from durablelog.operations import ObjectsDeletedOperation, ReplaceChunksOperation
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.checksum import Buffer
from storagewriter import consolidator, object_uploader
from storagewriter.garbage_collector import DELETES_MAX
from tests.storagewriter.fake_container import FakeContainer, make_config, run
from tests.support.loop_clock import LoopClock

LAG_S = 1000.0
SLACK_S = 3.0


async def _garbage(c: FakeContainer, count: int = 1) -> list[str]:
    """Make so many objects and let go of them."""
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


def test_a_clock_that_goes_back_only_delays() -> None:
    async def body(c: FakeContainer) -> None:
        await _garbage(c)
        await asyncio.sleep(LAG_S - SLACK_S)
        _clock(c).offset_ms -= 500_000
        await asyncio.sleep(400)
        assert c.object_count == 1
        await asyncio.sleep(200)
        assert c.object_count == 0

    run(body)


def test_a_clock_set_forward_is_noticed() -> None:
    async def body(c: FakeContainer) -> None:
        await _garbage(c)
        _clock(c).offset_ms += int(LAG_S * 1000)
        await asyncio.sleep(61)
        assert c.object_count == 0

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
        await _garbage(c, 230)
        await asyncio.sleep(LAG_S / 2)
        _clock(c).offset_ms += int(LAG_S * 1000)
        assert await c.writer.garbage_collector.collect_now() == 230
        assert _deletions(c) == [100, 100, 30]

    run(body)


def test_two_passes_at_once_delete_once() -> None:
    async def body(c: FakeContainer) -> None:
        await _garbage(c, 5)
        _clock(c).offset_ms += int(LAG_S * 1000)
        collector = c.writer.garbage_collector
        assert sorted(await asyncio.gather(collector.collect_now(), collector.collect_now())) == [0, 5]

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
        await asyncio.sleep(4 * SLACK_S)
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

    run(body, orphan_sweep_spacing_s=0.0)


def test_an_object_is_not_forgotten_between_the_operations_that_tell_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made garbage by the first and gone before the last, it would come to life again by that, without its bytes."""
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
