"""One step of a stream: from an offset to the next, by the snapshots of one moment, within the
limits of a batch.

Rules of this file:

- what a batch may take is shared among segments in proportion to what waits, by bytes, by rows, or
  by both; and cut back to a border of rows;
- rows are counted by reading them, so a limit in rows costs the driver a reading of the batch; none
  of `raw`;
- short backlogs are checked in groups, by a few GETs for all.

Coroutines over ObjectStorage.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from segmentstore.contracts.runtime import Runtime
from tier2.catalog.catalog_manifest import Manifest
from tier2.object_storage import ObjectStorage
from tier2.spark.source.borders import SCAN_BYTES, end_of_rows, find_border, first_border
from tier2.spark.source.catalog import check_starts, load_chunks, load_segments
from tier2.spark.source.chunks import SegmentChunks
from tier2.spark.source.errors import SegmentFramingError
from tier2.spark.source.fetch import RangeLostError, SegmentBytes
from tier2.spark.source.framing import FramingError
from tier2.spark.source.group import GROUP_RANGES, Held, fetch_group, groups, is_small
from tier2.spark.source.merged import find_merge_targets
from tier2.spark.source.offsets import (
    Position,
    SegmentKey,
    SegmentStep,
    StreamOffset,
    WaitingSegment,
    admit,
    check_store,
    fill,
    next_offset,
)
from tier2.spark.source.options import SourceOptions
from tier2.spark.source.plan import RowRange, SourceSegment, place_since
from tier2.spark.source.rows import report_loss

BORDERS_AT_ONCE: Final = 16
"""Segments whose borders are searched for at the same time."""
ROW_TURNS: Final = 3
"""How often rows that segments could not use are given to others."""

_LOGGER: Final = logging.getLogger(__name__)


class Limits(NamedTuple):
    """Of one batch; None: there is none."""

    bytes_max: int | None = None
    rows_max: int | None = None


class Backlog(NamedTuple):
    """What the snapshots have that lies behind a batch."""

    bytes_left: int
    segments: int
    oldest_ms: int | None
    """When the oldest of the snapshots was made; None: there is none."""


class _Step(NamedTuple):
    """Where a batch ends in one segment, and its rows if they were counted."""

    end: int
    rows: int


class StreamCatalog:
    """The segments and chunks of the snapshots seen last, one of each container: every trigger asks
    for them.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._segments: dict[int, tuple[str, dict[int, SourceSegment]]] = {}

    async def segments(
        self, storage: ObjectStorage, manifest: Manifest
    ) -> dict[int, SourceSegment]:
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

        self.backlog = Backlog(0, 0, None)
        """Behind what `take` gave, the beginnings of rows without an end among it."""

    async def begin(self, manifests: Mapping[int, Manifest]) -> StreamOffset:
        """The offset that options `startingOffsets`, with places, and `startingTimestamp` ask
        for.
        """
        wanted: dict[SegmentKey, tuple[SourceSegment, int, SegmentChunks | None]] = {}
        found: list[SourceSegment] = []
        for container_id, manifest in sorted(manifests.items()):
            segments = await self._catalog.segments(self._storage, manifest)
            mine = {key: each for key, each in segments.items() if self._options.selects(each.name)}
            found += mine.values()
            since, starts = self._options.starting_ms, self._options.starts
            places = {key: starts[each.name] for key, each in mine.items() if each.name in starts}
            ids = list(places if since is None else mine)
            chunks: dict[int, SegmentChunks] = {}
            if since is not None or self._options.format != "raw":
                chunks = await load_chunks(self._storage, manifest, ids)
            for segment_id in ids:
                segment, known = mine[segment_id], chunks.get(segment_id)
                place = places.get(segment_id)
                if place is None:
                    assert since is not None
                    later = place_since(known, since) if known is not None else None
                    place = segment.storage_length if later is None else later
                elif 0 < place < segment.start_offset:
                    report_loss(
                        self._options, segment.name, place, segment.start_offset, "truncated"
                    )
                wanted[SegmentKey(container_id, segment_id)] = (segment, place, known)
        check_starts(self._options, found)
        at_once = asyncio.Semaphore(BORDERS_AT_ONCE)

        async def one(key: SegmentKey) -> tuple[SegmentKey, int]:
            segment, place, known = wanted[key]
            async with at_once:
                return key, await self._first(segment, place, known)

        ends = dict(await asyncio.gather(*[one(key) for key in wanted]))
        return StreamOffset(
            ends,
            {},
            {key: _position_of(manifest) for key, manifest in manifests.items()},
            store_id=store_of(manifests),
        )

    async def _first(self, segment: SourceSegment, place: int, chunks: SegmentChunks | None) -> int:
        known = (
            chunks.between(segment.start_offset, segment.storage_length)
            if chunks is not None
            else ()
        )
        source = SegmentBytes(self._storage, self._runtime, segment, known, self._options)
        # A place that a caller names is a border of events, and so is where a chunk begins if it is
        # said to be.
        sure = self._options.starting_ms is None or self._options.event_borders == "chunks"
        try:
            return await first_border(source.read, self._options, segment, place, known=sure)
        except RangeLostError as lost:
            report_loss(self._options, segment.name, lost.start, lost.end, lost.why)
            return place
        except FramingError as error:
            raise SegmentFramingError(segment.name, error.offset, error.detail) from error
        finally:
            await source.close()

    async def take(self, manifests: Mapping[int, Manifest], limits: Limits) -> StreamOffset:
        """The next offset by these snapshots, within about these limits.

        Raises OffsetStoreError.
        """
        store_id = store_of(manifests)
        check_store(self._before, store_id)
        positions: dict[int, Position] = {}
        starts: dict[SegmentKey, tuple[SourceSegment, int]] = {}
        missing: list[SegmentKey] = []
        waiting: dict[SegmentKey, WaitingSegment] = {}
        for container_id, manifest in sorted(manifests.items()):
            position = _position_of(manifest)
            if position < self._before.snapshots.get(container_id, position):
                _LOGGER.warning(
                    "container %d: its newest catalog is older than one seen before", container_id
                )
                continue
            positions[container_id] = position
            segments = await self._catalog.segments(self._storage, manifest)
            left = [
                key
                for key in self._before.ends
                if key.container_id == container_id and key.segment_id not in segments
            ]
            merging = await self._merging(manifest, segments, left)
            missing += [key for key in left if key not in merging]
            waiting.update(merging)
            for segment in segments.values():
                if self._options.selects(segment.name):
                    starts[SegmentKey(container_id, segment.segment_id)] = (
                        segment,
                        self._start_of(segment),
                    )
        shares, ends = await self._admitted(manifests, starts, limits)
        steps = {
            # What is lost is passed over also where no row is to be read behind it.
            key: SegmentStep(
                self._before.ends.get(key, start), ends[key].end if key in ends else start
            )
            for key, (_, start) in starts.items()
        }
        left_over = [
            segment.storage_length - steps[key].end for key, (segment, _) in starts.items()
        ]
        times = [manifest.time_ms for manifest in manifests.values()]
        self.backlog = Backlog(sum(left_over), sum(map(bool, left_over)), min(times, default=None))
        waiting.update(self._waiting(starts, shares, steps))
        # Of containers that nothing new is known of, what waited waits on.
        waiting.update(
            {
                key: left
                for key, left in self._before.waiting.items()
                if key.container_id not in positions
            }
        )
        return next_offset(
            self._before, steps, frozenset(missing), positions, waiting, store_id=store_id
        )

    @staticmethod
    def _waiting(
        starts: Mapping[SegmentKey, tuple[SourceSegment, int]],
        shares: Mapping[SegmentKey, int],
        steps: Mapping[SegmentKey, SegmentStep],
    ) -> Iterator[tuple[SegmentKey, WaitingSegment]]:
        """What the limit of the batch leaves for later.

        The beginning of a row without an end is none of it.
        """
        for key, (segment, start) in starts.items():
            share, end = shares.get(key, 0), steps[key].end
            # A reader that checked from a border on and found none behind it has seen that no row
            # there is whole.
            fruitless = share > 0 and end == start
            if (
                share < segment.storage_length - start
                and end < segment.storage_length
                and not fruitless
            ):
                yield key, WaitingSegment(segment.storage_length, segment.name)

    async def _merging(
        self, manifest: Manifest, segments: Mapping[int, SourceSegment], left: Sequence[SegmentKey]
    ) -> dict[SegmentKey, WaitingSegment]:
        """Of segments that the snapshot has no more: those whose unread bytes are on their way into
        one that is read.

        Unread bytes of the others are lost, unless they have arrived in such a one.
        """
        unread = {
            key.segment_id: (key, each)
            for key in left
            if (each := self._before.waiting.get(key)) is not None
            and self._options.selects(each.name)
        }
        if not unread:
            return {}
        seen = {segment_id: each.merged_into for segment_id, (_, each) in unread.items()}
        merge_targets = await find_merge_targets(self._storage, manifest, segments, seen)
        merging = {}
        for segment_id, (key, each) in unread.items():
            target = merge_targets.get(segment_id)
            if target is not None and self._options.selects(target.segment.name):
                if not target.arrived:
                    merging[key] = each._replace(merged_into=target.holder)
                continue
            read = self._before.ends[key]
            why = f"with {each.stored - read} bytes unread the segment was "
            if target is None:
                why += "deleted, or merged into another"
            else:
                why += (
                    f"merged into segment {target.segment.name!r}, which this stream does not read"
                )
            report_loss(self._options, each.name, read, each.stored, why)
        return merging

    def _start_of(self, segment: SourceSegment) -> int:
        read = self._before.ends.get(SegmentKey(segment.container_id, segment.segment_id))
        if read is None or read >= segment.start_offset:
            return segment.start_offset if read is None else min(read, segment.storage_length)
        report_loss(
            self._options, segment.name, read, segment.start_offset, "truncated before it was read"
        )
        return segment.start_offset

    async def _admitted(
        self,
        manifests: Mapping[int, Manifest],
        starts: Mapping[SegmentKey, tuple[SourceSegment, int]],
        limits: Limits,
    ) -> tuple[dict[SegmentKey, int], dict[SegmentKey, _Step]]:
        """How many bytes each segment may give to the batch, and where the batch ends in it.

        What a segment cannot use, for it ends in one long row that is not whole yet, goes to those
        that were omitted, the shortest first. Else a short backlog would wait for as long as that
        row does.
        """
        backlogs = {key: segment.storage_length - start for key, (segment, start) in starts.items()}
        shares = admit(backlogs, limits.bytes_max)
        if limits.rows_max is not None:
            return await self._admitted_rows(manifests, starts, shares, limits.rows_max)
        steps = await self._steps(manifests, starts, shares)
        if limits.bytes_max is not None:
            unused = sum(share for key, share in shares.items() if steps[key].end == starts[key][1])
            more = fill({key: size for key, size in backlogs.items() if key not in shares}, unused)
            shares |= more
            steps |= await self._steps(manifests, starts, more)
        return shares, steps

    async def _admitted_rows(
        self,
        manifests: Mapping[int, Manifest],
        starts: Mapping[SegmentKey, tuple[SourceSegment, int]],
        allowed: Mapping[SegmentKey, int],
        rows_left: int,
    ) -> tuple[dict[SegmentKey, int], dict[SegmentKey, _Step]]:
        """`_admitted` of so many rows.

        A row has a byte at least: the bytes that wait say how they are shared.
        """
        shares: dict[SegmentKey, int] = {}
        steps: dict[SegmentKey, _Step] = {}
        going_on = dict(allowed)
        for _ in range(ROW_TURNS):
            given = admit(going_on, rows_left)
            if not given:
                break
            places = {
                key: (starts[key][0], steps[key].end if key in steps else starts[key][1])
                for key in given
            }
            found = await self._steps(
                manifests, places, {key: going_on[key] for key in given}, given
            )
            for key, step in found.items():
                start = starts[key][1]
                steps[key] = step
                rows_left -= step.rows
                left = start + allowed[key] - step.end
                if step.rows >= given[key] and left > 0:
                    # It ends where the limit does: what is behind it waits.
                    shares[key], going_on[key] = step.end - start, left
                else:
                    shares[key] = allowed[key]
                    del going_on[key]
        return shares, steps

    async def _steps(
        self,
        manifests: Mapping[int, Manifest],
        starts: Mapping[SegmentKey, tuple[SourceSegment, int]],
        shares: Mapping[SegmentKey, int],
        rows: Mapping[SegmentKey, int] | None = None,
    ) -> dict[SegmentKey, _Step]:
        chunks: dict[SegmentKey, SegmentChunks] = {}
        if self._options.format != "raw":
            for container_id in sorted({key.container_id for key in shares}):
                ids = {key.segment_id for key in shares if key.container_id == container_id}
                found = await load_chunks(self._storage, manifests[container_id], ids)
                chunks.update(
                    {
                        SegmentKey(container_id, segment_id): each
                        for segment_id, each in found.items()
                    }
                )
        steps: dict[SegmentKey, _Step] = {}
        keys = list(shares)
        for first in range(0, len(keys), GROUP_RANGES):
            some = keys[first : first + GROUP_RANGES]
            together = [
                each
                for key in some
                if (each := self._together(starts[key], shares[key], chunks.get(key)))
            ]
            for group in groups(together, self._small_bytes):
                mine = [
                    SegmentKey(each.segment.container_id, each.segment.segment_id) for each in group
                ]
                _, held = await fetch_group(self._storage, self._runtime, group, self._options)
                steps |= await self._scanned(mine, starts, shares, rows, chunks, held)
            steps |= await self._scanned(
                [key for key in some if key not in steps], starts, shares, rows, chunks, {}
            )
        return steps

    @property
    def _small_bytes(self) -> int | None:
        """Lines are searched for at the end, so that of a longer backlog not all is read."""
        return SCAN_BYTES if self._options.format == "lines" else None

    def _together(
        self, begun: tuple[SourceSegment, int], share: int, chunks: SegmentChunks | None
    ) -> RowRange | None:
        """What is read of a short backlog to find its border, together with others; None: it is
        checked alone.
        """
        segment, start = begun
        stored = segment.storage_length
        if chunks is None or (
            self._options.format == "lines" and segment.finished and start + share == stored
        ):
            return None
        known = chunks.between(start, stored)
        if not is_small(known, self._small_bytes):
            return None
        return RowRange(segment, start, stored, 0, stored, chunks=known)

    async def _scanned(
        self,
        keys: Sequence[SegmentKey],
        starts: Mapping[SegmentKey, tuple[SourceSegment, int]],
        shares: Mapping[SegmentKey, int],
        rows: Mapping[SegmentKey, int] | None,
        chunks: Mapping[SegmentKey, SegmentChunks],
        held: Held,
    ) -> dict[SegmentKey, _Step]:
        at_once = asyncio.Semaphore(BORDERS_AT_ONCE)

        async def one(key: SegmentKey) -> tuple[SegmentKey, _Step]:
            segment, start = starts[key]
            most = rows[key] if rows is not None else None
            async with at_once:
                return key, await self._border(
                    segment, start, start + shares[key], most, chunks.get(key), held
                )

        return dict(await asyncio.gather(*[one(key) for key in keys]))

    async def _border(
        self,
        segment: SourceSegment,
        start: int,
        wanted: int,
        rows: int | None,
        chunks: SegmentChunks | None,
        held: Held,
    ) -> _Step:
        known = chunks.between(start, segment.storage_length) if chunks is not None else ()
        source = SegmentBytes(self._storage, self._runtime, segment, known, self._options, held)
        stored, finished = segment.storage_length, segment.finished
        try:
            end, count = None, 0
            if rows is not None:
                end, count = await end_of_rows(
                    source.read, self._options, start, wanted, stored, rows, finished=finished
                )
            if end is None:
                starts = chunks.starts if chunks is not None else np.empty(0, np.int64)
                end = await find_border(
                    source.read,
                    self._options,
                    start,
                    wanted,
                    stored,
                    finished=finished,
                    chunk_starts=starts,
                )
            # The last line of a finished segment may have no newline that was counted.
            more = finished and end == stored and self._options.format == "lines"
            return _Step(end, max(count + more, int(end > start)))
        except RangeLostError as lost:
            report_loss(self._options, segment.name, lost.start, lost.end, lost.why)
            return _Step(start, 0)  # The next snapshot says where it goes on.
        except FramingError as error:
            raise SegmentFramingError(segment.name, error.offset, error.detail) from error
        finally:
            await source.close()


def store_of(manifests: Mapping[int, Manifest]) -> str:
    """The id of the store whose snapshots these are: all of one, as they are found. Empty without
    any.
    """
    return next((manifest.store_id for manifest in manifests.values()), "")


def _position_of(manifest: Manifest) -> Position:
    return Position(manifest.epoch, manifest.sequence_number)
