"""Which sources were merged into which targets and not linked in Tier 2 yet. Pure.

The metadata says so as well (`SegmentMetadata.merges`), but not of what is gone: this is what finds the
holdings of sources that went together with their target.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from segmentstore.contracts.metadata import ContainerMetadata


class MergedSources:
    """Target id to its sources, and where each begins in it; until linked, truncated away or deleted."""

    def __init__(self, metadata: ContainerMetadata) -> None:
        self._metadata = metadata
        self._sources: dict[int, dict[int, int]] = {}

    def adopt(self) -> None:
        """Take up what a restored checkpoint holds. O(segments)."""
        for target_id, target in self._metadata.segments.items():
            if target.merges:
                self._sources[target_id] = {merge.source_id: merge.offset for merge in target.merges}

    def add(self, target_id: int, source_id: int, offset: int) -> None:
        """A source was merged; its bytes begin at `offset` in the target."""
        self._sources.setdefault(target_id, {})[source_id] = offset

    def link(self, target_id: int, source_id: int) -> tuple[int | None, Iterable[int]]:
        """Forget a source that was linked: where it begins, None if unknown, and what was merged into it."""
        return self._sources.get(target_id, {}).pop(source_id, None), self._sources.pop(source_id, ())

    def sweep(self, target_id: int) -> list[int]:
        """Forget, and give, the sources of a target that the metadata have lost, with what was merged into them."""
        lost: list[int] = []
        for each in itertools.chain((target_id,), lost):  # grows while it is walked: sources have sources
            sources = self._sources.get(each, {})
            gone = [source_id for source_id in sources if source_id not in self._metadata.segments]
            for source_id in gone:
                del sources[source_id]
            if not sources:
                self._sources.pop(each, None)
            lost += gone
        return lost
