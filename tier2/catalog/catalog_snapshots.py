"""Snapshots in an object storage: written, found, and deleted when they are old.

Rules of this file (docs/formats/catalog.md):

- the tables are put first and the manifest last: a snapshot exists when its manifest does. It is
  deleted the other way round, so that at no moment there is a manifest whose tables are missing;
- names are never used again, so an attempt that failed is given up; what it left is deleted with
  the old ones;
- a deletion touches only snapshots of its own store, of its own epoch or an older one: a stale
  owner can harm nothing that its successor wrote.

Coroutines over ObjectStorage and Runtime: a task of a job, the engine and a simulated world run the
same ones. All may raise StorageUnavailableError; what is there and is no snapshot is
CatalogFormatError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from tier2.catalog import catalog_manifest
from tier2.catalog.catalog_copy import CatalogCopy, copy_catalog
from tier2.catalog.catalog_files import (
    encode_parquet,
    footer_size,
    row_groups,
)
from tier2.catalog.catalog_format_error import CatalogFormatError
from tier2.catalog.catalog_manifest import MANIFEST_BYTES_MAX, Manifest, TableFile
from tier2.catalog.catalog_schema import SCHEMA_VERSION
from tier2.catalog.catalog_tables import CatalogTables, build_tables_of
from tier2.checked_fetches import fetch_checked
from tier2.object_names import (
    CATALOG_PREFIX,
    SnapshotName,
    catalog_prefix,
    manifest_name,
    marker_name,
    parse_catalog_name,
    parse_manifest_name,
    table_name,
)
from tier2.object_storage import InvalidRangeError, ObjectNotFoundError, ObjectStorage, StoredObject
from tier2.unique_ids import new_copy_id, new_unique_id

KEPT: Final = 3
"""The newest snapshots of a container that stay, however old they are."""
AGE_MS: Final = 24 * 3600 * 1000
"""What is younger stays: a job that runs for a day finds at its end what it began with."""


class EncodedTable(NamedTuple):
    """One table, ready to be put."""

    data: bytes
    rows: int
    crc32c: int
    footer_size: int
    footer_crc32c: int


def encode_copy(copy: CatalogCopy) -> dict[str, EncodedTable]:
    """The tables of a copy of a container's metadata as Parquet.

    Blocking and O(everything): for a thread.
    """
    return encode_tables(build_tables_of(copy))


def encode_tables(tables: CatalogTables) -> dict[str, EncodedTable]:
    """The tables as Parquet. Blocking."""
    encoded = {}
    for name, table in tables._asdict().items():
        data = encode_parquet(table, row_groups(name, table))
        footer = data[-footer_size(data[-8:]) :]
        encoded[name] = EncodedTable(
            data, table.num_rows, crc32c(data), len(footer), crc32c(footer)
        )
    return encoded


async def write_snapshot(
    storage: ObjectStorage,
    runtime: Runtime,
    *,
    store_id: str,
    containers: int,
    container_id: int,
    epoch: int,
    time_ms: int,
    metadata: ContainerMetadata,
    stopped: bool = False,
) -> Manifest:
    """Put a snapshot of these metadata as they are at the call.

    Four requests; most of the work is a thread's.

    `stopped`: no process has had the container open since `time_ms` (`Manifest.stopped`).
    """
    assert metadata.container_id == container_id, (metadata.container_id, container_id)
    copy = copy_catalog(metadata)
    executor = runtime.executor("catalog", 1)
    try:
        encoded = await asyncio.get_running_loop().run_in_executor(executor, encode_copy, copy)
    finally:
        executor.shutdown(wait=False)
    return await put_snapshot(
        storage,
        runtime,
        store_id=store_id,
        containers=containers,
        snapshot=SnapshotName(
            container_id, epoch, copy.sequence_number, new_copy_id(store_id, runtime.random)
        ),
        time_ms=time_ms,
        encoded=encoded,
        stopped=stopped,
    )


async def put_snapshot(
    storage: ObjectStorage,
    runtime: Runtime,
    *,
    store_id: str,
    containers: int,
    snapshot: SnapshotName,
    time_ms: int,
    encoded: dict[str, EncodedTable],
    stopped: bool = False,
) -> Manifest:
    """Put what `encode_tables` made under a name never used before; four requests, the manifest's
    the last.
    """
    tables = {}
    for name, table in encoded.items():
        file = table_name(snapshot, name)
        await storage.put(file, [table.data], new_unique_id(runtime.random))
        tables[name] = TableFile(
            object=file,
            size=len(table.data),
            rows=table.rows,
            schema_version=SCHEMA_VERSION,
            crc32c=table.crc32c,
            footer_size=table.footer_size,
            footer_crc32c=table.footer_crc32c,
        )
    manifest = Manifest(
        store_id=store_id,
        containers=containers,
        container_id=snapshot.container_id,
        epoch=snapshot.epoch,
        sequence_number=snapshot.sequence_number,
        time_ms=time_ms,
        tables=tables,
        stopped=stopped,
    )
    await storage.put(
        manifest.name, [catalog_manifest.encode(manifest)], new_unique_id(runtime.random)
    )
    return manifest


class ListedSnapshot(NamedTuple):
    """A snapshot as a listing shows it."""

    name: SnapshotName
    manifest: StoredObject | None
    """None: the export did not end, or is under way."""
    objects: tuple[StoredObject, ...]
    """All of it, the manifest too."""

    @property
    def modified_ms(self) -> int:
        """Of what was written last."""
        return max(stored.modified_ms for stored in self.objects)

    @property
    def order(self) -> tuple[int, int, int, bytes]:
        """By what they contain; of two with the same content the later written is the greater."""
        return (self.name.epoch, self.name.sequence_number, self.modified_ms, self.name.unique_id)


async def list_snapshots(
    storage: ObjectStorage, container_id: int | None = None
) -> list[ListedSnapshot]:
    """All snapshots, also those without a manifest: by container, then as they were taken.

    One listing.
    """
    prefix = CATALOG_PREFIX if container_id is None else catalog_prefix(container_id)
    found: dict[SnapshotName, list[StoredObject]] = {}
    async for page in storage.list(prefix):
        for stored in page:
            named = parse_catalog_name(stored.name)
            if named is not None:
                found.setdefault(named, []).append(stored)
    listed = [
        ListedSnapshot(
            named,
            next(
                (stored for stored in objects if parse_manifest_name(stored.name) is not None), None
            ),
            tuple(objects),
        )
        for named, objects in found.items()
    ]
    return sorted(listed, key=lambda each: (each.name.container_id, each.order))


class Unreadable(NamedTuple):
    """A manifest that cannot be read."""

    reason: str
    modified_ms: int
    """As the storage has it."""


async def newest_snapshots(
    storage: ObjectStorage,
    store_id: str | None = None,
    unreadable: dict[str, Unreadable] | None = None,
) -> dict[int, Manifest]:
    """The newest snapshot of each container that has one, by container.

    One listing, and a request for each container.

    A listing may lag and show what was deleted: that is passed over, by a request each. Where the
    snapshots are of several stores and `store_id` does not say which is meant, it is the only one
    of them that has a marker. The others are deleted for good, as before a restore. If there is no
    such one it is CatalogFormatError.

    A manifest that is there and cannot be read is CatalogFormatError too. With `unreadable` it is
    passed over for an older one, and noted there by its name, with the reason.
    """
    listed = [
        each
        for each in await list_snapshots(storage)
        if each.manifest is not None and (store_id is None or each.name.is_of(store_id))
    ]
    if len({each.name.store_mark for each in listed}) > 1:
        only = await _only_store(storage, listed, unreadable)
        listed = [each for each in listed if only is not None and each.name.is_of(only)]
    found = {
        container_id: await _newest_there(storage, list(of_container), unreadable)
        for container_id, of_container in groupby(listed, key=lambda each: each.name.container_id)
    }
    return {
        container_id: manifest for container_id, manifest in found.items() if manifest is not None
    }


async def _only_store(
    storage: ObjectStorage,
    listed: Sequence[ListedSnapshot],
    unreadable: dict[str, Unreadable] | None,
) -> str | None:
    """Of the stores that have a snapshot here, the one that has a marker; None if there is no
    snapshot. Raises CatalogFormatError.
    """
    of_stores: dict[bytes, list[ListedSnapshot]] = {}
    for each in listed:
        of_stores.setdefault(each.name.store_mark, []).append(each)
    manifests = [
        await _newest_there(storage, of_store, unreadable) for of_store in of_stores.values()
    ]
    stores = sorted(manifest.store_id for manifest in manifests if manifest is not None)
    there = [
        store_id for store_id in stores if await storage.head(marker_name(store_id)) is not None
    ]
    if stores and len(there) != 1:
        raise CatalogFormatError(
            f"{CATALOG_PREFIX}: snapshots of several stores are here ({', '.join(stores)}): name "
            "one, or forget the marker of those"
            " that were deleted for good"
        )
    return there[0] if there else None


async def _newest_there(
    storage: ObjectStorage,
    listed: Sequence[ListedSnapshot],
    unreadable: dict[str, Unreadable] | None,
) -> Manifest | None:
    """The last of these that was not deleted behind a listing that lags."""
    for each in reversed(listed):
        assert each.manifest is not None, each
        try:
            manifest = await _manifest_if_there(storage, each.manifest.name, each.manifest.size)
        except CatalogFormatError as error:
            if unreadable is None:
                raise
            unreadable[each.manifest.name] = Unreadable(str(error), each.manifest.modified_ms)
            continue
        if manifest is not None:
            return manifest
    return None


async def manifest_named(storage: ObjectStorage, name: str) -> Manifest:
    """The manifest that is this object, as an answer of the mailbox names it. Two requests."""
    stored = await storage.head(name) if parse_manifest_name(name) is not None else None
    if stored is None:
        raise CatalogFormatError(f"there is no manifest {name}")
    manifest = await _manifest_if_there(storage, name, stored.size)
    if manifest is None:
        raise CatalogFormatError(f"there is no object {name}")
    return manifest


async def _manifest_if_there(storage: ObjectStorage, name: str, size: int) -> Manifest | None:
    if not 0 < size <= MANIFEST_BYTES_MAX:
        raise CatalogFormatError(f"{name}: {size:,} bytes are no manifest")

    async def fetch() -> Manifest | None:
        try:
            data = await storage.get_range(name, 0, size)
        except ObjectNotFoundError:
            return None
        except InvalidRangeError as error:
            raise CatalogFormatError(f"it is shorter than a listing says: {error}") from None
        return catalog_manifest.parse(data, name)

    return await fetch_checked(fetch, CatalogFormatError)


async def delete_old_snapshots(
    storage: ObjectStorage,
    container_id: int,
    epoch: int,
    now_ms: int,
    *,
    store_id: str,
    keep: int = KEPT,
    age_ms: int = AGE_MS,
) -> int:
    """Delete those of this store's snapshots of a container that no reader needs any more; gives
    how many they were.

    The newest `keep` stay, and what is younger than `age_ms`; so does all of owners after `epoch`.
    """
    ours = [
        each
        for each in await list_snapshots(storage, container_id)
        if each.name.is_of(store_id) and each.name.epoch <= epoch
    ]
    whole = [each for each in ours if each.manifest is not None]
    given_up = [each for each in ours if each.manifest is None]
    old = [
        each
        for each in [*whole[: max(0, len(whole) - keep)], *given_up]
        if now_ms - each.modified_ms > age_ms
    ]
    count = 0
    for each in old:
        if each.manifest is not None:
            await storage.delete(each.manifest.name)
        elif await storage.head(manifest_name(each.name)) is not None:
            # A listing may lag: it is whole, and without its tables it would be a snapshot that
            # no reader can open.
            continue
        for stored in each.objects:
            if stored is not each.manifest:
                await storage.delete(stored.name)
        count += 1
    return count
