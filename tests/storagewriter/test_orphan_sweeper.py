"""The search for orphans: what is one, what is not, how slowly it goes, and that deletion goes the
one way.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Sequence

import pytest

from durablelog.operations import ObjectsDeletedOperation, StorageUpdateOperation
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.metadata import ContainerMetadata
from storagewriter import orphan_sweeper
from storagewriter.config import StorageWriterConfig
from storagewriter.orphan_rules import (
    UPLOAD_AGE_MS,
    OrphanVerdict,
    classify_object,
    is_abandoned,
    is_left_over,
)
from storagewriter.orphan_sweeper import SHARDS, OrphanSweeper, SweepStoppedError
from tests.storagewriter.fake_container import TAG, FakeContainer, make_config, run
from tier2.memory_object_storage import MemoryObject, MemoryObjectStorage
from tier2.object_names import ObjectKind, checkpoint_name, object_name
from tier2.object_storage import (
    ObjectStorage,
    StorageUnavailableError,
    StoredObject,
    UnfinishedUpload,
)
from tier2.unique_ids import new_job_id, new_tagged_id

INTERVAL_S = 1.0
SWEEP_S = 2 * SHARDS * INTERVAL_S
"""Long enough for a sweep to begin and to go through all shards."""
LAG_S = 1000.0
EPOCH = 3
CONTAINER = 7
RNG = random.Random(5)
PROBE = "probe/" + "1" * 32
NO_UPLOADS: dict[str, None] = {}


def _name(
    epoch: int, kind: ObjectKind = "flush", container_id: int = CONTAINER, tag: bytes = TAG
) -> str:
    job_id = new_job_id(RNG) if kind == "compaction" else None
    return object_name(container_id, epoch, kind, new_tagged_id(tag, RNG), job_id=job_id)


def _plant(c: FakeContainer, name: str, size: int = 10) -> str:
    c.storage.bucket.objects[name] = MemoryObject(b"x" * size, bytes(16), c.runtime.clock.time_ms())
    return name


def _marked_for_deletion(c: FakeContainer) -> list[str]:
    updates = [
        each for each in c.log if isinstance(each, StorageUpdateOperation) and not each.chunks
    ]
    return [record.name for each in updates for record in each.objects]


async def _later_owner(**changes: object) -> FakeContainer:
    """A started container of epoch 3 over an empty Tier 2."""
    config = make_config(**changes)
    c = FakeContainer(config).restart(config).restart(config)
    assert c.epoch == EPOCH
    c.writer.start()
    return c


class UploadsStorage(MemoryObjectStorage):
    """With uploads in parts that others left behind."""

    uploads: list[UnfinishedUpload]

    async def list_unfinished(self, prefix: str = "") -> Sequence[UnfinishedUpload]:
        return [upload for upload in self.uploads if upload.name.startswith(prefix)]

    async def abort_unfinished(self, upload: UnfinishedUpload) -> None:
        self.uploads.remove(upload)


# --- the rules ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        (_name(EPOCH - 1), OrphanVerdict.ORPHAN),
        (_name(EPOCH - 1, "consolidation"), OrphanVerdict.ORPHAN),
        (_name(EPOCH - 1, "compaction"), OrphanVerdict.LEFT_ALONE),
        (_name(EPOCH), OrphanVerdict.SUSPECT),
        (_name(EPOCH + 1), OrphanVerdict.NEWER),
        (_name(EPOCH + 1, "compaction"), OrphanVerdict.NEWER),
        (_name(EPOCH - 1, container_id=CONTAINER + 1), OrphanVerdict.NOT_OURS),
        (_name(EPOCH + 1, container_id=CONTAINER + 1), OrphanVerdict.NOT_OURS),
        ("stores/" + "0" * 32, OrphanVerdict.NOT_OURS),
        (_name(EPOCH - 1).replace("flush", "other"), OrphanVerdict.NOT_OURS),
        (_name(EPOCH - 1)[:-1], OrphanVerdict.NOT_OURS),
    ],
)
def test_what_an_unknown_object_is(name: str, verdict: OrphanVerdict) -> None:
    assert classify_object(name, ContainerMetadata(CONTAINER), EPOCH, NO_UPLOADS, TAG) is verdict


def test_what_is_under_way_is_left_alone() -> None:
    name = _name(EPOCH)
    assert (
        classify_object(name, ContainerMetadata(CONTAINER), EPOCH, {name: None}, TAG)
        is OrphanVerdict.LEFT_ALONE
    )


@pytest.mark.parametrize(
    ("name", "age_ms", "abandoned"),
    [
        (_name(EPOCH - 1), 0, True),
        (_name(EPOCH), UPLOAD_AGE_MS + 1, True),
        (_name(EPOCH), UPLOAD_AGE_MS, False),
        (_name(EPOCH + 1), 10 * UPLOAD_AGE_MS, False),
        (_name(EPOCH - 1, container_id=8), 10 * UPLOAD_AGE_MS, False),
        ("somebody/else", 10 * UPLOAD_AGE_MS, False),
    ],
)
def test_which_uploads_are_abandoned(name: str, age_ms: int, abandoned: bool) -> None:
    upload = UnfinishedUpload(name, "id", 10**12)
    assert is_abandoned(upload, CONTAINER, EPOCH, NO_UPLOADS, 10**12 + age_ms, TAG) is abandoned
    assert is_abandoned(upload, CONTAINER, EPOCH, {name: None}, 10**12 + age_ms, TAG) is (
        abandoned and name.split("/")[2] != f"{EPOCH:016x}"
    )


@pytest.mark.parametrize("epoch", [EPOCH - 1, EPOCH, EPOCH + 1])
def test_an_upload_of_a_job_is_given_up_after_a_day_whatever_its_epoch(epoch: int) -> None:
    def given_up(age_ms: int, container_id: int = CONTAINER) -> bool:
        upload = UnfinishedUpload(_name(epoch, "compaction"), "id", 10**12)
        return is_abandoned(upload, container_id, EPOCH, NO_UPLOADS, 10**12 + age_ms, TAG)

    assert (given_up(0), given_up(UPLOAD_AGE_MS), given_up(UPLOAD_AGE_MS + 1)) == (
        False,
        False,
        True,
    )
    assert not given_up(UPLOAD_AGE_MS + 1, CONTAINER + 1)


# --- a sweep --------------------------------------------------------------------------------------


def test_which_uploads_of_checkpoints_and_probes_are_abandoned() -> None:
    def given_up(name: str, age_ms: int, container_id: int) -> bool:
        upload = UnfinishedUpload(name, "id", 10**12)
        return is_abandoned(upload, container_id, EPOCH, NO_UPLOADS, 10**12 + age_ms, TAG)

    day = UPLOAD_AGE_MS + 1
    for epoch, fresh, old in (
        (EPOCH - 1, True, True),
        (EPOCH, False, True),
        (EPOCH + 1, False, False),
    ):
        name = checkpoint_name(CONTAINER, epoch, 5, new_tagged_id(TAG, RNG))
        assert (given_up(name, 0, CONTAINER), given_up(name, day, CONTAINER)) == (fresh, old)
        assert not given_up(name, day, CONTAINER + 1)
    assert (
        given_up(PROBE, 0, 0),
        given_up(PROBE, day, 0),
        given_up(PROBE, day, 1),
    ) == (False, True, False)
    assert not given_up("probe/1", day, 0)


def test_a_probe_left_behind_goes_after_a_day() -> None:
    for name, age_ms, left_over in (
        (PROBE, UPLOAD_AGE_MS + 1, True),
        (PROBE, 1000, False),
        ("probe/1", UPLOAD_AGE_MS + 1, False),
        ("stores/1", UPLOAD_AGE_MS + 1, False),
    ):
        assert is_left_over(StoredObject(name, 10, 10**12), 10**12 + age_ms) is left_over


def test_orphans_of_dead_owners_become_garbage_and_go_after_the_lag() -> None:
    async def main() -> None:
        c = await _later_owner(orphan_sweep_interval_s=INTERVAL_S)
        orphans = [_plant(c, _name(epoch), 10) for epoch in (1, 2, 2, 2)]
        foreign = [
            _plant(c, "stores/" + "0" * 32),
            _plant(c, _name(1, container_id=8)),
            _plant(c, _name(1, "compaction")),
        ]
        segment_id = c.create("live")
        c.append(segment_id, 50)
        await c.writer.flush()
        live = list(c.metadata.objects)
        await asyncio.sleep(SWEEP_S)
        assert sorted(c.metadata.garbage) == sorted(orphans)
        assert set(c.storage.bucket.objects) == {*orphans, *foreign, *live}
        statistics = c.writer.statistics()
        assert (statistics.orphans_found, statistics.orphan_bytes, statistics.sweeps) == (4, 40, 1)
        assert statistics.garbage_waiting == 4
        await asyncio.sleep(LAG_S + 100)
        assert set(c.storage.bucket.objects) == {*foreign, *live}
        assert not c.metadata.garbage
        assert sorted(
            name
            for each in c.log
            if isinstance(each, ObjectsDeletedOperation)
            for name in each.names
        ) == sorted(orphans)
        c.check_stored()
        await c.writer.stop()

    run_virtual(main())


def test_what_was_marked_for_deletion_survives_a_crash_in_the_log() -> None:
    async def main() -> None:
        c = await _later_owner(orphan_sweep_interval_s=INTERVAL_S)
        orphan = _plant(c, _name(1))
        await asyncio.sleep(SWEEP_S)
        await c.writer.stop()
        after = c.restart(make_config(orphan_sweep_interval_s=0.0))
        after.writer.start()
        assert list(after.metadata.garbage) == [orphan]
        await asyncio.sleep(LAG_S + 10)
        assert not after.storage.bucket.objects
        await after.writer.stop()

    run_virtual(main())


def test_an_object_of_the_running_epoch_is_marked_only_when_seen_again_after_the_lag() -> None:
    async def main() -> None:
        c = await _later_owner(orphan_sweep_interval_s=INTERVAL_S)
        await asyncio.sleep(1)
        suspect = _plant(c, _name(EPOCH))
        await asyncio.sleep(LAG_S - SWEEP_S)
        assert c.writer.statistics().sweeps >= 1
        assert not c.metadata.garbage
        await asyncio.sleep(2 * SWEEP_S + LAG_S / 2)
        assert list(c.metadata.garbage) == [suspect]
        await c.writer.stop()

    run_virtual(main())


def test_an_object_of_the_running_epoch_from_before_it_began_is_of_a_lost_log_and_stays() -> None:
    async def main() -> None:
        config = make_config(orphan_sweep_interval_s=INTERVAL_S)
        c = FakeContainer(config)
        await asyncio.sleep(5)
        _plant(c, _name(c.epoch))
        await asyncio.sleep(5)
        c.writer.start()
        await asyncio.sleep(10 * LAG_S)
        assert c.writer.statistics().sweeps > 3
        assert not c.metadata.garbage
        await c.writer.stop()

    run_virtual(main())


def test_uploads_under_way_and_live_objects_are_never_marked_for_deletion() -> None:
    async def body(c: FakeContainer) -> None:
        segment_id = c.create("a")
        # Every put lands and its reply is lost: the object is in Tier 2, and for a long time in no
        # metadata.
        c.storage.fail("put", 10**9, after_effect=True)
        c.append(segment_id, 100)
        await asyncio.sleep(3 * LAG_S)
        assert c.object_count == 1
        assert list(c.writer.in_flight_names) == list(c.storage.bucket.objects)
        c.storage.heal()
        await c.writer.flush()
        await asyncio.sleep(3 * LAG_S)
        assert not _marked_for_deletion(c)
        assert list(c.metadata.objects) == list(c.storage.bucket.objects)
        assert not c.writer.in_flight_names

    run(body, orphan_sweep_interval_s=INTERVAL_S)


def test_a_stale_owner_touches_nothing() -> None:
    async def main() -> None:
        c = await _later_owner(orphan_sweep_interval_s=0.0)
        pages = [_plant(c, _name(1)), _plant(c, _name(EPOCH + 1))]
        sweeper = c.writer.orphan_sweeper
        listed = [page async for page in c.storage.list()]
        with pytest.raises(SweepStoppedError, match="of an epoch after ours, 3"):
            sweeper.sift(listed[0])
        assert "another owner is newer" in (sweeper.stopped_by or "")
        assert not _marked_for_deletion(c)
        assert set(c.storage.bucket.objects) == set(pages)
        await c.writer.stop()

    run_virtual(main())


def test_where_another_store_has_objects_nothing_is_swept() -> None:
    async def main() -> None:
        c = await _later_owner(orphan_sweep_interval_s=INTERVAL_S)

        async def shared_with() -> str | None:
            return "another store is here"

        c.writer.orphan_sweeper.shared_with = shared_with
        _plant(c, _name(1))
        await asyncio.sleep(3 * SWEEP_S)
        assert c.writer.orphan_sweeper.stopped_by == "another store is here"
        assert not c.metadata.garbage
        assert c.storage.statistics().requests("list") == 0
        await c.writer.stop()

    run_virtual(main())


def test_a_store_that_came_during_the_sweep_is_noticed_before_anything_is_marked() -> None:
    async def main() -> None:
        c = await _later_owner(orphan_sweep_interval_s=INTERVAL_S)
        answers: list[str | None] = [None]

        async def shared_with() -> str | None:
            return answers.pop() if answers else "another store came"

        c.writer.orphan_sweeper.shared_with = shared_with
        _plant(c, _name(1))
        await asyncio.sleep(SWEEP_S)
        assert not c.metadata.garbage
        assert c.writer.orphan_sweeper.stopped_by == "another store came"
        await c.writer.stop()

    run_virtual(main())


def test_requests_are_limited_by_the_interval() -> None:
    async def body(c: FakeContainer) -> None:
        await asyncio.sleep(24 * 3600)
        requests = c.storage.statistics().requests("list")
        # One in a minute: 1,440 a day, $0.22 a month.
        assert 1400 < requests <= 1441
        assert c.writer.statistics().sweeps == 5
        assert c.storage.statistics().requests() == requests

    run(body, orphan_sweep_interval_s=60.0)


def test_shards_of_many_pages_are_paid_for_with_time() -> None:
    async def main() -> None:
        c = await _later_owner(orphan_sweep_interval_s=60.0)
        c.storage._page_objects = 2
        for _ in range(2000):
            _plant(c, _name(1, "compaction"))
        await asyncio.sleep(24 * 3600)
        # Four pages a shard, and one request more, for this storage sees the end only when it asks
        # for what is behind it.
        assert 1440 < c.storage.statistics().requests("list") <= 1440 * 5 / 4
        await c.writer.stop()

    run_virtual(main())


def test_sweeping_can_be_switched_off() -> None:
    async def main() -> None:
        c = await _later_owner(orphan_sweep_interval_s=0.0)
        _plant(c, _name(1))
        await asyncio.sleep(24 * 3600)
        assert c.storage.statistics().requests() == 0
        await c.writer.stop()

    run_virtual(main())


def test_an_outage_delays_and_is_counted() -> None:
    async def main() -> None:
        c = await _later_owner(orphan_sweep_interval_s=INTERVAL_S)
        orphan = _plant(c, _name(1))
        c.storage.fail("list", 10**9)
        await asyncio.sleep(3600)
        # Backed off to half a minute at most: not a try a second.
        assert 100 < c.writer.statistics().sweep_failures < 300
        # No call needs the search: the store is healthy without it.
        assert c.writer.health() is None
        c.storage.heal()
        await asyncio.sleep(SWEEP_S + 60)
        assert list(c.metadata.garbage) == [orphan]
        await c.writer.stop()

    run_virtual(main())


def test_what_waits_for_deletion_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphan_sweeper, "GARBAGE_MAX", 10)
    monkeypatch.setattr(orphan_sweeper, "BATCH_OBJECTS", 4)

    async def main() -> None:
        c = await _later_owner(orphan_sweep_interval_s=INTERVAL_S)
        for _ in range(50):
            _plant(c, _name(2))
        most = 0
        for _ in range(20):
            await asyncio.sleep(LAG_S / 2)
            most = max(most, len(c.metadata.garbage))
        assert 10 <= most < 10 + 4
        assert not c.storage.bucket.objects
        assert c.writer.statistics().orphans_found == 50
        await c.writer.stop()

    run_virtual(main())


def test_two_searches_at_once_mark_it_once() -> None:
    async def main() -> None:
        c = await _later_owner(orphan_sweep_interval_s=0.0)
        orphans = [_plant(c, _name(1)) for _ in range(5)]
        sweeper = c.writer.orphan_sweeper
        pages = [page async for page in c.storage.list()]
        found = sweeper.sift(pages[0])
        counts = [
            len(each)
            for each in await asyncio.gather(
                sweeper.mark_for_deletion(found), sweeper.mark_for_deletion(found)
            )
        ]
        assert sorted(counts) == [0, 5]
        assert sorted(_marked_for_deletion(c)) == sorted(orphans)
        await c.writer.stop()

    run_virtual(main())


def test_a_log_that_ended_ends_the_writer() -> None:
    async def main() -> None:
        c = await _later_owner(orphan_sweep_interval_s=INTERVAL_S)
        _plant(c, _name(1))
        c.commit_error = RuntimeError("the log is gone")
        await asyncio.sleep(SWEEP_S)
        assert c.failures == [c.commit_error]
        await c.writer.stop()

    run_virtual(main())


# --- uploads in parts -----------------------------------------------------------------------------


def test_uploads_of_dead_owners_are_aborted_once_a_sweep() -> None:
    async def main() -> None:
        c = await _later_owner(orphan_sweep_interval_s=0.0)
        storage = UploadsStorage(c.runtime)
        now = c.runtime.clock.time_ms()
        dead = UnfinishedUpload(_name(1), "a", now)
        mine = UnfinishedUpload(_name(EPOCH), "b", now)
        other = UnfinishedUpload(_name(1, container_id=8), "c", now)
        storage.uploads = [dead, mine, other]
        sweeper = _sweeper(c, storage)
        task = asyncio.create_task(sweeper.run())
        await asyncio.sleep(SWEEP_S)
        assert storage.uploads == [mine, other]
        assert sweeper.uploads_aborted == 1
        await asyncio.sleep(UPLOAD_AGE_MS / 1000 + SWEEP_S)
        assert storage.uploads == [other]
        task.cancel()
        await asyncio.wait([task])
        await c.writer.stop()

    run_virtual(main())


def _sweeper(c: FakeContainer, storage: ObjectStorage) -> OrphanSweeper:
    config = make_config(orphan_sweep_interval_s=INTERVAL_S)
    return OrphanSweeper(c, storage, config, c.runtime, c.writer.in_flight_names, lambda: None)


def test_an_abort_that_fails_is_tried_again() -> None:
    class Failing(UploadsStorage):
        refusals = 3

        async def abort_unfinished(self, upload: UnfinishedUpload) -> None:
            if self.refusals:
                self.refusals -= 1
                raise StorageUnavailableError(upload.name, "made to fail")
            await super().abort_unfinished(upload)

    async def main() -> None:
        c = await _later_owner(orphan_sweep_interval_s=0.0)
        storage = Failing(c.runtime)
        storage.uploads = [UnfinishedUpload(_name(1), "a", 0)]
        sweeper = _sweeper(c, storage)
        task = asyncio.create_task(sweeper.run())
        await asyncio.sleep(SWEEP_S)
        assert not storage.uploads
        assert (sweeper.health.failures, sweeper.sweeps) == (3, 1)
        task.cancel()
        await asyncio.wait([task])
        await c.writer.stop()

    run_virtual(main())


def test_the_interval_is_not_negative() -> None:
    with pytest.raises(Exception, match="orphan_sweep_interval_s"):
        dataclasses.replace(StorageWriterConfig(), orphan_sweep_interval_s=-1.0)
