"""Restoring from metadata snapshots: the newest state that can be read is used, whichever way it
was kept, and gives what a copy of the metadata gives.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from durablelog.catalog.key_ranges import StoreKeyRange
from durablelog.catalog.key_store import KeyBatch, KeyStore, KeyStoreFullError
from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.checkpoint_codec import decode_checkpoint, encode_checkpoint
from recovery.restore import restore_store
from recovery.restore_report import ContainerRestore, RestoreReport
from recovery.snapshot_reading import CatalogReading
from segmentstore.contracts.errors import DataCorruptionError, TierUnavailableError
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from storagewriter.snapshot_uploader import SnapshotUploader
from tests.recovery.test_restore import DATA, Place, fill
from tests.store.harness import WorldDisk, run
from tier2.checkpoint_object import CheckpointHeader, parse_checkpoint_object
from tier2.locations import open_object_storage
from tier2.metadata_manifest import FileContent

OTHER_STORE = "00000000-0000-0000-0000-000000000001"


async def load(store: KeyStore, container_id: int) -> ContainerMetadata:
    """The whole metadata are one value here: how they lie in keys is not what is tested."""
    portion = await store.scan(StoreKeyRange(b"\x01", b"\xff"), 1)
    ((_, blob),) = portion.pairs
    metadata = decode_checkpoint(blob)
    assert metadata.container_id == container_id
    return metadata


CATALOG = CatalogReading(MemoryKeyStore, load)


class SnapshotPlace(Place):
    """A store's bucket, to which metadata snapshots are added by hand."""

    def newest_copy(self) -> tuple[CheckpointHeader, ContainerMetadata]:
        path = self.copies()[-1]
        header, blob = parse_checkpoint_object(path.read_bytes(), self.name(path))
        return header, decode_checkpoint(blob)

    def put_snapshot(
        self,
        metadata: ContainerMetadata,
        epoch: int,
        store_id: str,
        *,
        files_of: str | None = None,
        behind: int = 0,
    ) -> str:
        """A snapshot of it; its files say that they are of `files_of`, and `behind` its state."""
        number = metadata.sequence_number

        async def put() -> str:
            runtime = Runtime()
            storage = open_object_storage(self.url, runtime)
            folder = self.root / f"catalog {epoch} {number}"
            identity = KeyStoreIdentity(files_of or store_id, metadata.container_id)
            store = MemoryKeyStore(str(folder / "working"), identity, runtime)
            folder.mkdir()
            (folder / "working").mkdir()
            await store.open()
            batch = KeyBatch()
            batch.put(b"\x10all", encode_checkpoint(metadata))
            await store.apply(batch, number - behind)
            made = await store.checkpoint(str(folder / "checkpoint"))
            await store.close()

            async def read(name: str, offset: int, length: int) -> bytes:
                data = (folder / "checkpoint" / name).read_bytes()
                return data[offset : offset + length]

            async def check_primary() -> None:
                pass

            owner = SimpleNamespace(
                metadata=metadata, store_id=store_id, epoch=epoch, check_primary=check_primary
            )
            uploader = SnapshotUploader(owner, storage, 1, runtime, 0.0)
            files = [FileContent(*file) for file in made.files]
            try:
                return await uploader.put(files, number, uploader.new_id(), read)
            finally:
                await storage.close()

        return run(put())

    def restored(self) -> tuple[RestoreReport, ContainerRestore]:
        scratch = self.root / "scratch"
        scratch.mkdir()
        report = self.restore(catalog=CATALOG, scratch=str(scratch))
        assert list(scratch.iterdir()) == []
        scratch.rmdir()
        (container,) = report.containers
        return report, container


@pytest.fixture
def place(tmp_path: Path) -> SnapshotPlace:
    place = SnapshotPlace(tmp_path)

    async def live() -> None:
        async with place.open(containers=1) as store:
            await fill(store, "a", "b", "c")
            await store.update_attributes("a", [])
            await store.truncate("b", 100)
            await store.seal("c")
            await store.flush()

    run(live())
    return place


def test_a_snapshot_gives_what_a_copy_of_the_same_state_gives(
    place: SnapshotPlace, tmp_path: Path
) -> None:
    header, metadata = place.newest_copy()
    from_copy = place.restore(catalog=CATALOG)
    place.new.rename(tmp_path / "from a copy")
    place.forget_copies()
    name = place.put_snapshot(metadata, header.epoch, str(header.store_id))
    from_snapshot, container = place.restored()
    assert container.checkpoint is not None
    assert (container.checkpoint.name, container.checkpoint.kind) == (name, "metadata snapshot")
    assert container.damaged == []
    assert container.surveyed == from_copy.containers[0].surveyed
    assert from_snapshot.segments == from_copy.segments
    assert from_snapshot.notes == from_copy.notes
    assert from_snapshot.old_store_id == from_copy.old_store_id == str(header.store_id)
    (used,) = [each.checkpoint for each in from_copy.containers]
    assert used is not None
    assert encode_checkpoint(container.checkpoint.metadata) == encode_checkpoint(used.metadata)
    assert place.contents() == place.contents(tmp_path / "from a copy")
    assert place.contents()["a"] == DATA


