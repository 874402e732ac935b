"""The bytes that segments had at a moment, gathered: from Tier-2 objects that are there and fit,
else from appends in the history.

A byte that an object has counts when its checks are made. What fails them is searched for in the
history, like what no object has. What is not there either is a loss, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from recovery.archived_history import ArchivedHistory, PastState
from recovery.block_sinks import BlockSink
from recovery.history_search import HistorySearch
from recovery.past_chunks import PastChunks, StoredPiece
from recovery.tier2_scan import retried
from recovery.wanted_bytes import FoundBytes, WantedBytes
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from tier2.block_reader import BlockReader
from tier2.object_storage import InvalidRangeError, ObjectNotFoundError

READ_BYTES: Final = 4 * 1024 * 1024
"""Read of an object at once."""
NO_OBJECT: Final = "no object that is there has it"


class PastLoss(NamedTuple):
    """Bytes [start_offset, end_offset) of a segment that cannot be had any more."""

    container_id: int
    segment_id: int
    segment: str
    start_offset: int
    end_offset: int
    reason: str

    @property
    def length(self) -> int:
        """Bytes lost."""
        return self.end_offset - self.start_offset


class GatheredBytes(NamedTuple):
    """What came of gathering."""

    losses: list[PastLoss]
    """By segment and offset."""
    damage: list[str]
    """What of the history could not be read while bytes were searched for, a sentence each."""
    from_objects: int
    """Bytes."""
    from_history: int


def segments_at(metadata: ContainerMetadata) -> Iterator[SegmentMetadata]:
    """The segments that callers saw: not merged, not deleted."""
    return (each for each in metadata.segments.values() if each.merged_into is None)


class PastBytes:
    """Of one container, used once."""

    def __init__(
        self,
        history: ArchivedHistory,
        state: PastState,
        chunks: PastChunks,
        reader: BlockReader,
        sink: BlockSink,
    ) -> None:
        self._history = history
        self._state = state
        self._chunks = chunks
        self._reader = reader
        self._sink = sink
        self._wanted = WantedBytes()
        self._reasons: dict[int, list[PastLoss]] = {}
        """Why what is searched for cannot be had from an object."""
        self._from_objects = self._from_history = 0

    async def gather(self) -> GatheredBytes:
        """Have the sink take all that can be had.

        Raises TierUnavailableError; DataCorruptionError for a history that is damaged.
        """
        for segment in segments_at(self._state.metadata):
            covered = self._chunks.cover(segment)
            for gap in covered.gaps:
                self._search(segment, gap.start_offset, gap.end_offset, NO_OBJECT)
            for piece in covered.pieces:
                await self._take_stored(segment, piece)
        damage = await self._search_history() if self._wanted else []
        await self._sink.finish()
        return GatheredBytes(self._losses(), damage, self._from_objects, self._from_history)

    def _search(self, segment: SegmentMetadata, start: int, end: int, reason: str) -> None:
        self._wanted.add(segment.segment_id, start, end)
        self._reasons.setdefault(segment.segment_id, []).append(
            PastLoss(
                self._history.container_id, segment.segment_id, segment.name, start, end, reason
            )
        )

    async def _take_stored(self, segment: SegmentMetadata, piece: StoredPiece) -> None:
        chunk, start, end = piece
        if self._sink.plan(segment.segment_id, segment.name, start, end - start):
            self._from_objects += end - start
            return
        for offset in range(start, end, READ_BYTES):
            length = min(READ_BYTES, end - offset)
            try:
                data = await retried(partial(self._reader.read, chunk, offset, length))
            except (ObjectNotFoundError, InvalidRangeError) as error:
                self._search(segment, offset, end, str(error))
                return
            except DataCorruptionError as error:
                self._search(segment, offset, offset + length, str(error))
                continue
            self._from_objects += length
            await self._sink.add(segment.segment_id, segment.name, offset, data)

    async def _search_history(self) -> list[str]:
        search = HistorySearch(self._history, self._wanted, self._take_found)
        await search.run(self._state.sequence_number)
        return search.damage

    async def _take_found(self, found: FoundBytes) -> None:
        segment_id, offset, data = found
        name = self._state.metadata.segments[segment_id].name
        self._from_history += len(data)
        # A view would keep its whole frame.
        await self._sink.add(segment_id, name, offset, bytes(data))

    def _losses(self) -> list[PastLoss]:
        """What was not found, with the reason why no object has it."""
        losses = []
        for segment_id, gaps in sorted(self._wanted.left().items()):
            for gap in gaps:
                for each in self._reasons[segment_id]:
                    start = max(gap.start_offset, each.start_offset)
                    end = min(gap.end_offset, each.end_offset)
                    if start < end:
                        reason = f"{each.reason}, and no append that is kept has it"
                        losses.append(
                            each._replace(start_offset=start, end_offset=end, reason=reason)
                        )
        losses.sort(key=lambda loss: (loss.segment_id, loss.start_offset))
        return _joined(losses)


def _joined(losses: list[PastLoss]) -> list[PastLoss]:
    joined: list[PastLoss] = []
    for loss in losses:
        last = joined[-1] if joined else None
        if last is not None and (last.segment_id, last.end_offset, last.reason) == (
            loss.segment_id,
            loss.start_offset,
            loss.reason,
        ):
            joined[-1] = last._replace(end_offset=loss.end_offset)
        else:
            joined.append(loss)
    return joined
