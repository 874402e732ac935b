"""Snapshots in an object storage: whole or not there, kept as long as they must be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from tests.tier2.catalog.metadata_maker import OTHER_STORE_ID, STORE_ID
from tests.tier2.catalog.snapshot_place import Place, run, some_metadata
from tier2.catalog.catalog_format_error import CatalogFormatError
from tier2.catalog.catalog_reading import read_table
from tier2.catalog.catalog_snapshots import (
    AGE_MS,
    list_snapshots,
    newest_snapshots,
)
from tier2.catalog.catalog_tables import build_tables
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.object_names import CATALOG_PREFIX
from tier2.object_storage import NO_METADATA, StorageUnavailableError, StoredObject
from tier2.store_markers import StoreMarkers


def test_a_snapshot_is_found_and_read_as_it_was_written() -> None:
    async def main() -> None:
        place = Place()
        metadata = some_metadata()
        manifest = await place.write(metadata, epoch=3)
        assert await newest_snapshots(place.storage) == {0: manifest}
        assert (manifest.epoch, manifest.sequence_number, manifest.containers) == (3, 1000, 4)
        assert manifest.time_ms == place.clock.now_ms
        tables = build_tables(metadata)
        for name, table in tables._asdict().items():
            assert await read_table(place.storage, manifest, name) == table
            assert manifest.tables[name].rows == table.num_rows
        assert len(place.names) == 4
        assert manifest.snapshot.is_of(STORE_ID)

    run(main())


def test_equal_metadata_are_equal_objects() -> None:
    async def main() -> None:
        one, other = Place(), Place()
        await one.write(some_metadata())
        await other.write(some_metadata())
        assert one.storage.bucket.objects == other.storage.bucket.objects

    run(main())


def test_the_newest_is_by_epoch_then_sequence_number_then_time() -> None:
    async def main() -> None:
        place = Place()
        await place.write(some_metadata(50), epoch=1)
        stale = await place.write(some_metadata(90), epoch=1)
        newest = await place.write(some_metadata(60), epoch=2)
        again = await place.write(some_metadata(60), epoch=2)
        await place.write(some_metadata(99), epoch=1)
        other = await place.write(some_metadata(7, container_id=2), epoch=8)
        assert await newest_snapshots(place.storage) == {0: again, 2: other}
        assert newest.time_ms < again.time_ms
        assert stale.name in place.manifests
        listed = await list_snapshots(place.storage, 0)
        assert [(each.name.epoch, each.name.sequence_number) for each in listed] == [
            (1, 50),
            (1, 90),
            (1, 99),
            (2, 60),
            (2, 60),
        ]

    run(main())


def test_without_a_manifest_there_is_no_snapshot() -> None:
    async def main() -> None:
        place = Place()
        whole = await place.write(some_metadata(5))
        later = await place.write(some_metadata(6))
        del place.storage.bucket.objects[later.name]
        assert await newest_snapshots(place.storage) == {0: whole}
        del place.storage.bucket.objects[whole.name]
        assert await newest_snapshots(place.storage) == {}
        assert await newest_snapshots(Place().storage) == {}

    run(main())


@pytest.mark.parametrize("lost_reply", [False, True])
def test_a_write_that_fails_at_any_request_leaves_no_snapshot_without_its_tables(
    lost_reply: bool,
) -> None:
    async def main() -> None:
        for request in range(4):
            place = Place()
            puts = place.storage.put
            count = 0

            async def put(
                name: str,
                parts: Any,
                unique_id: bytes,
                metadata: Mapping[str, str] = NO_METADATA,
            ) -> None:
                nonlocal count
                count += 1
                if count == request + 1:  # noqa: B023 - called before the loop goes on
                    if lost_reply:
                        await puts(name, parts, unique_id, metadata)  # noqa: B023
                    raise StorageUnavailableError(name, "made to fail")
                await puts(name, parts, unique_id, metadata)  # noqa: B023

            place.storage.put = put  # type: ignore[method-assign]
            with pytest.raises(StorageUnavailableError):
                await place.write(some_metadata())
            found = await newest_snapshots(place.storage)
            assert bool(found) == (request == 3 and lost_reply)
            for manifest in found.values():
                assert (
                    await read_table(place.storage, manifest, "chunks")
                ).num_rows == manifest.tables["chunks"].rows
            # What it left goes with the old ones.
            place.clock.now_ms += 2 * AGE_MS
            await place.delete_old(keep=0)
            assert place.names == []

    run(main())


def test_snapshots_of_two_stores_are_distinguished_or_refused() -> None:
    async def main() -> None:
        place = Place()
        ours = await place.write(some_metadata())
        theirs = await place.write(some_metadata(), epoch=5, store_id=OTHER_STORE_ID)
        assert await newest_snapshots(place.storage, STORE_ID) == {0: ours}
        assert await newest_snapshots(place.storage, OTHER_STORE_ID) == {0: theirs}
        for _ in range(2):
            with pytest.raises(CatalogFormatError, match=f"{STORE_ID}, {OTHER_STORE_ID}"):
                await newest_snapshots(place.storage)
            for store_id in (STORE_ID, OTHER_STORE_ID):
                await StoreMarkers(place.storage, store_id).put()
        # The other is deleted for good, as after a restore.
        await StoreMarkers(place.storage, OTHER_STORE_ID).forget(STORE_ID)
        assert await newest_snapshots(place.storage) == {0: theirs}

    run(main())


def test_a_manifest_that_is_damaged_is_refused_and_not_passed_over() -> None:
    async def main() -> None:
        place = Place()
        await place.write(some_metadata(5))
        later = await place.write(some_metadata(6))
        data = place.storage.bucket.objects[later.name].data
        place.damage(later.name, data.replace(b'"epoch":1', b'"epoch":2'))
        with pytest.raises(CatalogFormatError, match=f"{later.name}: checksum"):
            await newest_snapshots(place.storage)
        place.damage(later.name, b"x" * 2_000_000)
        with pytest.raises(CatalogFormatError, match="2,000,000 bytes are no manifest"):
            await newest_snapshots(place.storage)

    run(main())


# --- what stays -----------------------------------------------------------------------------------


def test_the_newest_three_stay_and_what_is_younger_than_a_day() -> None:
    async def main() -> None:
        place = Place()
        written = [
            await place.write(some_metadata(10 + number), after_ms=AGE_MS // 4)
            for number in range(8)
        ]
        # Ages in quarters of a day: 7, 6, 5, 4, 3, 2, 1, 0.
        assert await place.delete_old() == 3
        assert place.manifests == [manifest.name for manifest in written[3:]]
        place.clock.now_ms += 1
        assert await place.delete_old() == 1
        place.clock.now_ms += 10 * AGE_MS
        assert await place.delete_old() == 1
        assert place.manifests == [manifest.name for manifest in written[5:]]
        assert await place.delete_old() == 0
        assert len(place.names) == 4 * 3

    run(main())


def test_other_stores_other_containers_and_later_owners_are_left_alone() -> None:
    async def main() -> None:
        place = Place()
        ours = await place.write(some_metadata(10), epoch=4)
        kept = [
            await place.write(some_metadata(10), epoch=5),
            await place.write(some_metadata(10, container_id=1), epoch=4),
            await place.write(some_metadata(10), epoch=4, store_id=OTHER_STORE_ID),
        ]
        foreign = CATALOG_PREFIX + "00000000/notes.txt"
        await place.storage.put(foreign, [b"x"], bytes(range(16)))
        place.clock.now_ms += 10 * AGE_MS
        assert await place.delete_old(epoch=4, keep=0) == 1
        assert ours.name not in place.names
        assert place.manifests == sorted(each.name for each in kept)
        assert foreign in place.names

    run(main())


def test_what_an_export_left_that_did_not_end_goes_after_a_day_and_counts_for_nothing() -> None:
    async def main() -> None:
        place = Place()
        written = [await place.write(some_metadata(10 + number)) for number in range(3)]
        left = await place.write(some_metadata(20))
        del place.storage.bucket.objects[left.name]
        assert await place.delete_old() == 0
        place.clock.now_ms += AGE_MS + 1
        assert await place.delete_old() == 1
        assert place.manifests == [manifest.name for manifest in written]
        assert len(place.names) == 12

    run(main())


def test_a_manifest_that_a_listing_does_not_show_yet_keeps_its_tables() -> None:
    """Found by simulated jobs: an old listing beside a clock that had jumped by a day."""

    class Lagging(MemoryObjectStorage):
        hidden = ""

        async def list(
            self, prefix: str = "", start_after: str = ""
        ) -> AsyncIterator[Sequence[StoredObject]]:
            async for page in super().list(prefix, start_after):
                yield [stored for stored in page if stored.name != self.hidden]

    async def main() -> None:
        place = Place()
        lagging = Lagging(place.runtime, page_objects=7)
        place.storage = lagging
        newest = await place.write(some_metadata())
        place.clock.now_ms += 2 * AGE_MS
        lagging.hidden = newest.name
        assert await place.delete_old(keep=1) == 0
        lagging.hidden = ""
        assert await newest_snapshots(lagging) == {0: newest}
        assert (await read_table(lagging, newest, "segments")).num_rows

    run(main())


def test_a_snapshot_that_a_listing_still_shows_is_passed_over() -> None:
    """Found by simulated jobs: a listing that lagged behind by the whole cleaning up, and the job
    ended with an error.
    """

    class Lagging(MemoryObjectStorage):
        shown: list[StoredObject] | None = None

        async def list(
            self, prefix: str = "", start_after: str = ""
        ) -> AsyncIterator[Sequence[StoredObject]]:
            if self.shown is not None:
                yield self.shown
                return
            async for page in super().list(prefix, start_after):
                yield page

    async def main() -> None:
        place = Place()
        lagging = Lagging(place.runtime)
        place.storage = lagging
        for sequence_number in (5, 6):
            await place.write(some_metadata(sequence_number))
        before = [stored async for page in lagging.list() for stored in page]
        place.clock.now_ms += 2 * AGE_MS
        newest = await place.write(some_metadata(7))
        assert await place.delete_old(keep=1) == 2
        lagging.shown = before
        assert await newest_snapshots(lagging) == {}
        lagging.shown = before[:4] + [
            stored async for page in super(Lagging, lagging).list() for stored in page
        ]
        assert await newest_snapshots(lagging) == {0: newest}
        # Of two stores, the one whose snapshots are only shown does not count.
        lagging.shown = None
        theirs = await place.write(some_metadata(), store_id=OTHER_STORE_ID)
        await StoreMarkers(lagging, OTHER_STORE_ID).put()
        await lagging.delete(newest.name)
        lagging.shown = before + [
            stored async for page in super(Lagging, lagging).list() for stored in page
        ]
        assert await newest_snapshots(lagging) == {0: theirs}

    run(main())


def test_a_deletion_that_is_cut_off_leaves_no_manifest_without_tables() -> None:
    async def main() -> None:
        for request in range(4):
            place = Place()
            old = await place.write(some_metadata(1))
            await place.write(some_metadata(2))
            place.clock.now_ms += 2 * AGE_MS
            deletes = place.storage.delete
            count = 0

            async def delete(name: str) -> None:
                nonlocal count
                count += 1
                if count > request:  # noqa: B023 - called before the loop goes on
                    raise StorageUnavailableError(name, "made to fail")
                await deletes(name)  # noqa: B023

            place.storage.delete = delete  # type: ignore[method-assign]
            with pytest.raises(StorageUnavailableError):
                await place.delete_old(keep=1)
            assert (old.name in place.names) == (request == 0)
            for each in await list_snapshots(place.storage):
                assert each.manifest is None or len(each.objects) == 4
            place.storage.delete = deletes  # type: ignore[method-assign]
            assert await place.delete_old(keep=1) == 1
            assert len(place.names) == 4

    run(main())