def test_a_snapshot_gives_what_the_headers_alone_give_and_more(place: SnapshotPlace) -> None:
    header, metadata = place.newest_copy()
    place.forget_copies()
    rebuilt = place.restore(catalog=CATALOG)
    place.new.rename(place.root / "from headers")
    place.put_snapshot(metadata, header.epoch, str(header.store_id))
    report, _ = place.restored()
    lengths = {segment.name: segment.restored_to for segment in rebuilt.segments}
    assert {segment.name: segment.restored_to for segment in report.segments} == lengths
    expected = place.contents(place.root / "from headers")
    expected["b"] = expected["b"][100:]
    assert place.contents() == expected


@pytest.mark.parametrize("newer", ["copy", "snapshot"])
def test_the_newer_state_is_used_whichever_way_it_was_kept(
    place: SnapshotPlace, newer: str
) -> None:
    header, metadata = place.newest_copy()
    metadata.sequence_number += 1 if newer == "snapshot" else -1
    name = place.put_snapshot(metadata, header.epoch, str(header.store_id))
    _, container = place.restored()
    assert container.checkpoint is not None
    assert (container.checkpoint.name == name) == (newer == "snapshot")
    assert container.damaged == []


def lose_a_file(place: SnapshotPlace, _name: str) -> None:
    file = max(place.bucket.glob("metadata/*/files/*"), key=lambda path: path.stat().st_mtime_ns)
    file.unlink()


def spoil_a_file(place: SnapshotPlace, _name: str) -> None:
    file = max(place.bucket.glob("metadata/*/files/*"), key=lambda path: path.stat().st_mtime_ns)
    file.write_bytes(bytes(file.stat().st_size))


def spoil_the_manifest(place: SnapshotPlace, name: str) -> None:
    (place.bucket / name).write_bytes(b"no manifest")


@pytest.mark.parametrize("harm", [lose_a_file, spoil_a_file, spoil_the_manifest])
@pytest.mark.parametrize("older", ["copy", "snapshot", "none"])
def test_of_one_that_is_damaged_the_report_says_why_and_the_one_before_is_used(
    place: SnapshotPlace, harm: Callable[[SnapshotPlace, str], None], older: str
) -> None:
    header, metadata = place.newest_copy()
    before = place.name(place.copies()[-1])
    if older != "copy":
        place.forget_copies()
    if older == "snapshot":
        metadata.sequence_number += 1
        before = place.put_snapshot(metadata, header.epoch, str(header.store_id))
    metadata.sequence_number += 1
    name = place.put_snapshot(metadata, header.epoch, str(header.store_id))
    harm(place, name)
    _, container = place.restored()
    (damage,) = container.damaged
    assert "metadata/00000000/" in damage
    assert (container.checkpoint and container.checkpoint.name) == (
        None if older == "none" else before
    )
    assert place.contents()["a"] == DATA


@pytest.mark.parametrize("wrong", ["identity", "state"])
def test_files_that_are_not_what_the_manifest_says_are_not_used(
    place: SnapshotPlace, wrong: str
) -> None:
    header, metadata = place.newest_copy()
    place.forget_copies()
    place.put_snapshot(
        metadata,
        header.epoch,
        str(header.store_id),
        files_of=OTHER_STORE if wrong == "identity" else None,
        behind=wrong == "state",
    )
    _, container = place.restored()
    assert container.checkpoint is None
    assert len(container.damaged) == 1


def test_nothing_is_given_twice_though_the_newest_snapshot_is_damaged(place: SnapshotPlace) -> None:
    header, metadata = place.newest_copy()
    metadata.sequence_number += 1 << 50
    spoil_the_manifest(place, place.put_snapshot(metadata, 1 << 20, str(header.store_id)))
    report, container = place.restored()
    assert report.epoch > 1 << 20
    assert container.checkpoint is not None
    place.contents()
    copy = place.copies()[-1]
    header, _ = parse_checkpoint_object(copy.read_bytes(), place.name(copy))
    assert header.sequence_number > 1 << 50


def test_snapshots_of_another_store_are_left_alone_or_refused(place: SnapshotPlace) -> None:
    header, metadata = place.newest_copy()
    metadata.sequence_number += 1
    place.put_snapshot(metadata, header.epoch, OTHER_STORE)
    with pytest.raises(DataCorruptionError, match="more than one store has written in epoch"):
        place.restore(catalog=CATALOG)
    report = place.restore(catalog=CATALOG, store_id=str(header.store_id))
    checkpoint = report.containers[0].checkpoint
    assert checkpoint is not None
    assert checkpoint.kind == "checkpoint"


@pytest.mark.parametrize("fails", ["download", "reading"])
def test_a_full_disk_ends_the_restore_and_names_the_folder(
    place: SnapshotPlace, tmp_path: Path, fails: str
) -> None:
    header, metadata = place.newest_copy()
    place.forget_copies()
    place.put_snapshot(metadata, header.epoch, str(header.store_id))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    disk = WorldDisk()
    if fails == "download":
        disk.trap = lambda call, path: (
            OSError(errno.ENOSPC, "full") if call == "pwrite" and str(scratch) in path else None
        )

    async def load_on_a_full_disk(store: KeyStore, container_id: int) -> ContainerMetadata:
        del store, container_id
        raise KeyStoreFullError("x", "full")

    catalog = (
        CATALOG if fails == "download" else CatalogReading(MemoryKeyStore, load_on_a_full_disk)
    )
    new, where = str(place.new), str(scratch)
    restoring = restore_store(place.url, new, Runtime(disk=disk), catalog=catalog, scratch=where)
    with pytest.raises(TierUnavailableError, match=f"cannot be read in {re.escape(where)}.*full"):
        run(restoring)
    assert list(scratch.iterdir()) == []
    assert not place.new.exists()
