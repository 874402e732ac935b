"""What the data source reads of the catalog: the newest snapshots, the segments asked for, and their chunks.

Coroutines over ObjectStorage. Every process that asks again sees the newest snapshots of that moment; within one plan of a
batch, or one step of a stream, everything comes from the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tier2.catalog.catalog_manifest import Manifest
from tier2.catalog.catalog_reading import read_table
from tier2.catalog.catalog_snapshots import newest_snapshots
from tier2.object_storage import ObjectStorage
from tier2.spark.source_errors import SourceCatalogError
from tier2.spark.source_options import SourceOptions
from tier2.spark.source_plan import CHUNK_COLUMNS, SegmentChunks, SourceSegment, split_chunks

SEGMENT_COLUMNS = ("segment_id", "name", "start_offset", "length", "storage_length", "sealed")

Wants = Callable[[int, int, str], bool]
"""Whether a segment (container, id, name) is asked for."""


async def load_snapshots(storage: ObjectStorage, options: SourceOptions) -> dict[int, Manifest]:
    """The newest snapshot of each container that has one."""
    return await newest_snapshots(storage, options.store_id)


def check_snapshots(manifests: Mapping[int, Manifest], storage: ObjectStorage, wanted: Callable[[int], bool]) -> None:
    """Raise SourceCatalogError unless each container of the store that is wanted has a snapshot."""
    if not manifests:
        raise SourceCatalogError(f"{storage.url} has no catalog snapshot: export the catalog first")
    containers = max(each.containers for each in manifests.values())
    missing = [str(each) for each in range(containers) if each not in manifests and wanted(each)]
    if missing:
        raise SourceCatalogError(
            f"{storage.url} has no catalog snapshot of container {', '.join(missing)}: export the catalog there first"
        )


async def load_segments(storage: ObjectStorage, manifest: Manifest, wants: Wants | None = None) -> list[SourceSegment]:
    """Segments of a container that have a name, and that are wanted, by id."""
    table = await read_table(storage, manifest, "segments", columns=SEGMENT_COLUMNS)
    columns = [table[name].to_pylist() for name in SEGMENT_COLUMNS]
    container_id = manifest.container_id
    return [
        _segment(container_id, row)
        for row in zip(*columns, strict=True)
        if row[1] is not None and (wants is None or wants(container_id, row[0], row[1]))
    ]


async def find_segment(storage: ObjectStorage, manifest: Manifest, segment_id: int) -> SourceSegment | None:
    """The segment of this id; None if it is deleted, or merged into another."""
    table = await read_table(storage, manifest, "segments", columns=SEGMENT_COLUMNS, segment_ids=(segment_id,))
    for row in zip(*[table[name].to_pylist() for name in SEGMENT_COLUMNS], strict=True):
        if row[0] == segment_id and row[1] is not None:
            return _segment(manifest.container_id, row)
    return None


async def load_chunks(
    storage: ObjectStorage, manifest: Manifest, segment_ids: Collection[int]
) -> dict[int, SegmentChunks]:
    """The chunks of these segments, by id; one that has none is not there."""
    if not segment_ids:
        return {}
    table = await read_table(storage, manifest, "chunks", columns=CHUNK_COLUMNS, segment_ids=segment_ids)
    return split_chunks(table)


def _segment(container_id: int, row: tuple[int, str, int, int, int, bool]) -> SourceSegment:
    segment_id, name, start_offset, length, storage_length, sealed = row
    finished = sealed and storage_length == length
    return SourceSegment(container_id, segment_id, name, start_offset, storage_length, finished)
