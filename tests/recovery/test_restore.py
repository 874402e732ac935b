"""Restoring a store from Tier 2 alone: what was flushed is there again, what is missing is said,
and the store goes on.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from durablelog.checkpoint_codec import decode_checkpoint
from recovery.restore import EPOCH_GAP, SEQUENCE_GAP, restore_store
from recovery.restore_report import RestoreReport, SegmentRestore
from segmentstore import SegmentStore
from segmentstore.contracts.errors import (
    DataCorruptionError,
    InvalidArgumentError,
    NotAStoreError,
    TierUnavailableError,
)
from segmentstore.contracts.findings import Severity
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import attribute, open_lazy, read_all, run, until
from tests.support.folders import files_below
from tier2.checkpoint_object import parse_checkpoint_object
from tier2.locations import PROCESS_MEMORY
from tier2.object_names import parse_checkpoint_name, parse_object_name

DATA = b"0123456789" * 40
KEEP: dict[str, Any] = {
    "deletion_lag_s": 1000.0,
    "checkpoint_operations": 10_000,
    "checkpoint_bytes": 1 << 20,
}
"""Nothing is deleted, and no checkpoint is taken unasked."""


class Place:
    """A store's folder and a bucket beside it, with what happens to them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bucket = root / "bucket"
        self.url = self.bucket.as_uri()
        self.store = root / "store"
        self.new = root / "new"

    def open(self, where: Path | None = None, **options: Any) -> Any:
        location = where if where is not None else self.store
        return open_lazy(location, **{**KEEP, "tier2": self.url, **options})

    def copies(self) -> list[Path]:
        """The copies of metadata, oldest first."""
        return sorted(path for path in self.bucket.glob("checkpoints/*/*") if path.is_file())

    def objects(self) -> list[Path]:
        return [
            path
            for path in files_below(self.bucket)
            if parse_object_name(self.name(path)) is not None
        ]

    def name(self, path: Path) -> str:
        return str(path.relative_to(self.bucket))

    def sources(self, copy: Path) -> list[str]:
        """Of merges that this copy of the metadata knows of, and are not linked there."""
        metadata = decode_checkpoint(parse_checkpoint_object(copy.read_bytes(), self.name(copy))[1])
        return [
            segment.name
            for segment in metadata.segments.values()
            if segment.merged_into is not None
        ]

    def forget_copies(self, keep: Callable[[Path], bool] = lambda _: False) -> None:
        for path in self.copies():
            if not keep(path):
                path.unlink()

    def snapshot(self) -> dict[str, bytes]:
        return {
            self.name(path): path.read_bytes() for path in self.bucket.rglob("*") if path.is_file()
        }

    def restore(self, **options: Any) -> RestoreReport:
        """Restore and check that nothing in the bucket has changed by it, and that the new store is
        sound.
        """
        before = self.snapshot()
        report = run(restore_store(self.url, str(self.new), Runtime(), **options))
        assert self.snapshot() == before
        assert [
            finding for finding in report.findings if finding.severity is Severity.HARMFUL
        ] == []
        return report

    def contents(self, where: Path | None = None) -> dict[str, bytes]:
        async def read() -> dict[str, bytes]:
            async with self.open(where if where is not None else self.new) as store:
                return await contents_of(store)

        return run(read())


async def contents_of(store: SegmentStore) -> dict[str, bytes]:
    found = {}
    async for info in store.list_segments():
        found[info.name] = await read_all(store, info.name, info.start_offset)
    return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def fill(store: SegmentStore, *names: str, data: bytes = DATA) -> None:
    for name in names:
        await store.create_segment(name)
        await store.append(name, data)


def by_name(report: RestoreReport) -> dict[str, SegmentRestore]:
    return {segment.name: segment for segment in report.segments}


def the_older_checkpoint(place: Place) -> Callable[[], None]:
    """Remember the copies of now, and later forget all that came since."""
    kept = {path: path.read_bytes() for path in place.copies()}

    def go_back() -> None:
        place.forget_copies()
        for path, data in kept.items():
            path.write_bytes(data)

    return go_back


async def settled(store: SegmentStore, place: Place, containers: int = 1) -> None:
    """A checkpoint in the log, and its copy in Tier 2."""
    before = dict.fromkeys(place.copies())
    await store.checkpoint()
    await until(lambda: len([path for path in place.copies() if path not in before]) >= containers)


# --- with checkpoints -----------------------------------------------------------------------------


