"""The batch reader of the data source: what Spark calls to plan a read and, in its tasks, to do it.

Rules of this file:

- an instance, and its partitions, are pickled and sent: options, names and records only, no storage and no lock;
- a storage is opened where it is used, on an event loop of the call's own, and closed there;
- Spark refuses a reader that takes filters unless `spark.sql.python.filterPushdown.enabled` is set, so there are two classes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tier2.catalog.catalog_manifest import Manifest
from tier2.locations import open_object_storage
from tier2.object_storage import ObjectStorage
from tier2.spark.framing import Rows
from tier2.spark.session import task_runtime
from tier2.spark.source_catalog import check_snapshots, load_chunks, load_segments, load_snapshots
from tier2.spark.source_errors import SourceCatalogError, SourceSchemaError
from tier2.spark.source_filter import EVERYTHING, Condition, RowFilter, with_condition
from tier2.spark.source_options import SourceOptions
from tier2.spark.source_plan import RowRange, SourceSegment, batch_range, cut_range, pack, split_bytes
from tier2.spark.source_rows import DATA_COLUMNS, TYPES, BatchMaker, joined, needs_bytes, read_rows, report_loss


class SegmentPartition(InputPartition):
    """What one task reads: ranges of rows, of one or several segments."""

    def __init__(self, ranges: tuple[RowRange, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


def checked_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of what was asked for. Raises SourceSchemaError for what this source does not have."""
    if not len(schema):
        raise SourceSchemaError(f"no column is asked for; there are {', '.join(TYPES)}")
    arrow = to_arrow_schema(schema, timezone="UTC")
    for field in arrow:
        known = TYPES.get(field.name)
        if known is None:
            raise SourceSchemaError(f"there is no column {field.name!r}; there are {', '.join(TYPES)}")
        if field.type != known:
            raise SourceSchemaError(f"column {field.name} is of type {known}, not {field.type}")
    return arrow


class SegmentBatchReader(DataSourceReader):
    """Reads what is in Tier 2 by the newest catalog snapshots, as of the moment the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filter = EVERYTHING
        checked_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan: one listing of the catalog, and two tables for each container."""
        return asyncio.run(self._plan())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition. Spark hands over an empty one if there is none."""
        if not isinstance(partition, SegmentPartition):
            return iter(())
        return read_partition(partition, self._options, checked_schema(self._schema))

    async def _plan(self) -> list[InputPartition]:
        storage = open_object_storage(self._options.tier2, task_runtime())
        try:
            manifests = await load_snapshots(storage, self._options)
            found = await find_segments(storage, manifests, self._options, self._filter)
            ranges = [
                each
                for segment in found
                if (each := batch_range(segment, self._options, self._filter, self._lost)) is not None
            ]
            return await plan_partitions(storage, manifests, ranges, self._options, self._schema.fieldNames())
        finally:
            await storage.close()

    def _lost(self, segment: str, start: int, end: int, why: str) -> None:
        report_loss(self._options, segment, start, end, why)


class FilteringBatchReader(SegmentBatchReader):
    """The same, told beforehand which rows are wanted: filters on container, segment, its id and offset are kept here."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take what can be kept exactly, give the rest back."""
        for each in filters:
            condition = _condition(each)
            taken = with_condition(self._filter, condition) if condition is not None else None
            if taken is None:
                yield each
            else:
                self._filter = taken


_KINDS: Final = {
    EqualTo: "=",
    EqualNullSafe: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    In: "in",
    StringStartsWith: "starts with",
    IsNotNull: "is not null",
}


def _condition(each: Filter) -> Condition | None:
    kind = _KINDS.get(type(each))
    attribute: tuple[str, ...] = getattr(each, "attribute", ())
    if kind is None or len(attribute) != 1:
        return None
    value = getattr(each, "value", None)
    return Condition(attribute[0], kind, tuple(value) if kind == "in" and value is not None else value)


async def find_segments(
    storage: ObjectStorage, manifests: Mapping[int, Manifest], options: SourceOptions, rows: RowFilter
) -> list[SourceSegment]:
    """The segments a batch reads, by container and id. Raises SourceCatalogError if the catalog does not say."""

    def wants(container_id: int, segment_id: int, name: str) -> bool:
        return options.selects(name) and rows.wants(container_id, segment_id, name)

    found = [
        segment
        for _, manifest in sorted(manifests.items())
        if rows.wants_container(manifest.container_id)
        for segment in await load_segments(storage, manifest, wants)
    ]
    if not (options.segment is not None and found):
        # One that was found by its whole name is in no other container; anything else may be where no snapshot is.
        check_snapshots(manifests, storage, rows.wants_container)
    if options.segment is not None and not found and rows == EVERYTHING:
        raise SourceCatalogError(f"no segment {options.segment!r} is in the catalog of {storage.url}")
    return found


async def plan_partitions(
    storage: ObjectStorage,
    manifests: Mapping[int, Manifest],
    ranges: Sequence[RowRange],
    options: SourceOptions,
    columns: Iterable[str],
) -> list[InputPartition]:
    """Partitions of these ranges, with the chunks they need."""
    wanted = needs_bytes(options, columns)
    split = split_bytes(ranges, options)
    parts: list[RowRange] = []
    by_container: dict[int, list[RowRange]] = {}
    for each in ranges:
        by_container.setdefault(each.segment.container_id, []).append(each)
    for container_id, some in by_container.items():
        ids = {each.segment.segment_id for each in some} if wanted else set[int]()
        chunks = await load_chunks(storage, manifests[container_id], ids)
        for each in some:
            if wanted and each.segment.segment_id not in chunks:
                raise SourceCatalogError(f"the catalog has no chunk of segment {each.segment.name!r}")
            parts += cut_range(each, chunks.get(each.segment.segment_id), split, options)
    return [SegmentPartition(some_parts) for some_parts in pack(parts, split)]


def read_partition(partition: SegmentPartition, options: SourceOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a partition as Arrow batches; a generator, for Spark stops one that it needs no more of."""
    return joined(_read_partition(partition, options, schema))


def _read_partition(
    partition: SegmentPartition, options: SourceOptions, schema: pa.Schema
) -> Generator[pa.RecordBatch]:
    runtime = task_runtime()
    maker = BatchMaker(schema)
    with_data = any(name in DATA_COLUMNS for name in schema.names)
    with asyncio.Runner() as runner:
        # Not by `runner.run`: it sets a signal handler for each call, and that makes a text of the result, all its bytes.
        run = runner.get_loop().run_until_complete
        storage = open_object_storage(options.tier2, runtime)
        try:
            for each in partition.ranges:
                found = read_rows(storage, runtime, each, options, with_data=with_data)
                try:
                    while (rows := run(_next(found))) is not None:
                        yield from maker.batches(each.segment, rows)
                finally:
                    run(_closed(found))
        finally:
            run(storage.close())


async def _next(found: AsyncGenerator[Rows]) -> Rows | None:
    return await anext(found, None)


async def _closed(found: AsyncGenerator[Rows]) -> None:
    await found.aclose()
