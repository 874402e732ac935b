"""Which sources were merged into which targets and not linked in Tier 2 yet. Pure.

The metadata says so as well (`SegmentMetadata.merges`), but not of deleted segments. By this record
the cache manager finds sources that were deleted together with their target.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable

from segmentstore.contracts.metadata import ContainerMetadata


class MergedSources:
    """Target id to its sources, and where each begins in it; until linked, truncated away or
    deleted.

    Sources are kept in the order of their offsets, and leave from the front: links and truncations
    go in that order. So each change costs what it takes away, however many sources the target has.
    """

    def __init__(self, metadata: ContainerMetadata) -> None:
        self._metadata = metadata
        # A plain dict finds its first entry by walking over all that left before it.
        self._sources: dict[int, OrderedDict[int, int]] = {}

    def adopt(self) -> None:
        """Take up what a restored checkpoint holds. O(segments)."""
        for target_id, target in self._metadata.segments.items():
            if target.merges:
                self._sources[target_id] = OrderedDict(
                    (merge.source_id, merge.offset) for merge in target.merges
                )

    def add(self, target_id: int, source_id: int, offset: int) -> None:
        """A source was merged; its bytes begin at `offset` in the target."""
        self._sources.setdefault(target_id, OrderedDict())[source_id] = offset

    def link(self, target_id: int, source_id: int) -> tuple[int | None, Iterable[int]]:
        """Forget a source that was linked: where it begins, None if unknown, and what was merged
        into it.
        """
        sources = self._sources.get(target_id)
        offset = None if sources is None else sources.pop(source_id, None)
        return offset, self._sources.pop(source_id, ())

    def sweep(self, target_id: int) -> list[int]:
        """Forget, and give, the sources of a target that the metadata have lost, with what was
        merged into them.
        """
        lost: list[int] = []
        for each in itertools.chain(
            (target_id,), lost
        ):  # grows while it is walked: sources have sources
            sources = self._sources.get(each)
            if sources is None:
                continue
            while sources and next(iter(sources)) not in self._metadata.segments:
                lost.append(sources.popitem(last=False)[0])
            if not sources:
                del self._sources[each]
        return lost
