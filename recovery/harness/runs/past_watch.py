"""Past watch: takes note of what containers of live owners are at some of their operations.

It stands behind the commit of a run of operations: the log has acknowledged them, and the metadata
are as of the last one. Which operations are noted is drawn.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from durablelog.operations import Operation
from recovery.harness.past_observer import past_segment
from recovery.harness.seen_past import PastMoment, SeenPast
from recovery.past_bytes import segments_at
from segmentstore.container import SegmentContainer
from segmentstore.service import SegmentStore

SHARE: Final = 0.2
"""Of the runs of operations."""


class PastWatch:
    """Of one world, for all its owners."""

    def __init__(self, past: SeenPast, rng: random.Random) -> None:
        self._past = past
        self._rng = rng

    def attach(self, store: SegmentStore) -> None:
        """Watch a store that has just been opened."""
        for container in store._parts.containers:  # noqa: SLF001
            self._attach(container)

    def _attach(self, container: SegmentContainer) -> None:
        processor = container._processor  # noqa: SLF001
        assert processor is not None, container
        before = processor._commits._on_commit  # noqa: SLF001

        def committed(operations: Sequence[Operation]) -> None:
            before(operations)
            if self._rng.random() < SHARE:
                self._note(container)

        processor._commits._on_commit = committed  # noqa: SLF001

    def _note(self, container: SegmentContainer) -> None:
        metadata = container.metadata
        self._past.noted.append(
            PastMoment(
                metadata.container_id,
                metadata.sequence_number,
                {each.segment_id: past_segment(each) for each in segments_at(metadata)},
                whole=not metadata.idle,
            )
        )
