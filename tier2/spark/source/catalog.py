"""What the data source reads of the catalog: the newest snapshots, the segments asked for, and
their chunks.

Coroutines over ObjectStorage. Every process that asks again sees the newest snapshots of that
moment; within one plan of a batch, or one step of a stream, everything comes from the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from tier2.catalog.catalog_manifest import Manifest
from tier2.catalog.catalog_reading import read_table
from tier2.catalog.catalog_snapshots import newest_snapshots
from tier2.object_storage import ObjectStorage
from tier2.spark.source.chunks import CHUNK_COLUMNS, SegmentChunks, split_chunks
from tier2.spark.source.errors import SourceCatalogError, SourceStartError
from tier2.spark.source.options import SourceOptions
from tier2.spark.source.plan import SourceSegment

SEGMENT_COLUMNS = (
    "segment_id",
    "name",
    "start_offset",
    "length",
    "storage_length",
    "sealed",
    "created_ms",
    "last_modified_ms",
)

Wants = Callable[[int, int, str], bool]
"""Whether a segment (container, id, name) is asked for."""


async def load_snapshots(storage: ObjectStorage, options: SourceOptions) -> dict[int, Manifest]:
    """The newest snapshot of each container that has one."""
    return await newest_snapshots(storage, options.store_id)


def check_snapshots(
    manifests: Mapping[int, Manifest], storage: ObjectStorage, wanted: Callable[[int], bool]
) -> None:
    """Raise SourceCatalogError unless each container of the store that is wanted has a snapshot."""
    if not manifests:
        raise SourceCatalogError(f"{storage.url} has no catalog snapshot: export the catalog first")
    containers = max(each.containers for each in manifests.values())
    missing = [str(each) for each in range(containers) if each not in manifests and wanted(each)]
    if missing:
        raise SourceCatalogError(
            f"{storage.url} has no catalog snapshot of container {', '.join(missing)}: "
            "export the catalog there first"
        )


def check_starts(options: SourceOptions, found: Iterable[SourceSegment]) -> None:
    """Raise SourceStartError for what `startingOffsets` names and is not among what is read, or not
    so long.
    """
    ends = {each.name: each.storage_length for each in found} if options.starts else {}
    for name, offset in options.starts.items():
        end = ends.get(name)
        if end is None:
            raise SourceStartError(
                f"startingOffsets: no segment {name!r} is among those that are read by "
                "the newest catalog"
            )
        if offset > end:
            raise SourceStartError(
                f"startingOffsets: offset {offset} is behind the end of segment {name!r} "
                f"in Tier 2, {end}"
            )


async def load_segments(
    storage: ObjectStorage, manifest: Manifest, wants: Wants | None = None
) -> list[SourceSegment]:
    """Segments of a container that have a name, and that are wanted, by id."""
    table = await read_table(storage, manifest, "segments", columns=SEGMENT_COLUMNS)
    columns = [table[name].to_pylist() for name in SEGMENT_COLUMNS]
    container_id = manifest.container_id
    return [
        _segment(container_id, row)
        for row in zip(*columns, strict=True)
        if row[1] is not None and (wants is None or wants(container_id, row[0], row[1]))
    ]


async def find_segment(
    storage: ObjectStorage, manifest: Manifest, segment_id: int
) -> SourceSegment | None:
    """The segment of this id; None if it is deleted, or merged into another."""
    return (await load_segments_of(storage, manifest, (segment_id,))).get(segment_id)


async def load_segments_of(
    storage: ObjectStorage, manifest: Manifest, segment_ids: Collection[int]
) -> dict[int, SourceSegment]:
    """The segments of these ids that are neither deleted nor merged into others."""
    table = await read_table(
        storage, manifest, "segments", columns=SEGMENT_COLUMNS, segment_ids=segment_ids
    )
    rows = zip(*[table[name].to_pylist() for name in SEGMENT_COLUMNS], strict=True)
    return {row[0]: _segment(manifest.container_id, row) for row in rows if row[1] is not None}


async def load_chunks(
    storage: ObjectStorage, manifest: Manifest, segment_ids: Collection[int]
) -> dict[int, SegmentChunks]:
    """The chunks of these segments, by id; one that has none is not there."""
    if not segment_ids:
        return {}
    table = await read_table(
        storage, manifest, "chunks", columns=CHUNK_COLUMNS, segment_ids=segment_ids
    )
    return split_chunks(table)


def _segment(
    container_id: int, row: tuple[int, str, int, int, int, bool, int, int]
) -> SourceSegment:
    segment_id, name, start_offset, length, storage_length, sealed, created_ms, modified_ms = row
    finished = sealed and storage_length == length
    return SourceSegment(
        container_id,
        segment_id,
        name,
        start_offset,
        storage_length,
        finished,
        created_ms,
        modified_ms,
    )
