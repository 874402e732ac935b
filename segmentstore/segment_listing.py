"""The names of a store's segments in order, without holding the event loop for all of them."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final

from segmentstore.container import SegmentContainer

NAMES_OF_A_SLICE: Final = 2048
"""Sorted without letting others run: a millisecond or two."""

LISTED_IN_A_TURN: Final = 512
"""Given to the caller without letting others run, if the caller does not wait itself."""

_by_name = itemgetter(0)


async def sorted_names(
    containers: Sequence[SegmentContainer], prefix: str
) -> Iterator[tuple[str, SegmentContainer]]:
    """Each name that begins with `prefix` now, in order, and where its segment was.

    O(n log n), in slices; at once only a copy of the references.
    """
    copies = [(list(container.segment_ids), container) for container in containers]
    runs: list[list[tuple[str, SegmentContainer]]] = []
    for names, container in copies:
        for begin in range(0, len(names), NAMES_OF_A_SLICE):
            if begin:
                await asyncio.sleep(0)
            found = [
                (name, container)
                for name in names[begin : begin + NAMES_OF_A_SLICE]
                if name.startswith(prefix)
            ]
            if found:
                found.sort(key=_by_name)
                runs.append(found)
    return heapq.merge(*runs, key=_by_name)
