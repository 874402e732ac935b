"""What a container's metadata know of its archive: the parts of its log that are in it, in order.

Parts enter at the end and leave at the beginning, by number, without gaps of ours. What is complete
never changes. So parts are kept in closed lists of LIST_PARTS, and those by nodes of NODE_LISTS:
objects in the archive that are written once and deleted whole (docs/formats/archive-parts.md). The
metadata have a bound of each list and node, and the parts behind the last closed list: the tail.

Immutable and pure: `after` gives the metadata behind one change. One operation of the log carries
one change (`ArchiveOperation`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

from segmentstore.contracts.archived_parts import ArchivedPart, OffloadState
from segmentstore.contracts.errors import SegmentStoreError

LIST_PARTS: Final = 256
"""Parts of a closed list."""
NODE_LISTS: Final = 64
"""Lists of a node."""
NODE_PARTS: Final = LIST_PARTS * NODE_LISTS


class OffloadConflictError(SegmentStoreError):
    """A change of the archive's metadata does not fit what they are; nothing was changed.

    The caller's move: read them again. Its own archive is not the present one.
    """


class PartsBound(NamedTuple):
    """The end of a closed list, or of a node: what its last part says."""

    last_sequence: int
    last_ms: int
    bytes_through: int
    """Of all parts of the archive up to this one, since the first ever."""


class OffloadBegun(NamedTuple):
    """An attempt is about to begin; it replaces one that did not end."""

    part: ArchivedPart


class OffloadCompleted(NamedTuple):
    """The archive has all of the part that is attempted."""

    number: int
    uid: bytes
    """The attempt must still be this one."""
    offloaded_ms: int
    checkpoint_entry: int = 0
    """As ArchivedPart has it: known when the part has been read."""


class HotCopiesDeleted(NamedTuple):
    """The log may delete its own copies up to this part."""

    number: int
    end: int
    """The index behind it."""


class PartsListClosed(NamedTuple):
    """The archive has the next closed list, and its node if it is the last of one."""

    ordinal: int
    """Of the list, from 0 on."""


class FirstPartMoved(NamedTuple):
    """Parts before the index `end` are no part of the archive any more: their objects may be
    deleted.
    """

    end: int
    bytes_before: int
    """Of all parts before it, since the first ever."""


class PartsSwept(NamedTuple):
    """The objects of all parts before the index `end` are deleted, and the lists that have no
    others.
    """

    end: int


ArchiveChange: TypeAlias = (
    OffloadBegun
    | OffloadCompleted
    | HotCopiesDeleted
    | PartsListClosed
    | FirstPartMoved
    | PartsSwept
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveMetadata:
    """As of one operation. An *index* counts complete parts from the first ever, 0, on."""

    first: int = 0
    """Index of the oldest part that is still in the archive."""
    swept: int = 0
    """All before this index is deleted; `first` at most."""
    lists: int = 0
    """Closed lists, since the first ever."""
    hot_deleted: int = 0
    """Number of the newest part whose hot copy may be deleted; 0: of none."""
    hot_deleted_count: int = 0
    """The index behind it."""
    last_number: int = 0
    """Of the newest complete part; 0: there was none."""
    bytes_through: int = 0
    """Of all complete parts, since the first ever."""
    bytes_before: int = 0
    """Of those before `first`."""
    node_bounds: tuple[PartsBound, ...] = ()
    """Of the newest nodes: of all that have a part from `swept` on."""
    list_bounds: tuple[PartsBound, ...] = ()
    """Of the lists behind the last node."""
    tail: tuple[ArchivedPart, ...] = ()
    """Complete parts behind the last list, in order."""
    attempt: ArchivedPart | None = None
    """The part behind the tail whose attempt has not ended."""
    last_ms: int = 0
    """The highest time stamp of all complete parts."""

    @property
    def count(self) -> int:
        """The index behind the newest complete part."""
        return self.lists * LIST_PARTS + len(self.tail)

    @property
    def kept(self) -> int:
        """Complete parts that are in the archive."""
        return self.count - self.first

    @property
    def kept_bytes(self) -> int:
        """Of their entries."""
        return self.bytes_through - self.bytes_before

    @property
    def nodes(self) -> int:
        """Nodes, since the first ever."""
        return self.lists // NODE_LISTS

    @property
    def last(self) -> ArchivedPart | None:
        """The newest complete part; None if there is none in the tail."""
        return self.tail[-1] if self.tail else None

    @property
    def last_sequence(self) -> int:
        """Of the newest complete part; 0 if there is none."""
        if self.tail:
            return self.tail[-1].last_sequence
        bounds = self.list_bounds or self.node_bounds
        return bounds[-1].last_sequence if bounds else 0

    @property
    def list_due(self) -> bool:
        """Whether the tail has as many parts as a list: it is closed before another attempt."""
        return len(self.tail) >= LIST_PARTS

    def after(self, change: ArchiveChange) -> ArchiveMetadata:
        """The metadata behind the change. Raises OffloadConflictError. O(tail)."""
        if isinstance(change, OffloadBegun):
            return self._begun(change.part)
        if isinstance(change, OffloadCompleted):
            return self._completed(change)
        if isinstance(change, HotCopiesDeleted):
            return self._hot_deleted(change)
        if isinstance(change, PartsListClosed):
            return self._list_closed(change.ordinal)
        if isinstance(change, FirstPartMoved):
            return self._first_moved(change)
        return self._swept(change.end)

    def next_bound(self) -> PartsBound:
        """Of the list that the first LIST_PARTS of the tail make."""
        last = self.tail[LIST_PARTS - 1]
        behind = sum(part.length for part in self.tail[LIST_PARTS:])
        return PartsBound(last.last_sequence, last.last_ms, self.bytes_through - behind)

    def _begun(self, part: ArchivedPart) -> ArchiveMetadata:
        lowest = self.attempt.number if self.attempt is not None else self.last_number + 1
        _require(part.state is OffloadState.ATTEMPT, f"part {part.number} begins as {part.state}")
        _require(part.number >= lowest, f"part {part.number} before part {lowest}")
        _require(part.last_sequence >= self.last_sequence, f"part {part.number} goes back")
        _require(not self.list_due, "the tail is full")
        return replace(self, attempt=part)

    def _completed(self, change: OffloadCompleted) -> ArchiveMetadata:
        attempt = self.attempt
        if attempt is None or (attempt.number, attempt.uid) != (change.number, change.uid):
            raise OffloadConflictError(f"part {change.number}: another attempt is the present one")
        part = replace(
            attempt,
            state=OffloadState.COMPLETE,
            last_ms=max(attempt.last_ms, self.last_ms),
            checkpoint_entry=change.checkpoint_entry,
            offloaded_ms=change.offloaded_ms,
        )
        return replace(
            self,
            tail=(*self.tail, part),
            attempt=None,
            bytes_through=self.bytes_through + part.length,
            last_number=part.number,
            last_ms=part.last_ms,
        )

    def _hot_deleted(self, change: HotCopiesDeleted) -> ArchiveMetadata:
        number, end = change
        _require(self.hot_deleted < number <= self.last_number, f"hot copies up to part {number}")
        _require(self.hot_deleted_count < end <= self.count, f"{end} hot copies")
        tail = tuple(
            replace(part, state=OffloadState.HOT_DELETED) if part.number <= number else part
            for part in self.tail
        )
        return replace(self, tail=tail, hot_deleted=number, hot_deleted_count=end)

    def _list_closed(self, ordinal: int) -> ArchiveMetadata:
        _require(ordinal == self.lists, f"list {ordinal} is not the next, {self.lists}")
        _require(self.list_due, f"a list of {len(self.tail)} parts")
        bounds = (*self.list_bounds, self.next_bound())
        nodes = self.node_bounds
        if len(bounds) == NODE_LISTS:
            nodes, bounds = (*nodes, bounds[-1]), ()
        return replace(
            self,
            lists=ordinal + 1,
            node_bounds=nodes,
            list_bounds=bounds,
            tail=self.tail[LIST_PARTS:],
        )

    def _first_moved(self, change: FirstPartMoved) -> ArchiveMetadata:
        _require(self.first < change.end <= self.count, f"{change.end} as the first part")
        _require(
            self.bytes_before <= change.bytes_before <= self.bytes_through,
            f"{change.bytes_before} bytes before the first part",
        )
        return replace(self, first=change.end, bytes_before=change.bytes_before)

    def _swept(self, index: int) -> ArchiveMetadata:
        _require(self.swept < index <= self.first, f"parts before {index} are not all deleted")
        nodes = self.nodes - index // NODE_PARTS
        return replace(
            self, swept=index, node_bounds=self.node_bounds[-nodes:] if nodes > 0 else ()
        )


def _require(holds: bool, detail: str) -> None:  # noqa: FBT001 - one word at each rule
    if not holds:
        raise OffloadConflictError(f"the archive's metadata: {detail}")


NO_ARCHIVE: Final = ArchiveMetadata()
"""Of a container whose log was never archived."""
