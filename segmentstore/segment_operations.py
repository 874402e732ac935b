"""The past operations on the segments of one name.

Theory of operation. An id never has another name. So the ids of a name are those of the state
before the first operation, and those of creations that follow. Where that state cannot be had, the
first one that can stands in for it: it has all names but those of segments that were deleted
before. Operations on such segments are counted: whether they are wanted is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from durablelog.operations import (
    AppendOperation,
    CreateOperation,
    MergeOperation,
    Operation,
    segments_of,
)
from recovery.archived_history import ArchivedHistory, PastOperation, PastState
from recovery.moments import AtSequence, MomentNotKeptError
from recovery.restore_past import PastContainer
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.ledgers import LedgerNotFoundError

_EVER: Final = 2**64
_IDS_SHOWN: Final = 8


class NamelessOperations:
    """The operations on segments whose names nothing that is kept has."""

    def __init__(self, known: set[int], end: int, begin_ms: int) -> None:
        """`known` are the ids whose names are. From the operation `end` on all are; operations
        before the first one of `begin_ms` or later are not counted.
        """
        self._known = known
        self._begin_ms = begin_ms
        self._is_begun = False
        self._segments: set[int] = set()
        self._first = self._last = 0
        self.end: Final = end
        self.count = 0

    def meet(self, operation: Operation) -> None:
        """The next one."""
        self._is_begun = self._is_begun or operation.timestamp_ms >= self._begin_ms
        if isinstance(operation, CreateOperation):
            self._known.add(operation.sequence_number)
            return
        nameless = [each for each in segments_of(operation) if each not in self._known]
        if not nameless or not self._is_begun:
            return
        self._segments.update(nameless)
        self._first = self._first or operation.sequence_number
        self._last = operation.sequence_number
        self.count += 1

    def __str__(self) -> str:
        ids = ", ".join(map(str, sorted(self._segments)[:_IDS_SHOWN]))
        more = len(self._segments) - _IDS_SHOWN
        return (
            f"{self.count} operations, {self._first} to {self._last}, are on segments whose "
            f"names are not kept: {ids}{f' and {more} more' if more > 0 else ''}"
        )


class SegmentFilter:
    """The operations on the segments of one name."""

    def __init__(self, name: str, ids: set[int], nameless: NamelessOperations) -> None:
        """`ids` are of the segments of that name, but for those that are created later."""
        self._name = name
        self._ids = set(ids)
        self.nameless: Final = nameless

    def wanted(self, operations: Sequence[PastOperation]) -> Iterator[PastOperation]:
        """Those on the segments, in order; their merges into others too. Takes all operations,
        batch after batch.
        """
        if operations and operations[0].operation.sequence_number < self.nameless.end:
            for past in operations:
                self.nameless.meet(past.operation)
        ids = self._ids
        for past in operations:
            operation = past.operation
            if type(operation) is AppendOperation:
                if operation.segment_id in ids:
                    yield past
            elif self._is_wanted(operation):
                yield past

    def _is_wanted(self, operation: Operation) -> bool:
        if isinstance(operation, CreateOperation):
            if operation.name == self._name:
                self._ids.add(operation.sequence_number)
                return True
            return False
        is_wanted = not self._ids.isdisjoint(segments_of(operation))
        if is_wanted and isinstance(operation, MergeOperation):
            self._ids.add(operation.source_id)
        return is_wanted


async def filter_of(
    container: PastContainer, name: str, begin: int, begin_ms: int = 0
) -> SegmentFilter:
    """That of the segments of a name, for the operations from the number `begin` on; of those
    before `begin_ms` none are wanted.

    Raises TierUnavailableError. Costs the replay from a checkpoint to there, or the reading up to
    the first checkpoint behind it.
    """
    state = await _state_before(container.history, begin)
    end = _EVER
    if state is not None:
        end = 0 if state.sequence_number < begin else state.sequence_number
    records = chain(
        state.metadata.all_records() if state is not None else (),
        container.now.all_records() if container.now is not None else (),
    )
    ids: set[int] = set()
    known: set[int] = set()
    for record in records:
        known.add(record.segment_id)
        if record.name == name:
            ids.add(record.segment_id)
    return SegmentFilter(name, ids, NamelessOperations(known, end, begin_ms))


async def _state_before(history: ArchivedHistory, begin: int) -> PastState | None:
    """The state before an operation, or the first that can be had."""
    try:
        return await history.state_at(AtSequence(begin - 1))
    except (MomentNotKeptError, DataCorruptionError):
        pass  # What lies before is missing or damaged; what follows may be whole.
    try:
        return await history.first_state(begin)
    except (LedgerNotFoundError, DataCorruptionError):
        return None