def test_a_closed_store_comes_back_whole(place: Place) -> None:
    async def use() -> None:
        async with place.open(containers=3) as store:
            await fill(store, *"abcdef")
            await store.update_attributes("a", [])
            await store.seal("b")
            await store.truncate("c", 123)
            await store.delete("d")
            await store.flush()

    run(use())
    before = place.contents(place.store)
    shutil.rmtree(place.store)
    report = place.restore()
    assert place.contents() == before
    assert len(report.containers) == 3
    assert (report.missing_bytes, report.restored_bytes) == (0, sum(map(len, before.values())))
    assert report.old_store_id not in {None, report.store_id}


def test_what_was_not_flushed_is_missing_and_named(place: Place) -> None:
    async def use() -> None:
        async with place.open() as store:
            await fill(store, "a", "b")
            await store.flush()
            await store.append("a", b"lost")

    run(use())
    report = place.restore()
    assert place.contents() == {"a": DATA, "b": DATA}
    assert {name: segment.missing_bytes for name, segment in by_name(report).items()} == {
        "a": 4,
        "b": 0,
    }
    assert by_name(report)["a"].restored_to == len(DATA)


def test_what_was_flushed_behind_the_checkpoint_is_there(place: Place) -> None:
    async def use() -> Callable[[], None]:
        async with place.open() as store:
            await fill(store, "a", "b")
            await store.flush()
            await settled(store, place)
            go_back = the_older_checkpoint(place)
            for number in range(5):
                await store.append("a", b"%d" % number * 50)
                await store.flush()
            await fill(store, "new", data=b"new")
            await store.flush()
            return go_back

    run(use())()
    before = place.contents(place.store)
    place_copies = place.copies()
    place.forget_copies(lambda path: path != place_copies[-1])
    report = place.restore()
    assert place.contents() == before
    assert by_name(report)["new"].known_length is None
    assert report.containers[0].surveyed


def test_several_process_runs_and_their_orphans(place: Place) -> None:
    """Objects of older epochs that the checkpoint does not name are orphans: not even checked."""

    async def use() -> None:
        for number in range(4):
            async with place.open() as store:
                if not number:
                    await fill(store, "a")
                await store.append("a", b"%d" % number * 30)
                await store.flush()

    run(use())
    before = place.contents(place.store)
    orphan = place.objects()[0]
    twin = orphan.with_name("flush-" + "0" * 32)
    named = f"{twin.relative_to(place.bucket)}"
    shard = "37"  # of SHA-256 of sixteen zeros
    (place.bucket / shard / Path(*Path(named).parts[1:])).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(orphan, place.bucket / shard / Path(*Path(named).parts[1:]))
    assert (
        parse_object_name(place.name(place.bucket / shard / Path(*Path(named).parts[1:])))
        is not None
    )
    report = place.restore()
    assert report.containers[0].passed_over == 1
    assert place.contents() == before


def test_a_damaged_checkpoint_is_passed_over_and_said(place: Place) -> None:
    async def use() -> None:
        async with place.open() as store:
            await fill(store, "a")
            await store.flush()
            await settled(store, place)
            await store.append("a", b"behind")
            await store.flush()

    run(use())
    newest = place.copies()[-1]
    spoiled = bytearray(newest.read_bytes())
    spoiled[-3] ^= 1
    newest.write_bytes(bytes(spoiled))
    report = place.restore()
    assert place.contents() == {"a": DATA + b"behind"}
    (damage,) = report.containers[0].damaged
    assert place.name(newest) in damage
    assert "checksum" in damage


def test_merges_before_and_after_the_checkpoint(place: Place) -> None:
    async def use() -> None:
        async with place.open() as store:
            await fill(store, "t", "s", "u")
            await store.flush()
            await store.merge("t", "s")
            await store.flush()
            await store.append("t", b"tail")
            await store.merge("t", "u")
            await store.flush()

    run(use())
    assert place.restore().missing_bytes == 0
    assert place.contents() == {"t": DATA * 2 + b"tail" + DATA}


