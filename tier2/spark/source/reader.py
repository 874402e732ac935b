"""The batch reader of the data source: what Spark calls to plan a read and, in its tasks, to do it.

Rules of this file:

- an instance, and its partitions, are pickled and sent: options, names and records only, no storage
  and no lock;
- a storage is opened where it is used, on an event loop of the call's own, and closed there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tier2.catalog.catalog_manifest import Manifest
from tier2.locations import open_object_storage
from tier2.object_storage import ObjectStorage
from tier2.spark.common.session import task_runtime
from tier2.spark.common.storages import open_retried
from tier2.spark.source.batches import DATA_COLUMNS, BatchMaker, joined, types_of
from tier2.spark.source.catalog import (
    check_snapshots,
    check_starts,
    load_chunks,
    load_segments,
    load_snapshots,
)
from tier2.spark.source.chunks import SegmentChunks
from tier2.spark.source.errors import SourceCatalogError, SourceSchemaError
from tier2.spark.source.filter import EVERYTHING, RowFilter
from tier2.spark.source.framing import Rows
from tier2.spark.source.group import read_ranges
from tier2.spark.source.options import SourceOptions
from tier2.spark.source.packing import Chunks, plan_parts
from tier2.spark.source.partition import SegmentPartition
from tier2.spark.source.plan import RowRange, SourceSegment, batch_range, stored_since
from tier2.spark.source.rows import needs_bytes, report_loss
from tier2.spark.source.versions import arrow_schema


def checked_schema(schema: StructType, options: SourceOptions) -> pa.Schema:
    """The Arrow schema of what was asked for.

    Raises SourceSchemaError for what this source does not have.
    """
    types = types_of(options)
    if not len(schema):
        raise SourceSchemaError(f"no column is asked for; there are {', '.join(types)}")
    arrow = arrow_schema(schema)
    for field in arrow:
        known = types.get(field.name)
        if known is None:
            raise SourceSchemaError(
                f"there is no column {field.name!r}; there are {', '.join(types)}"
            )
        if field.type != known:
            raise SourceSchemaError(f"column {field.name} is of type {known}, not {field.type}")
    return arrow


class SegmentBatchReader(DataSourceReader):
    """Reads what is in Tier 2 by the newest catalog snapshots, as of the moment the query is
    planned.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filter = EVERYTHING
        checked_schema(schema, options)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan: one listing of the catalog, and two tables for each container."""
        return asyncio.run(self._plan())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition. Spark hands over an empty one if there is none."""
        if not isinstance(partition, SegmentPartition):
            return iter(())
        return read_partition(partition, self._options, checked_schema(self._schema, self._options))

    async def _plan(self) -> list[InputPartition]:
        storage = open_retried(self._options.tier2, task_runtime())
        try:
            manifests = await load_snapshots(storage, self._options)
            found = await find_segments(storage, manifests, self._options, self._filter)
            ranges = [
                each
                for segment in found
                if (each := batch_range(segment, self._options, self._filter, self._lost))
                is not None
            ]
            return await plan_partitions(
                storage, manifests, ranges, self._options, self._schema.fieldNames()
            )
        finally:
            await storage.close()

    def _lost(self, segment: str, start: int, end: int, why: str) -> None:
        report_loss(self._options, segment, start, end, why)


async def find_segments(
    storage: ObjectStorage,
    manifests: Mapping[int, Manifest],
    options: SourceOptions,
    rows: RowFilter,
) -> list[SourceSegment]:
    """The segments a batch reads, by container and id.

    Raises SourceCatalogError if the catalog does not say, SourceStartError.
    """
    # Where options name segments a query's own filter must not hide that there is none: they are
    # found first.
    named = options.segment is not None or bool(options.starts)
    first = EVERYTHING if named else rows

    def wants(container_id: int, segment_id: int, name: str) -> bool:
        return options.selects(name) and first.wants(container_id, segment_id, name)

    found = [
        segment
        for _, manifest in sorted(manifests.items())
        if first.wants_container(manifest.container_id)
        for segment in await load_segments(storage, manifest, wants)
    ]
    if not (options.segment is not None and found):
        # One that was found by its whole name is in no other container; anything else may be where
        # no snapshot is.
        check_snapshots(manifests, storage, first.wants_container)
    check_starts(options, found)
    if options.segment is not None and not found:
        raise SourceCatalogError(
            f"no segment {options.segment!r} is in the catalog of {storage.url}"
        )
    return [each for each in found if rows.wants(each.container_id, each.segment_id, each.name)]


async def plan_partitions(
    storage: ObjectStorage,
    manifests: Mapping[int, Manifest],
    ranges: Sequence[RowRange],
    options: SourceOptions,
    columns: Iterable[str],
    *,
    streaming: bool = False,
) -> list[InputPartition]:
    """Partitions of these ranges, with the chunks they need."""
    chunks: dict[int, dict[int, SegmentChunks]] | None = None
    since = None if streaming else options.starting_ms
    if needs_bytes(options, columns) or since is not None:
        ids: dict[int, set[int]] = {}
        for each in ranges:
            ids.setdefault(each.segment.container_id, set()).add(each.segment.segment_id)
        chunks = {
            container_id: await load_chunks(storage, manifests[container_id], mine)
            for container_id, mine in sorted(ids.items())
        }
    if chunks is not None and since is not None:
        ranges = list(_stored_since(ranges, chunks, since, options))
    return [SegmentPartition(some) for some in plan_parts(ranges, chunks, options)]


def _stored_since(
    ranges: Iterable[RowRange], chunks: Chunks, since_ms: int, options: SourceOptions
) -> Iterator[RowRange]:
    for each in ranges:
        mine = chunks[each.segment.container_id].get(each.segment.segment_id)
        # Chunks that are missing are reported where they are needed.
        later = each if mine is None else stored_since(each, mine, since_ms, options)
        if later is not None:
            yield later


def read_partition(
    partition: SegmentPartition, options: SourceOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition as Arrow batches; a generator, for Spark stops one that it needs no
    more of.
    """
    return joined(_read_partition(partition, options, schema))


def _read_partition(
    partition: SegmentPartition, options: SourceOptions, schema: pa.Schema
) -> Generator[pa.RecordBatch]:
    runtime = task_runtime()
    maker = BatchMaker(schema, options)
    with_data = any(name in DATA_COLUMNS for name in schema.names)
    with asyncio.Runner() as runner:
        # Not by `runner.run`: it sets a signal handler for each call, and that makes a text of the
        # result, all its bytes.
        run = runner.get_loop().run_until_complete
        storage = open_object_storage(options.tier2, runtime)
        try:
            found = read_ranges(storage, runtime, partition.ranges, options, with_data=with_data)
            try:
                while (some := run(_next(found))) is not None:
                    each, rows = some
                    yield from maker.batches(each, rows)
            finally:
                run(_closed(found))
        finally:
            run(storage.close())


async def _next(found: AsyncGenerator[tuple[RowRange, Rows]]) -> tuple[RowRange, Rows] | None:
    return await anext(found, None)


async def _closed(found: AsyncGenerator[tuple[RowRange, Rows]]) -> None:
    await found.aclose()
