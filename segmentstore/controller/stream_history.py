"""StreamHistory: the epochs of a stream, and which segments follow which. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from segmentstore.controller.refusals import Reason, RefusedRequestError
from segmentstore.controller.stream_model import EpochRecord, StreamSegment


class StreamHistory:
    """All segments that a stream has had. `epochs` are from 0 on, none missing."""

    def __init__(self, epochs: Sequence[EpochRecord]) -> None:
        self._epochs = epochs
        self.segments: Mapping[int, StreamSegment] = {
            segment.segment_id: segment for epoch in epochs for segment in epoch.created
        }
        """By id."""
        self._sealed_in = {segment_id: epoch for epoch in epochs for segment_id in epoch.sealed}

    def segment(self, segment_id: int) -> StreamSegment:
        """Raises RefusedRequestError for one that the stream never had."""
        found = self.segments.get(segment_id)
        if found is None:
            raise RefusedRequestError(
                Reason.SEGMENT_NOT_FOUND, f"the stream has no segment {segment_id}"
            )
        return found

    def reaches(self, epoch: int, active: Iterable[StreamSegment]) -> bool:
        """Whether it has an epoch, all before it, and those segments."""
        return epoch < len(self._epochs) and all(
            each.segment_id in self.segments for each in active
        )

    def active_in(self, epoch: int) -> tuple[StreamSegment, ...]:
        """The segments of an epoch by key.

        Raises RefusedRequestError for one that has not begun.
        """
        if not 0 <= epoch < len(self._epochs):
            raise RefusedRequestError(Reason.BAD_ARGUMENT, f"the stream has no epoch {epoch}")
        active: dict[int, StreamSegment] = {}
        for record in self._epochs[: epoch + 1]:
            for segment_id in record.sealed:
                del active[segment_id]
            active.update((segment.segment_id, segment) for segment in record.created)
        return by_key(active.values())

    def scaled(
        self, sealed: Iterable[int], ranges: Iterable[tuple[float, float]]
    ) -> EpochRecord | None:
        """The epoch that began when these segments were replaced by new ones with these ranges.

        None: that has not happened. It happens once at most: sealed segments stay so.
        """
        wanted = frozenset(sealed)
        record = next((self._sealed_in[each] for each in wanted if each in self._sealed_in), None)
        if record is None or wanted != frozenset(record.sealed):
            return None
        created = [(segment.low, segment.high) for segment in record.created]
        return record if created == sorted(ranges) else None

    def successors(self, segment_id: int) -> list[tuple[StreamSegment, list[int]]]:
        """The segments that took over a segment's keys, each with the ids of all that it follows.

        Empty while it is active, and for the last ones of a sealed stream.
        """
        segment = self.segment(segment_id)
        record = self._sealed_in.get(segment_id)
        if record is None:
            return []
        ended = [self.segments[each] for each in record.sealed]
        return [
            (created, [each.segment_id for each in ended if overlap(each, created)])
            for created in record.created
            if overlap(segment, created)
        ]


def overlap(one: StreamSegment, other: StreamSegment) -> bool:
    """Whether both take a key."""
    return one.low < other.high and other.low < one.high


def by_key(segments: Iterable[StreamSegment]) -> tuple[StreamSegment, ...]:
    """In the order of their keys."""
    return tuple(sorted(segments, key=lambda segment: segment.low))


def tile(segments: Sequence[StreamSegment]) -> bool:
    """Whether segments, by key, take each key of [0, 1) exactly once."""
    bounds = [0.0, *(segment.high for segment in segments)]
    return bounds[-1] == 1.0 and all(
        segment.low == bound for segment, bound in zip(segments, bounds, strict=False)
    )