def test_a_merge_that_could_not_be_linked_leaves_the_source_a_segment(place: Place) -> None:
    async def use() -> None:
        async with place.open(
            flush_bytes=1 << 20, object_bytes=1 << 20, upload_bytes_max=1 << 20
        ) as store:
            await fill(store, "t", "s")
            await store.flush()
            await store.append("s", b"lost")
            shutil.copytree(place.bucket, place.root / "away")
            await store.merge("t", "s")
            await settled(store, place)
            await store.flush()

    run(use())
    # Back to the moment before the source's last bytes were flushed, with the checkpoint that knows
    # of the merge.
    away = [
        path for path in place.objects() if not (place.root / "away" / place.name(path)).exists()
    ]
    for path in away:
        path.unlink()
    merged = [path for path in place.copies() if "s" in place.sources(path)]
    place.forget_copies(lambda path: path == merged[-1])
    report = by_name(place.restore())
    assert place.contents() == {"t": DATA, "s": DATA}
    assert (report["t"].missing_bytes, report["s"].missing_bytes) == (len(DATA) + 4, 4)


def test_objects_that_truncation_removed_after_the_checkpoint(place: Place) -> None:
    async def use() -> Callable[[], None]:
        async with place.open(deletion_lag_s=0.0) as store:
            await fill(store, "a")
            await store.flush()
            await store.append("a", DATA)
            await store.flush()
            await settled(store, place)
            go_back = the_older_checkpoint(place)
            objects = len(place.objects())
            await store.truncate("a", len(DATA) + 10)
            await until(lambda: len(place.objects()) < objects)
            return go_back

    run(use())()
    newest = place.copies()[-1]
    place.forget_copies(lambda path: path == newest)
    report = by_name(place.restore())["a"]
    assert (report.start_offset, report.restored_to) == (len(DATA), 2 * len(DATA))
    assert [tuple(gap) for gap in report.gaps] == [(0, len(DATA))]


def test_objects_that_consolidation_replaced_after_the_checkpoint(place: Place) -> None:
    async def use() -> Callable[[], None]:
        async with place.open(deletion_lag_s=0.0, consolidation_bytes=2000) as store:
            await fill(store, "a", "b")
            await store.flush()
            await settled(store, place)
            go_back = the_older_checkpoint(place)
            first = dict.fromkeys(place.objects())
            while any(path.exists() for path in first):
                for name in ("a", "b"):
                    await store.append(name, b"x" * 50)
                    await store.flush(name)
                await asyncio.sleep(0.05)
            return go_back

    go_back = run(use())
    before = place.contents(place.store)
    go_back()
    newest = place.copies()[-1]
    place.forget_copies(lambda path: path == newest)
    report = place.restore()
    assert all(not segment.gaps for segment in report.segments)
    assert place.contents() == before


# --- without --------------------------------------------------------------------------------------


def test_without_any_checkpoint_names_and_containers_come_from_the_headers(place: Place) -> None:
    async def use() -> None:
        async with place.open(containers=3) as store:
            await fill(store, *(f"scope/{number}" for number in range(20)))
            await store.flush()
            await store.append("scope/3", b"more")
            await store.flush()

    run(use())
    before = place.contents(place.store)
    place.forget_copies()
    report = place.restore()
    assert place.contents() == before
    assert len(report.containers) == 3
    assert all(container.checkpoint is None for container in report.containers)
    assert any("no readable checkpoint" in note for note in report.notes)


def test_a_container_whose_checkpoints_are_all_damaged_is_rebuilt_from_headers(
    place: Place,
) -> None:
    async def use() -> None:
        async with place.open(containers=2) as store:
            await fill(store, *"abcdefgh")
            await store.flush()

    run(use())
    before = place.contents(place.store)
    damaged = list(place.bucket.glob("checkpoints/00000001/*"))
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-1])
    report = place.restore()
    assert place.contents() == before
    assert [container.checkpoint is None for container in report.containers] == [False, True]
    assert len(report.containers[1].damaged) == len(damaged)


def test_an_object_that_cannot_be_read_to_its_end_gives_what_comes_before(place: Place) -> None:
    async def use() -> None:
        async with place.open() as store:
            await fill(store, "a", "b", data=b"x" * 100)
            await store.flush()

    run(use())
    place.forget_copies()
    (path,) = place.objects()
    path.write_bytes(path.read_bytes()[:-1])
    report = place.restore()
    assert len(report.containers[0].damaged) == 1
    assert [(each.restored_to, each.lost_bytes) for each in report.segments] == [
        (100, 0),
        (100, 100),
    ]


# --- the new store --------------------------------------------------------------------------------


