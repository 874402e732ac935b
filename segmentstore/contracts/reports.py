"""What a program gets back from work on a whole store: garbage collections, exports of the
catalog, what the log and Tier 2 hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from segmentstore.contracts.findings import Finding, Severity

GarbageState = Literal[
    "deleted",
    "waiting",
    "due",
    "orphan",
    "aborted upload",
    "unfinished upload",
    "orphan ledger",
    "deleted ledger",
]
"""What became, or would become, of garbage.

`deleted`: deleted, and confirmed. `waiting`: nothing refers to it; deleted once the deletion
lag is over. `due`: the lag is over, and it is still there: a read has it open, Tier 2 did not
answer, or nothing was to be deleted. `orphan`: no operation of the log names it, and it was not
marked for deletion: nothing was to be changed, or too much waits already. `aborted upload` and
`unfinished upload`: an upload in parts that no process would finish. `orphan ledger` and `deleted
ledger`: a ledger of the store on BookKeeper that no log lists.
"""


class OffloadedPart(NamedTuple):
    """What became of one part of a log when it was to be archived."""

    container_id: int
    number: int
    """As the log counts its parts."""
    ledger_id: int
    length: int
    """Bytes of its entries."""
    last_sequence: int
    """Of the last operation in it; 0: none ends in it."""
    failure: str | None
    """Why it is not in the archive; None: it is. Those behind it were not tried then."""


class OffloadReport(NamedTuple):
    """What became of the sealed parts of one container's log when they were to be archived."""

    container_id: int
    parts: tuple[OffloadedPart, ...]
    first_not_archived: int
    """No operation from this sequence number on is in the archive."""


class ArchivedEntry(NamedTuple):
    """One part in the archive."""

    container_id: int
    place: int
    """Parts of the container's archive are counted from the first ever, 0, on."""
    number: int
    ledger_id: int
    uid: str
    """Of the attempt that made it, 32 hex digits; with the ledger's id it names the objects."""
    state: str
    """`archived`; `archived, hot copy deleted`: the log may delete it, or has."""
    entries: int
    length: int
    """Bytes of its entries."""
    first_sequence: int
    last_sequence: int
    """Of the operations that end in it."""
    first_ms: int
    last_ms: int
    """Their times, milliseconds since 1970 UTC."""
    checkpoint_sequence: int
    """Of the newest checkpoint that begins in it; 0: none."""
    offloaded_ms: int


class RemovedParts(NamedTuple):
    """Parts that were taken out of a container's archive."""

    container_id: int
    parts: int


class GarbageItem(NamedTuple):
    """An object, an upload or a ledger that is not needed."""

    state: GarbageState
    container_id: int
    size: int | None
    """Bytes; None for an upload, of which no provider reports a size, and a ledger that was never
    closed.
    """
    until: datetime | None
    """When the deletion lag of what is waiting is over, at the latest if the store stays open."""
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageReport:
    """What a collection found and did."""

    items: tuple[GarbageItem, ...]
    """By state, container and name."""
    findings: tuple[Finding, ...] = ()
    """What was left undone, of severity `note`, and what else is in the place, `information`."""

    @classmethod
    def of(cls, found: Iterable[GarbageItem | Finding]) -> GarbageReport:
        """What was found, in order."""
        items: list[GarbageItem] = []
        findings: list[Finding] = []
        for each in found:
            if isinstance(each, GarbageItem):
                items.append(each)
            else:
                findings.append(each)
        items.sort(key=lambda item: (item.state, item.container_id, item.name))
        return cls(items=tuple(items), findings=tuple(findings))

    @property
    def problems(self) -> tuple[str, ...]:
        """Why something was left undone, one sentence each; empty when all was done that could
        be.
        """
        return self._sentences(Severity.NOTE)

    @property
    def notes(self) -> tuple[str, ...]:
        """What else is in the place, one sentence each."""
        return self._sentences(Severity.INFORMATION)

    def _sentences(self, severity: Severity) -> tuple[str, ...]:
        return tuple(each.detail for each in self.findings if each.severity is severity)

    def count(self, *states: GarbageState) -> int:
        """How many items are in these states; all if none is named."""
        return sum(1 for item in self.items if not states or item.state in states)

    def size(self, *states: GarbageState) -> int:
        """Bytes of the objects in these states; of all if none is named."""
        return sum(item.size or 0 for item in self.items if not states or item.state in states)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogExport:
    """A snapshot that was put."""

    container_id: int
    epoch: int
    sequence_number: int
    """Of the last operation in it; all before it are in it, none after."""
    time_ms: int
    """When it began, milliseconds since 1970 UTC: what was committed by then is in it."""
    manifest: str
    """Name of the object by which it exists."""
    rows: Mapping[str, int]
    """By table."""
    size: int
    """Bytes of the tables."""


class FrameEntry(NamedTuple):
    """A frame of a log."""

    container_id: int
    address: int
    sequence: int
    epoch: int
    size: int
    """Bytes of its payload."""
    place: str
    """The file or ledger that it is in, and where, for people; empty if it is in neither."""


class OperationEntry(NamedTuple):
    """An operation in a log."""

    container_id: int
    address: int
    """Of the frame that it begins in."""
    sequence: int
    kind: str
    """E.g. `storage update`."""
    size: int
    """Encoded, in bytes."""
    time_ms: int
    """When it was taken, wall time."""
    what: str
    """Its own fields in a line, bytes by their length."""


BlockState = Literal["live", "waiting for deletion"]


class BlockEntry(NamedTuple):
    """A stretch of a segment in an object, or an object that waits for its deletion."""

    object: str
    object_size: int
    state: BlockState
    segment: str | None
    """Its name; behind that of one that was merged or deleted is which. None in an object that
    waits, and so are the numbers.
    """
    block_offset: int | None
    start_offset: int | None
    length: int | None
