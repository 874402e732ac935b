"""Which merges can be linked: both sides are far enough in Tier 2.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

from itertools import islice

from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from storagewriter.pending_segments import PendingSegments

LINKS_MAX = 1024
"""Links in one operation."""


def plan_links(pending: PendingSegments, metadata: ContainerMetadata) -> list[tuple[int, int]]:
    """(target id, source id) of merges whose two sides are far enough in Tier 2, in the order to
    link them.

    Checks `pending.link_candidates` and uses them up, but for what the bound of one operation
    leaves over. A target cut off by it is a candidate again once these links are committed.
    """
    links: list[tuple[int, int]] = []
    while pending.link_candidates and len(links) < LINKS_MAX:
        target = metadata.segments.get(pending.link_candidates.pop())
        if target is None or target.detached:
            continue
        if target.segment_id not in pending.busy:
            links += _links_of(target, pending, metadata, LINKS_MAX - len(links))
    return links


def _links_of(
    target: SegmentMetadata, pending: PendingSegments, metadata: ContainerMetadata, links_max: int
) -> list[tuple[int, int]]:
    links: list[tuple[int, int]] = []
    reached = target.storage_length
    for merge in islice(target.merges, links_max):
        source = metadata.segments[merge.source_id]
        whole = (
            source.storage_length == source.length
            and not source.merges
            and source.segment_id not in pending.busy
        )
        if reached < merge.offset or not whole:
            break
        links.append((target.segment_id, source.segment_id))
        reached = merge.end_offset
    return links
