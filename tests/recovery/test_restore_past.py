"""A store as of a moment: all metadata and bytes are the model's, or their loss is named."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import segmentstore
from durablelog.operations import StorageUpdateOperation
from recovery.moments import AtSequence, AtTime, MomentNotKeptError
from recovery.restore_past import PastContainer, PastReport, PastSource, restore_past
from segmentstore.contracts.errors import InvalidArgumentError, NotAStoreError
from segmentstore.contracts.runtime import Runtime
from tests.recovery.archived_logs import ArchivedLog, ListedParts, on_a_loop
from tests.recovery.test_archived_history import busy_log
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.object_builder import ObjectBuilder
from tier2.object_names import object_name

STORE_ID = "6c2ab0c1-7f40-4f15-8a43-1a9b2c3d4e5f"


class World:
    """A log, and the Tier 2 that goes with it."""

    def __init__(self, log: ArchivedLog) -> None:
        self.log = log
        self.storage = MemoryObjectStorage(Runtime())
        self._flushed = 0

    @property
    def source(self) -> PastSource:
        container = PastContainer(self.log.history(), self.log.model)
        return PastSource(store_id=STORE_ID, containers=[container], storage=self.storage)

    async def flush(self, segment_id: int) -> str:
        """Put what of a segment is not in Tier 2."""
        segment = self.log.model.segments[segment_id]
        start = segment.storage_length
        data = self.log.contents[self.log.sequence][segment_id][start:]
        self._flushed += 1
        unique_id = self._flushed.to_bytes(16)
        name = object_name(0, 1, "flush", unique_id)
        builder = ObjectBuilder(0, 1)
        builder.add(segment_id, start, [data], segment_name=segment.name)
        await self.storage.put(name, builder.parts, unique_id)
        record, chunks = builder.finish(name, 0)
        self.log.other(StorageUpdateOperation(objects=(record,), chunks=chunks))
        return name

    async def restore(
        self, location: Path, sequence_number: int, *, dry_run: bool = False
    ) -> PastReport:
        moment = AtSequence(sequence_number)
        return await restore_past(self.source, moment, str(location), Runtime(), dry_run=dry_run)


async def assert_is(log: ArchivedLog, sequence_number: int, location: Path) -> None:
    """The store in the folder is what the model says."""
    model = log.state(sequence_number)
    async with segmentstore.open(location) as store:
        infos = {info.name: info async for info in store.list_segments()}
        assert infos.keys() == model.names.keys()
        for name, segment_id in model.names.items():
            segment, info = model.segments[segment_id], infos[name]
            assert (info.segment_id, info.start_offset, info.length, info.sealed) == (
                segment_id,
                segment.start_offset,
                segment.length,
                segment.sealed,
            )
            found = {key.bytes: n for key, n in (await store.get_attributes(name)).items()}
            assert found == dict(segment.attributes.items())
            content = b""
            while len(content) < info.length - info.start_offset:
                content += await store.read(name, info.start_offset + len(content), 1 << 20)
            assert content == log.content(sequence_number, segment)


@pytest.mark.parametrize("seed", range(3))
@on_a_loop
async def test_a_store_as_of_any_operation_is_the_models(tmp_path: Path, seed: int) -> None:
    log = busy_log(seed)
    world = World(log)
    rng = random.Random(seed)
    for sequence_number in rng.sample(range(1, log.sequence + 1), 3):
        location = tmp_path / str(sequence_number)
        report = await world.restore(location, sequence_number)
        assert not report.losses
        assert not report.findings
        assert report.containers[0].sequence_number == sequence_number
        await assert_is(log, sequence_number, location)


@on_a_loop
async def test_bytes_come_from_objects_and_else_from_the_history(tmp_path: Path) -> None:
    log = ArchivedLog()
    world = World(log)
    kept, dropped = log.create("kept"), log.create("dropped")
    log.append(kept, b"k" * 500)
    log.append(dropped, b"d" * 300)
    log.end_part()
    await world.flush(kept)
    lost = await world.flush(dropped)
    log.append(kept, b"K" * 50)
    at = log.checkpoint()
    log.delete(dropped)
    log.end_part()
    await world.storage.delete(lost)
    report = await world.restore(tmp_path / "new", at)
    found = report.containers[0]
    assert (found.bytes_from_objects, found.bytes_from_history) == (500, 350)
    assert not report.losses
    await assert_is(log, at, tmp_path / "new")


@on_a_loop
async def test_bytes_of_a_damaged_object_come_from_the_history(tmp_path: Path) -> None:
    log = ArchivedLog()
    world = World(log)
    segment_id = log.create("a")
    log.append(segment_id, bytes(1000))
    name = await world.flush(segment_id)
    log.end_part()
    size = log.model.objects[name].record.size
    data = bytearray(await world.storage.get_range(name, 0, size))
    data[-1] ^= 1
    await world.storage.delete(name)
    await world.storage.put(name, [bytes(data)], bytes(16))
    report = await world.restore(tmp_path / "new", log.sequence)
    assert report.containers[0].bytes_from_history == 1000
    await assert_is(log, log.sequence, tmp_path / "new")


@on_a_loop
async def test_what_is_neither_in_objects_nor_in_the_history_is_named(tmp_path: Path) -> None:
    log = ArchivedLog()
    world = World(log)
    segment_id = log.create("a")
    log.append(segment_id, b"1" * 100)
    first = log.end_part()
    log.append(segment_id, b"2" * 50)
    log.checkpoint()
    log.append(segment_id, b"3" * 25)
    log.end_part()
    # Its retention is over, and nothing of it was flushed.
    log.listed.remove(first)
    report = await world.restore(tmp_path / "new", log.sequence)
    [loss] = report.losses
    assert (loss.segment, loss.start_offset, loss.end_offset) == ("a", 0, 100)
    assert "no object" in loss.reason
    async with segmentstore.open(tmp_path / "new") as store:
        assert await store.read("a", 100, 1000) == b"2" * 50 + b"3" * 25


@on_a_loop
async def test_a_part_that_is_missing_hides_no_bytes_of_others(tmp_path: Path) -> None:
    log = ArchivedLog()
    segment_id = log.create("a")
    parts = []
    for number in range(6):
        log.append(segment_id, bytes([number]) * 10)
        parts.append(log.end_part())
    log.checkpoint()
    log.end_part()
    log.damage(parts[2].number, 0)
    report = await World(log).restore(tmp_path / "new", log.sequence)
    assert [(loss.start_offset, loss.end_offset) for loss in report.losses] == [(20, 30)]
    assert any("ledger" in each for each in report.containers[0].damage)


@on_a_loop
async def test_parts_that_their_owner_has_removed_meanwhile_are_losses(tmp_path: Path) -> None:
    log = ArchivedLog()
    segment_id = log.create("a")
    for number in range(4):
        log.append(segment_id, bytes([number]) * 10)
        log.end_part()
    log.checkpoint()
    log.end_part()
    for index in range(2):
        log.forget_part(log.listed[index].number)
    history = log.history(parts=ListedParts(log.listed, removed=2, listed=2))
    container = PastContainer(history, log.model)
    storage = MemoryObjectStorage(Runtime())
    source = PastSource(store_id=STORE_ID, containers=[container], storage=storage)
    at = AtSequence(log.sequence)
    report = await restore_past(source, at, str(tmp_path / "new"), Runtime())
    assert [(loss.start_offset, loss.end_offset) for loss in report.losses] == [(0, 20)]
    assert report.containers[0].damage == ["container 0: 2 parts"]
    with pytest.raises(MomentNotKeptError, match="2 parts"):
        await history.state_at(AtSequence(1))


@on_a_loop
async def test_a_dry_run_counts_the_same_and_makes_nothing(tmp_path: Path) -> None:
    log = busy_log(5)
    world = World(log)
    dry = await world.restore(tmp_path / "new", log.sequence, dry_run=True)
    assert not (tmp_path / "new").exists()
    made = await world.restore(tmp_path / "new", log.sequence)
    assert dry.restored_bytes == made.restored_bytes
    assert [each.name for each in dry.containers[0].segments] == [
        each.name for each in made.containers[0].segments
    ]


@on_a_loop
async def test_containers_of_an_operation_are_as_of_its_time(tmp_path: Path) -> None:
    logs = [ArchivedLog(number) for number in range(2)]
    for log in logs:
        for _ in range(6):
            log.checkpoint()
        log.end_part()
    containers = [PastContainer(log.history(), log.model) for log in logs]
    storage = MemoryObjectStorage(Runtime())
    source = PastSource(store_id=STORE_ID, containers=containers, storage=storage)
    with pytest.raises(InvalidArgumentError, match="name one"):
        await restore_past(source, AtSequence(3), str(tmp_path / "new"), Runtime())
    with pytest.raises(InvalidArgumentError, match="leave it out"):
        await restore_past(source, AtTime(3), str(tmp_path / "new"), Runtime(), container_id=1)
    report = await restore_past(
        source, AtSequence(3), str(tmp_path / "new"), Runtime(), container_id=1
    )
    assert [each.sequence_number for each in report.containers] == [3, 3]


@on_a_loop
async def test_the_other_containers_are_as_of_the_time_wherever_their_logs_begin(
    tmp_path: Path,
) -> None:
    named, other = ArchivedLog(0), ArchivedLog(1)
    for _ in range(8):
        named.checkpoint()
    named.end_part()
    other.shift_clock(1000)
    other.create("while-the-clock-was-ahead")
    other.end_part()
    other.shift_clock(-1000)
    tail = other.tail(other.checkpoint())
    assert other.times[other.sequence] < named.times[named.sequence]
    histories = (named.history(), other.history(tail))
    containers = [
        PastContainer(history, log.model)
        for history, log in zip(histories, (named, other), strict=True)
    ]
    storage = MemoryObjectStorage(Runtime())
    source = PastSource(store_id=STORE_ID, containers=containers, storage=storage)
    moment = AtSequence(named.sequence)
    report = await restore_past(
        source, moment, str(tmp_path / "new"), Runtime(), container_id=0, dry_run=True
    )
    assert [each.sequence_number for each in report.containers] == [named.sequence, 1]


@on_a_loop
async def test_an_operation_behind_a_clock_that_was_set_back_is_not_earlier(tmp_path: Path) -> None:
    """What the other container did before it is there."""
    logs = [ArchivedLog(number) for number in range(2)]
    for log in logs:
        log.shift_clock(1 << 20)
        log.checkpoint()
        log.end_part()
        log.shift_clock(-(1 << 20))
        log.checkpoint()
        log.end_part()
    containers = [PastContainer(log.history(), log.model) for log in logs]
    storage = MemoryObjectStorage(Runtime())
    source = PastSource(store_id=STORE_ID, containers=containers, storage=storage)
    report = await restore_past(
        source, AtSequence(3), str(tmp_path / "new"), Runtime(), container_id=0, dry_run=True
    )
    assert [each.sequence_number for each in report.containers] == [3, 3]


@on_a_loop
async def test_a_place_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    log = busy_log(1)
    world = World(log)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").touch()
    with pytest.raises(NotAStoreError):
        await world.restore(tmp_path / "new", 1)
    place = tmp_path / "tier2"
    place.mkdir()
    (place / "object").write_bytes(b"x")
    with pytest.raises(InvalidArgumentError, match="place of its own"):
        await restore_past(
            world.source, AtSequence(1), str(tmp_path / "other"), Runtime(), tier2=place.as_uri()
        )
