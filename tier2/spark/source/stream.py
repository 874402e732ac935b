"""The stream reader of the data source: new rows of segments, as the catalog snapshots show more
and more of them.

Rules of this file:

- what is new is what the newest snapshots have: the latency is that of their export (setting
  `catalog_export_interval_s`), and a container without one has nothing yet;
- a batch is a range of each segment, both ends borders of rows, and its rows depend on nothing
  else. A batch planned again after a failure, by whatever later snapshot, has the same rows. That
  and Spark's checkpoint give each row exactly once;
- what was promised, by a batch or by a snapshot, and is truncated or deleted meanwhile is reported
  by its range (`failOnDataLoss`);
- nothing is remembered between calls but what could be read again;
- before 4.2 Spark does not say where `latestOffset` begins: at the end of what was planned last,
  which Spark reports after a restart, too, by planning an empty batch there. The offsets of a
  batch are compared, so none goes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tier2.catalog.catalog_manifest import Manifest
from tier2.spark.common.session import task_runtime
from tier2.spark.common.storages import open_retried
from tier2.spark.source.catalog import load_snapshots
from tier2.spark.source.errors import SourceCatalogError
from tier2.spark.source.offsets import (
    SegmentKey,
    SegmentStep,
    StreamOffset,
    check_order,
    check_store,
    parse_offset,
    steps_between,
)
from tier2.spark.source.options import SourceOptions
from tier2.spark.source.partition import SegmentPartition
from tier2.spark.source.plan import RowRange, SourceSegment
from tier2.spark.source.reader import checked_schema, plan_partitions, read_partition
from tier2.spark.source.rows import report_loss
from tier2.spark.source.step import Backlog, LatestStep, Limits, StreamCatalog, store_of
from tier2.spark.source.versions import has_limits

if TYPE_CHECKING or has_limits():
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:
    SupportsTriggerAvailableNow = (
        object  # Spark ends such a query at the first `latestOffset` by itself.
    )


class SegmentStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on where the last batch ended. See the module's head."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._catalog = StreamCatalog(options)
        self._until: dict[int, Manifest] | None = None
        """With Trigger.AvailableNow: the snapshots it ends at."""
        self._backlog: Backlog | None = None
        self._reached: StreamOffset | None = None
        """Where the next batch begins, for a Spark that does not say."""
        self._begun: StreamOffset | None = None
        """For the same: what `initialOffset` is."""
        checked_schema(schema, options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Before everything there is, or where the options say. Raises SourceStartError."""
        if has_limits():
            return asyncio.run(self._initial()).to_json()
        if self._begun is None:
            # Asked for behind the first `latestOffset`: what came since then would be left out.
            self._begun = asyncio.run(self._initial())
        return self._begun.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """What options `maxBytesPerTrigger` and `maxRowsPerTrigger` say; of both it is the bytes
        that Spark is notified of.
        """
        bytes_max, rows_max = (
            self._options.max_bytes_per_trigger,
            self._options.max_rows_per_trigger,
        )
        if bytes_max is not None:
            return ReadMaxBytes(bytes_max)
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """From now on nothing newer than the snapshots of this moment is seen."""
        self._until = asyncio.run(self._load_snapshots())

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """How far the next batch may read; of no start, from where the last one ended, without a
        limit.
        """
        if start is None or limit is None:
            before = (
                self._reached if self._reached is not None else parse_offset(self.initialOffset())
            )
            self._reached = asyncio.run(self._latest(before, Limits()))
            return self._reached.to_json()
        limits = Limits()
        if isinstance(limit, ReadMaxBytes):
            limits = Limits(limit.max_bytes, self._options.max_rows_per_trigger)
        elif isinstance(limit, ReadMaxRows):
            limits = Limits(None, limit.max_rows)
        return asyncio.run(self._latest(parse_offset(start), limits)).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """What is left behind the batch that was planned last, for `latestOffset` in the query's
        progress.
        """
        if self._backlog is None or self._backlog.oldest_ms is None:
            return None
        as_of = datetime.fromtimestamp(self._backlog.oldest_ms / 1000, UTC).isoformat(
            timespec="milliseconds"
        )
        return {
            "bytesBehind": self._backlog.bytes_left,
            "segmentsBehind": self._backlog.segments,
            "snapshotsSince": as_of,
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges between two offsets.

        After a restart these may be older than anything this process has seen.
        """
        before, after = parse_offset(start), parse_offset(end)
        check_order(before, after)
        self._reached = after
        return asyncio.run(self._plan(steps_between(before, after), after))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        assert isinstance(partition, SegmentPartition), partition
        return read_partition(partition, self._options, checked_schema(self._schema, self._options))

    async def _load_snapshots(self) -> dict[int, Manifest]:
        storage = open_retried(self._options.tier2, task_runtime())
        try:
            return await load_snapshots(storage, self._options)
        finally:
            await storage.close()

    async def _initial(self) -> StreamOffset:
        options = self._options
        if (
            options.starting_offsets == "earliest"
            and not options.starts
            and options.starting_ms is None
        ):
            return StreamOffset()
        if options.starting_offsets == "latest":
            after = await self._latest(StreamOffset(), Limits())
            return StreamOffset(after.ends, {}, after.snapshots, store_id=after.store_id)
        runtime = task_runtime()
        storage = open_retried(options.tier2, runtime)
        try:
            manifests = await load_snapshots(storage, options)
            return await LatestStep(storage, runtime, options, self._catalog, StreamOffset()).begin(
                manifests
            )
        finally:
            await storage.close()

    async def _latest(self, before: StreamOffset, limits: Limits) -> StreamOffset:
        runtime = task_runtime()
        storage = open_retried(self._options.tier2, runtime)
        try:
            manifests = (
                self._until
                if self._until is not None
                else await load_snapshots(storage, self._options)
            )
            step = LatestStep(storage, runtime, self._options, self._catalog, before)
            after = await step.take(manifests, limits)
            self._backlog = step.backlog
            return after
        finally:
            await storage.close()

    async def _plan(
        self, steps: Mapping[SegmentKey, SegmentStep], after: StreamOffset
    ) -> list[InputPartition]:
        if not steps:
            return []
        storage = open_retried(self._options.tier2, task_runtime())
        try:
            manifests = (
                self._until
                if self._until is not None
                else await load_snapshots(storage, self._options)
            )
            check_store(after, store_of(manifests))
            ranges = []
            for container_id in sorted({key.container_id for key in steps}):
                manifest = manifests.get(container_id)
                if manifest is None:
                    raise SourceCatalogError(
                        f"the catalog of container {container_id} is not there any more"
                    )
                segments = await self._catalog.segments(storage, manifest)
                mine = {
                    key: step for key, step in steps.items() if key.container_id == container_id
                }
                ranges += [
                    each
                    for key, step in mine.items()
                    if (each := self._range(segments.get(key.segment_id), key, step)) is not None
                ]
            return await plan_partitions(
                storage, manifests, ranges, self._options, self._schema.fieldNames(), streaming=True
            )
        finally:
            await storage.close()

    def _range(
        self, segment: SourceSegment | None, key: SegmentKey, step: SegmentStep
    ) -> RowRange | None:
        start, end = step
        if segment is None:
            name = f"{key.segment_id} of container {key.container_id}"
            report_loss(
                self._options, name, start, end, "the segment was deleted, or merged into another"
            )
            return None
        if segment.storage_length < end:
            raise SourceCatalogError(
                f"the newest catalog of container {key.container_id} has segment "
                f"{segment.name!r} up to offset"
                f" {segment.storage_length}, and the stream was at {end}: an older "
                "catalog has taken a newer one's place"
            )
        if segment.start_offset > start:
            lost_to = min(segment.start_offset, end)
            report_loss(
                self._options,
                segment.name,
                start,
                lost_to,
                f"truncated up to {segment.start_offset}",
            )
            start = lost_to
        if start == end:
            return None
        # Both ends are borders: what stands before the last one without an end is the last row of a
        # finished segment.
        return RowRange(
            segment, start, end, 0, end, complete=True, exact_end=self._options.format == "events"
        )
