"""The segments of a cluster by name: each host lists its own, a part at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from segmentstore.client.cluster_calls import ClusterCalls
from segmentstore.client.remote_store import RemoteStore
from segmentstore.contracts.segments import SegmentInfo


async def listed_segments(calls: ClusterCalls, prefix: str) -> AsyncGenerator[SegmentInfo, None]:
    """Segments whose names begin with `prefix`, by name.

    Every host gives a part from the last name on. What lies up to the end of the shortest part is
    complete; the rest is asked for again. So a move in the middle costs nothing but a part.
    """
    after, more = "", True
    while more:

        async def part(store: RemoteStore, behind: str = after) -> tuple[list[SegmentInfo], bool]:
            return await store.list_part(prefix, behind)

        parts = await calls.each_owner(part)
        # Of a container that moved meanwhile two hosts may have said something.
        found = {info.name: info for infos, _ in parts for info in infos}
        ends = [infos[-1].name for infos, has_more in parts if has_more and infos]
        more = bool(ends)
        after = min(ends, default="")
        for name in sorted(found):
            if not more or name <= after:
                yield found[name]
