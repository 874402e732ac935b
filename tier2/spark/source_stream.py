"""The stream reader of the data source: new rows of segments, as the catalog snapshots show more and more of them.

Rules of this file:

- what is new is what the newest snapshots have: the latency is that of their export (setting `catalog_export_s`), and a
  container without one has nothing yet;
- a batch is a range of each segment, both ends borders of rows, and its rows depend on nothing else: a batch planned again
  after a failure, by whatever later snapshot, has the same rows. That and Spark's checkpoint give each row exactly once;
- what was promised, by a batch or by a snapshot, and is truncated or deleted meanwhile is told by its range
  (`failOnDataLoss`);
- nothing is remembered between calls but what could be read again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from segmentstore.contracts.runtime import Runtime
from tier2.catalog.catalog_manifest import Manifest
from tier2.locations import open_object_storage
from tier2.object_storage import ObjectStorage
from tier2.spark.framing import FramingError
from tier2.spark.session import task_runtime
from tier2.spark.source_borders import find_border
from tier2.spark.source_catalog import load_chunks, load_segments, load_snapshots
from tier2.spark.source_errors import SegmentFramingError, SourceCatalogError
from tier2.spark.source_fetch import RangeLostError, SegmentBytes
from tier2.spark.source_merged import find_heirs
from tier2.spark.source_offsets import (
    Position,
    Progress,
    SegmentKey,
    StreamOffset,
    Waiting,
    admit,
    fill,
    next_offset,
    parse_offset,
    steps_between,
)
from tier2.spark.source_options import SourceOptions
from tier2.spark.source_plan import RowRange, SegmentChunks, SourceSegment
from tier2.spark.source_reader import SegmentPartition, checked_schema, plan_partitions, read_partition
from tier2.spark.source_rows import report_loss

BORDERS_AT_ONCE: Final = 16
"""Segments whose borders are looked for at the same time."""

_LOGGER: Final = logging.getLogger(__name__)


class SegmentStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on where the last batch ended. See the module's head."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._catalog = StreamCatalog(options)
        self._until: dict[int, Manifest] | None = None
        """With Trigger.AvailableNow: the snapshots it ends at."""
        checked_schema(schema)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Before everything there is; with `startingOffsets=latest` behind it."""
        if self._options.starting_offsets == "earliest":
            return StreamOffset().to_json()
        return asyncio.run(self._latest(StreamOffset(), None, only_ends=True)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """What option `maxBytesPerTrigger` says."""
        most = self._options.max_bytes_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxBytes(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """From now on nothing newer than the snapshots of this moment is seen."""
        self._until = asyncio.run(self._load_snapshots())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """How far the next batch may read."""
        budget = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        return asyncio.run(self._latest(parse_offset(start), budget)).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges between two offsets. After a restart these may be older than anything this process has seen."""
        return asyncio.run(self._plan(steps_between(parse_offset(start), parse_offset(end))))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        assert isinstance(partition, SegmentPartition), partition
        return read_partition(partition, self._options, checked_schema(self._schema))

    async def _load_snapshots(self) -> dict[int, Manifest]:
        storage = open_object_storage(self._options.tier2, task_runtime())
        try:
            return await load_snapshots(storage, self._options)
        finally:
            await storage.close()

    async def _latest(self, before: StreamOffset, budget: int | None, *, only_ends: bool = False) -> StreamOffset:
        runtime = task_runtime()
        storage = open_object_storage(self._options.tier2, runtime)
        try:
            manifests = self._until if self._until is not None else await load_snapshots(storage, self._options)
            step = LatestStep(storage, runtime, self._options, self._catalog, before)
            after = await step.take(manifests, budget)
            return StreamOffset(after.ends, {}, after.snapshots) if only_ends else after
        finally:
            await storage.close()

    async def _plan(self, steps: Mapping[SegmentKey, Progress]) -> list[InputPartition]:
        if not steps:
            return []
        storage = open_object_storage(self._options.tier2, task_runtime())
        try:
            manifests = self._until if self._until is not None else await load_snapshots(storage, self._options)
            ranges = []
            for container_id in sorted({key.container_id for key in steps}):
                manifest = manifests.get(container_id)
                if manifest is None:
                    raise SourceCatalogError(f"the catalog of container {container_id} is not there any more")
                segments = await self._catalog.segments(storage, manifest)
                mine = {key: step for key, step in steps.items() if key.container_id == container_id}
                ranges += [
                    each
                    for key, step in mine.items()
                    if (each := self._range(segments.get(key.segment_id), key, step)) is not None
                ]
            return await plan_partitions(storage, manifests, ranges, self._options, self._schema.fieldNames())
        finally:
            await storage.close()

    def _range(self, segment: SourceSegment | None, key: SegmentKey, step: Progress) -> RowRange | None:
        start, end = step
        if segment is None:
            name = f"{key.segment_id} of container {key.container_id}"
            report_loss(self._options, name, start, end, "the segment was deleted, or merged into another")
            return None
        if segment.storage_length < end:
            raise SourceCatalogError(
                f"the newest catalog of container {key.container_id} has segment {segment.name!r} up to offset"
                f" {segment.storage_length}, and the stream was at {end}: an older catalog has taken a newer one's place"
            )
        if segment.start_offset > start:
            lost_to = min(segment.start_offset, end)
            report_loss(self._options, segment.name, start, lost_to, f"truncated up to {segment.start_offset}")
            start = lost_to
        if start == end:
            return None
        # Both ends are borders: what stands before the last one without an end is the last row of a finished segment.
        return RowRange(segment, start, end, 0, end, complete=True, exact_end=self._options.format == "events")


class StreamCatalog:
    """The segments and chunks of the snapshots seen last, one of each container: every trigger asks for them."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._segments: dict[int, tuple[str, dict[int, SourceSegment]]] = {}

    async def segments(self, storage: ObjectStorage, manifest: Manifest) -> dict[int, SourceSegment]:
        """All segments with a name, by id."""
        held = self._segments.get(manifest.container_id)
        if held is None or held[0] != manifest.name:
            found = await load_segments(storage, manifest)
            held = (manifest.name, {segment.segment_id: segment for segment in found})
            self._segments[manifest.container_id] = held
        return held[1]


class LatestStep:
    """One call of `latestOffset`: from an offset to the next."""

    def __init__(
        self,
        storage: ObjectStorage,
        runtime: Runtime,
        options: SourceOptions,
        catalog: StreamCatalog,
        before: StreamOffset,
    ) -> None:
        self._storage = storage
        self._runtime = runtime
        self._options = options
        self._catalog = catalog
        self._before = before

    async def take(self, manifests: Mapping[int, Manifest], budget: int | None) -> StreamOffset:
        """The next offset by these snapshots, with about `budget` bytes between; None: with all there is."""
        positions: dict[int, Position] = {}
        starts: dict[SegmentKey, tuple[SourceSegment, int]] = {}
        gone: list[SegmentKey] = []
        waiting: dict[SegmentKey, Waiting] = {}
        for container_id, manifest in sorted(manifests.items()):
            position = Position(manifest.epoch, manifest.sequence_number)
            if position < self._before.snapshots.get(container_id, position):
                _LOGGER.warning("container %d: its newest catalog is older than one seen before", container_id)
                continue
            positions[container_id] = position
            segments = await self._catalog.segments(self._storage, manifest)
            left = [
                key for key in self._before.ends if key.container_id == container_id and key.segment_id not in segments
            ]
            merging = await self._merging(manifest, segments, left)
            gone += [key for key in left if key not in merging]
            waiting.update(merging)
            for segment in segments.values():
                if self._options.selects(segment.name):
                    starts[SegmentKey(container_id, segment.segment_id)] = (segment, self._start_of(segment))
        shares, steps = await self._admitted(manifests, starts, budget)
        for key, (_, start) in starts.items():
            # What is lost is passed over also where no row is to be read behind it.
            steps[key] = Progress(self._before.ends.get(key, start), steps[key].end if key in steps else start)
        waiting.update(self._waiting(starts, shares, steps))
        # Of containers that nothing new is known of, what waited waits on.
        waiting.update({key: left for key, left in self._before.waiting.items() if key.container_id not in positions})
        return next_offset(self._before, steps, frozenset(gone), positions, waiting)

    @staticmethod
    def _waiting(
        starts: Mapping[SegmentKey, tuple[SourceSegment, int]],
        shares: Mapping[SegmentKey, int],
        steps: Mapping[SegmentKey, Progress],
    ) -> Iterator[tuple[SegmentKey, Waiting]]:
        """What the limit of the batch leaves for later. The beginning of a row without an end is none of it."""
        for key, (segment, start) in starts.items():
            share, end = shares.get(key, 0), steps[key].end
            # Who looked from a border on and found none behind it has seen that no row there is whole.
            fruitless = share > 0 and end == start
            if share < segment.storage_length - start and end < segment.storage_length and not fruitless:
                yield key, Waiting(segment.storage_length, segment.name)

    async def _merging(
        self, manifest: Manifest, segments: Mapping[int, SourceSegment], left: Sequence[SegmentKey]
    ) -> dict[SegmentKey, Waiting]:
        """Of segments that the snapshot has no more: those whose unread bytes are on their way into one that is read.

        Unread bytes of the others are lost, unless they have arrived in such a one.
        """
        unread = {
            key.segment_id: (key, each)
            for key in left
            if (each := self._before.waiting.get(key)) is not None and self._options.selects(each.name)
        }
        if not unread:
            return {}
        seen = {segment_id: each.merged_into for segment_id, (_, each) in unread.items()}
        heirs = await find_heirs(self._storage, manifest, segments, seen)
        merging = {}
        for segment_id, (key, each) in unread.items():
            heir = heirs.get(segment_id)
            if heir is not None and self._options.selects(heir.segment.name):
                if not heir.arrived:
                    merging[key] = each._replace(merged_into=heir.holder)
                continue
            read = self._before.ends[key]
            why = f"with {each.stored - read} bytes unread the segment was "
            if heir is None:
                why += "deleted, or merged into another"
            else:
                why += f"merged into segment {heir.segment.name!r}, which this stream does not read"
            report_loss(self._options, each.name, read, each.stored, why)
        return merging

    def _start_of(self, segment: SourceSegment) -> int:
        read = self._before.ends.get(SegmentKey(segment.container_id, segment.segment_id))
        if read is None or read >= segment.start_offset:
            return segment.start_offset if read is None else min(read, segment.storage_length)
        report_loss(self._options, segment.name, read, segment.start_offset, "truncated before it was read")
        return segment.start_offset

    async def _admitted(
        self,
        manifests: Mapping[int, Manifest],
        starts: Mapping[SegmentKey, tuple[SourceSegment, int]],
        budget: int | None,
    ) -> tuple[dict[SegmentKey, int], dict[SegmentKey, Progress]]:
        """What each segment may give to the batch, and what it gives.

        What a segment cannot use, for it ends in one long row that is not whole yet, goes to those that were left out, the
        shortest first: else a short backlog would wait for as long as that row does.
        """
        backlogs = {key: segment.storage_length - start for key, (segment, start) in starts.items()}
        shares = admit(backlogs, budget)
        steps = await self._steps(manifests, starts, shares)
        if budget is not None:
            unused = sum(share for key, share in shares.items() if steps[key].end == steps[key].start)
            more = fill({key: size for key, size in backlogs.items() if key not in shares}, unused)
            shares |= more
            steps |= await self._steps(manifests, starts, more)
        return shares, steps

    async def _steps(
        self,
        manifests: Mapping[int, Manifest],
        starts: Mapping[SegmentKey, tuple[SourceSegment, int]],
        shares: Mapping[SegmentKey, int],
    ) -> dict[SegmentKey, Progress]:
        chunks: dict[SegmentKey, SegmentChunks] = {}
        if self._options.format != "raw":
            for container_id in sorted({key.container_id for key in shares}):
                ids = {key.segment_id for key in shares if key.container_id == container_id}
                found = await load_chunks(self._storage, manifests[container_id], ids)
                chunks.update({SegmentKey(container_id, segment_id): each for segment_id, each in found.items()})
        at_once = asyncio.Semaphore(BORDERS_AT_ONCE)

        async def one(key: SegmentKey, share: int) -> tuple[SegmentKey, Progress]:
            segment, start = starts[key]
            async with at_once:
                return key, Progress(start, await self._border(segment, start, start + share, chunks.get(key)))

        return dict(await asyncio.gather(*[one(key, share) for key, share in shares.items()]))

    async def _border(self, segment: SourceSegment, start: int, wanted: int, chunks: SegmentChunks | None) -> int:
        starts = chunks.starts if chunks is not None else np.empty(0, np.int64)
        find = partial(
            find_border,
            options=self._options,
            start=start,
            wanted=wanted,
            stored=segment.storage_length,
            finished=segment.finished,
            chunk_starts=starts,
        )
        known = chunks.between(start, segment.storage_length) if chunks is not None else ()
        source = SegmentBytes(self._storage, self._runtime, segment, known, self._options)
        try:
            return await find(source.read)
        except RangeLostError as lost:
            report_loss(self._options, segment.name, lost.start, lost.end, lost.why)
            return start  # The next snapshot says where it goes on.
        except FramingError as error:
            raise SegmentFramingError(segment.name, error.offset, error.detail) from error
        finally:
            await source.close()
