"""The segments of a store by name, without holding the event loop for all of them."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from typing import Final

from segmentstore.container import SegmentContainer
from segmentstore.contracts.metadata import SegmentMetadata
from segmentstore.contracts.segments import SegmentInfo

LISTED_IN_A_TURN: Final = 128
"""Given to the caller without letting others run, if the caller does not wait itself."""


async def listed_segments(
    containers: Sequence[SegmentContainer], prefix: str
) -> AsyncGenerator[tuple[SegmentMetadata, SegmentContainer], None]:
    """The segments whose names begin with `prefix` at the first step, by name, each as it is when
    given; and where it is. Those that were deleted meanwhile are left out.

    Idle segments come without chunks and attributes. Raises as `SegmentScan`.
    """
    # In one turn: this is the listing's beginning.
    scans = [container.scan(prefix) for container in containers]
    names: list[tuple[str, int]] = []
    for number, scan in enumerate(scans):
        name = await scan.next_name()
        if name is not None:
            names.append((name, number))
    heapq.heapify(names)
    listed = 0
    while names:
        _, number = names[0]
        scan = scans[number]
        segment = await scan.take()
        if segment is not None:
            yield segment, containers[number]
        name = await scan.next_name()
        if name is None:
            heapq.heappop(names)
        else:
            heapq.heapreplace(names, (name, number))
        listed += 1
        if not listed % LISTED_IN_A_TURN:
            await asyncio.sleep(0)


def segment_info(segment: SegmentMetadata, container_id: int) -> SegmentInfo:
    """What a caller may know of it."""
    created_ms, modified_ms = segment.created_ms, segment.last_modified_ms
    created = modified = datetime.fromtimestamp(created_ms / 1000, UTC)
    if modified_ms != created_ms:
        modified = datetime.fromtimestamp(modified_ms / 1000, UTC)
    return SegmentInfo(
        name=segment.name,
        segment_id=segment.segment_id,
        start_offset=segment.start_offset,
        length=segment.length,
        storage_length=segment.storage_length,
        sealed=segment.sealed,
        sealed_in_storage=segment.sealed and segment.storage_length == segment.length,
        created=created,
        last_modified=modified,
        container_id=container_id,
    )
