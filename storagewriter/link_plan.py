"""Which merges can be linked: both sides are far enough in Tier 2.

A commit is one step of the event loop. So no operation moves more than some chunks: a source of
more is linked in slices, from its head on (docs/decisions/0091).

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from durablelog.chunk_slices import Slices
from segmentstore.contracts.metadata import ContainerMetadata
from storagewriter.pending_segments import PendingSegments

LINKS_MAX = 1024
"""Links in one operation."""


class LinkPlan(NamedTuple):
    """What one operation links."""

    links: Sequence[tuple[int, int]]
    """(target id, source id), in the order to link them."""
    in_slices: bool = False
    """There is one, and only a part of its source is linked."""


def plan_links(pending: PendingSegments, metadata: ContainerMetadata) -> LinkPlan | None:
    """The next merges whose two sides are far enough in Tier 2; None if there is none.

    Checks `pending.link_candidates` and uses them up, but for what the bounds of one operation
    leave over. A target cut off by them is a candidate again once this one is committed.
    """
    links: list[tuple[int, int]] = []
    chunks_left = Slices.linked_max
    while pending.link_candidates and len(links) < LINKS_MAX:
        target = metadata.segments.get(pending.link_candidates.pop())
        if target is None or target.detached or target.segment_id in pending.busy:
            continue
        reached = target.storage_length
        for merge in islice(target.merges, LINKS_MAX - len(links)):
            source = metadata.segments[merge.source_id]
            whole = (
                source.storage_length == source.length
                and not source.merges
                and source.segment_id not in pending.busy
            )
            if reached < merge.offset or not whole:
                break
            link = (target.segment_id, source.segment_id)
            chunks_left -= len(source.chunks)
            if chunks_left < 0 and links:
                pending.link_candidates.add(target.segment_id)
                return LinkPlan(links)
            if chunks_left < 0:
                return LinkPlan([link], in_slices=True)
            links.append(link)
            reached = merge.end_offset
    return LinkPlan(links) if links else None
