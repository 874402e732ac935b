"""Past observer: rebuilds what containers were at operations that were noted, from the logs and
archives of a store that no process has open.

It works by the product's own restore (`recovery.archived_history`, `recovery.past_bytes`), into
memory. What a moment comes to is written down; a checker compares. Rules of this file:

- nothing is written; the caller sees to it that no process has the store open;
- a tier that does not answer is raised: another check will see.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Final

from durablelog.durable_data_log import LogFrame
from recovery.archived_history import ArchivedHistory
from recovery.block_sinks import PlannedBlocks
from recovery.harness.seen_past import PastMoment, PastSegment
from recovery.harness.tier_observer import LogProbe
from recovery.moments import AtSequence, MomentNotKeptError
from recovery.past_bytes import PastBytes, segments_at
from recovery.past_chunks import PastChunks
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.runtime import Runtime
from tier2.block_reader import BlockReader
from tier2.object_storage import ObjectStorage

_BATCH: Final = 64


class ProbedLog:
    """A log as a probe gives it, to be read behind archived parts."""

    def __init__(self, probe: LogProbe) -> None:
        self._probe = probe

    async def read(self) -> AsyncGenerator[Sequence[LogFrame], None]:
        """All frames. Raises DataCorruptionError, OSError."""
        frames = list(self._probe().frames)
        for begin in range(0, len(frames), _BATCH):
            yield frames[begin : begin + _BATCH]


class _Contents(PlannedBlocks):
    """Takes bytes by segment, in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: dict[int, list[tuple[int, bytes]]] = {}

    def plan(self, segment_id: int, name: str, offset: int, length: int) -> bool:
        del segment_id, name, offset, length
        return False

    async def add(self, segment_id: int, name: str, offset: int, data: Buffer) -> None:
        self._pieces.setdefault(segment_id, []).append((offset, bytes(data)))

    def content(self, segment_id: int) -> bytes:
        """All of a segment's, in order."""
        return b"".join(data for _, data in sorted(self._pieces.get(segment_id, ())))


async def rebuild_moments(
    history: ArchivedHistory,
    sequences: Collection[int],
    now: ContainerMetadata | None,
    storage: ObjectStorage,
    there: Mapping[str, int],
    runtime: Runtime,
    *,
    whole: bool,
    must_be_kept: bool,
) -> list[PastMoment]:
    """A container at these operations. `now` are its metadata, `there` the sizes of objects.

    `whole`: the history has all that ever was. Without that the bytes of segments that were
    deleted, truncated or merged since may be missing, and say nothing. Without `must_be_kept` no
    moment needs to be there. Raises TierUnavailableError.
    """
    moments = []
    reader = BlockReader(storage, history.container_id, runtime)
    try:
        for number in sequences:
            try:
                state = await history.state_at(AtSequence(number))
                sink = _Contents()
                chunks = PastChunks(state.metadata, now, there)
                gathered = await PastBytes(history, state, chunks, reader, sink).gather()
            except (MomentNotKeptError, DataCorruptionError) as error:
                if must_be_kept:
                    moments.append(PastMoment(history.container_id, number, error=str(error)))
                continue
            lacking = {loss.segment_id for loss in gathered.losses}
            segments = {
                segment.segment_id: past_segment(
                    segment,
                    None if segment.segment_id in lacking else sink.content(segment.segment_id),
                )
                for segment in segments_at(state.metadata)
            }
            lost = sum(loss.length for loss in gathered.losses) if whole else 0
            moments.append(PastMoment(history.container_id, number, segments, lost=lost))
    finally:
        await reader.close()
    return moments


def past_segment(segment: SegmentMetadata, content: bytes | None = None) -> PastSegment:
    """A segment as its metadata have it."""
    attributes = segment.attributes
    return PastSegment(
        segment_id=segment.segment_id,
        name=segment.name,
        start_offset=segment.start_offset,
        length=segment.length,
        sealed=segment.sealed,
        attributes=dict(attributes.items()) if attributes.whole else None,
        content=content,
    )