def test_the_new_store_goes_on(place: Place) -> None:
    async def use(where: Path, *, begin: bool, event: int) -> None:
        async with place.open(where, **({"containers": 2} if begin else {})) as store:
            if begin:
                await fill(store, "a", "b")
            async with store.writer("a", attribute(9)) as writer:
                await writer.append(b"event", event)
            await fill(store, f"made-{event}")
            await store.append("b", b"tail")
            await store.flush()
            await store.checkpoint()

    run(use(place.store, begin=True, event=1))
    place.restore()
    run(use(place.new, begin=False, event=2))
    found = place.contents()
    assert found == {
        "a": DATA + b"event" * 2,
        "b": DATA + b"tail" * 2,
        "made-1": DATA,
        "made-2": DATA,
    }
    # And once more, from what the restored store wrote: the bucket then says that both were there.
    third = place.root / "third"
    with pytest.raises(InvalidArgumentError, match="have been here"):
        run(restore_store(place.url, str(third), Runtime()))
    report = run(restore_store(place.url, str(third), Runtime(), predecessors=True))
    assert report.missing_bytes == 0
    assert place.contents(third) == found


def test_no_epoch_and_no_number_is_given_twice(place: Place) -> None:
    async def use(where: Path) -> list[int]:
        async with place.open(where) as store:
            await fill(store, f"in-{where.name}")
            await store.flush()
            return [info.segment_id async for info in store.list_segments()]

    before = run(use(place.store))
    names = dict.fromkeys(place.objects())
    epochs = [
        parsed.epoch
        for path in place.copies()
        if (parsed := parse_checkpoint_name(place.name(path)))
    ]
    report = place.restore()
    assert report.epoch >= max(epochs) + EPOCH_GAP
    after = run(use(place.new))
    assert min(set(after) - set(before)) > max(before) + SEQUENCE_GAP
    newer = [parse_object_name(place.name(path)) for path in place.objects() if path not in names]
    assert newer
    assert all(name is not None and name.epoch > report.epoch for name in newer)


def test_a_dry_run_reports_the_same_and_makes_nothing(place: Place) -> None:
    async def use() -> None:
        async with place.open() as store:
            await fill(store, "a")
            await store.flush()

    run(use())
    dry = place.restore(dry_run=True)
    assert not place.new.exists()
    assert (dry.dry_run, dry.store_id) == (True, None)
    assert place.restore().segments == dry.segments


def test_memory_as_tier_2(tmp_path: Path) -> None:
    url = "memory://test-restore"

    async def whole() -> None:
        async with open_lazy(tmp_path / "store", tier2=url, **KEEP) as store:
            await fill(store, "a", "b")
            await store.flush()
        report = await restore_store(url, str(tmp_path / "new"), Runtime())
        assert report.missing_bytes == 0
        async with open_lazy(tmp_path / "new", **KEEP) as store:
            assert await contents_of(store) == {"a": DATA, "b": DATA}

    try:
        run(whole())
    finally:
        PROCESS_MEMORY.drop("test-restore")


# --- what cannot be restored ----------------------------------------------------------------------


def test_a_bucket_with_nothing_of_a_store_is_refused(place: Place) -> None:
    place.bucket.mkdir()
    with pytest.raises(NotAStoreError, match="no object and no checkpoint"):
        place.restore()
    (place.bucket / "somebody").write_bytes(b"else")
    with pytest.raises(NotAStoreError, match="no object and no checkpoint"):
        place.restore()
    assert not place.new.exists()


def test_a_folder_that_is_not_empty_is_refused_and_left_as_it_is(place: Place) -> None:
    async def use() -> None:
        async with place.open() as store:
            await fill(store, "a")

    run(use())
    for there in (place.store, place.root):
        place.new = there
        with pytest.raises(NotAStoreError, match="not empty"):
            place.restore()


def test_two_stores_in_one_place_are_refused(place: Place) -> None:
    async def use(where: Path, containers: int) -> None:
        async with place.open(where, containers=containers, shared_tier2=True) as store:
            await fill(store, "a", "b", "c")
            await store.flush()

    run(use(place.store, 2))
    run(use(place.root / "other", 1))
    with pytest.raises(InvalidArgumentError, match="have been here"):
        place.restore()
    with pytest.raises(DataCorruptionError, match="more than one store"):
        place.restore(predecessors=True)


def test_a_tier_2_that_does_not_answer_is_not_taken_for_an_empty_one(place: Place) -> None:
    place.bucket.write_bytes(b"a file where the folder should be")
    with pytest.raises((TierUnavailableError, NotAStoreError)):
        run(asyncio.wait_for(restore_store(place.url, str(place.new), Runtime()), 60))
    assert not place.new.exists()
