"""History: what clients asked of a store, what answers they got, and what was seen of it
afterwards.

Pure data.

Stamps are taken from one counter in the order things happened, so they give real-time order: a call
that ended before another began came first. Rules of this file:

- a call that never ended, or ended without an answer (AppendOutcomeUnknownError, the store stopped
  or died under it), has outcome UNKNOWN. It may have taken effect or not, until its process run is
  over, and never later;
- a *process run* is one opening of the store by one process. An *observation* is the whole state of
  the store, read through the public API while no client is at work.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from recovery.harness.seen_past import SeenPast
from recovery.harness.seen_tiers import SeenTiers


class CallOutcome(enum.StrEnum):
    """How a call ended, as far as its caller knows."""

    OK = "ok"
    REFUSED = "refused"
    """A definite no: it had and will have no effect."""
    UNKNOWN = "unknown"


class CallKind(enum.StrEnum):
    """What was asked for."""

    CREATE = "create"
    APPEND = "append"
    """Plain, conditional (`expected` is set) or with attributes (`updates`); one record, or several
    in a batch.
    """
    EVENT = "event"
    """Exactly-once append of event number `number` by writer `writer`."""
    SEAL = "seal"
    TRUNCATE = "truncate"
    MERGE = "merge"
    DELETE = "delete"
    UPDATE = "update"
    """Attribute updates alone."""
    READ = "read"
    INFO = "info"
    ATTRIBUTES = "attributes"
    FLUSH = "flush"
    CHECKPOINT = "checkpoint"
    SET_UP = "set-up"
    """Of writer `writer` on a wire connection: from then on its number is final."""
    TABLE_UPDATE = "table-update"
    """Item i of it sets `keys[i]`, to the record of this call and item."""
    TABLE_REMOVE = "table-remove"
    TABLE_READ = "table-read"


class SeenEntry(NamedTuple):
    """A key of a table with its version and its value."""

    key: bytes
    version: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Update:
    """One attribute update as it was asked for. `how` is the name of an UpdateType."""

    id: UUID
    how: str
    value: int
    expected: int | None = None


@dataclass(slots=True, eq=False)
class Call:
    """One call.

    The fields below `begun` are arguments, set as the kind asks; the last ones are the answer.
    """

    number: int
    """Its place in `History.calls`; the origin of the records it appends."""
    process_run: int
    client: str
    kind: CallKind
    segment: str
    begun: int
    lengths: tuple[int, ...] = ()
    """Filler bytes of its records (`records.append_record(number, item, length)`); one for an
    event.
    """
    size: int = 0
    """Bytes it appends, headers included."""
    expected: int | None = None
    updates: tuple[Update, ...] = ()
    writer: int = 0
    """Of an event, or a merge that is one: number of the writer (its id is UUID(int=writer))."""
    event: int = 0
    source: str = ""
    """Of a merge: the segment merged into `segment`."""
    behind: int | None = None
    """Of a merge that one call asked for with others: number of the one in front of it."""
    offset: int = 0
    """Of a truncation or a read."""
    max_length: int = 0
    ended: int | None = None
    outcome: CallOutcome = CallOutcome.UNKNOWN
    error: str = ""
    """Class name of the error, where there was one."""
    result: int | None = None
    """OK: offset of an append, event or merge (None for an event that was there already).

    Or final length of a seal, id of a created segment, length of an info. Or the number of a set-up
    (None: none).
    """
    data: bytes = b""
    """OK: what a read gave."""
    values: dict[UUID, int] = field(default_factory=dict)
    """OK: what `get_attributes` gave."""
    keys: tuple[tuple[bytes, int], ...] = ()
    """Of a call on a table, an argument: each key with the version that it is to have."""
    versions: tuple[int, ...] = ()
    """OK: of an update of a table, in the order of `keys`."""
    found: tuple[SeenEntry, ...] = ()
    """OK: what a read of a table gave, without the keys that are absent."""


@dataclass(slots=True)
class ProcessRun:
    """One opening of the store."""

    number: int
    process: str
    begun: int
    """When the opening began."""
    opened: int | None = None
    """When the store was open; None if it never was."""
    ended: int | None = None
    """When its process was dead or its close had returned: nothing of it takes effect later."""
    ending: str = ""
    """closed, failed, killed, power; paused while it may come back."""


@dataclass(frozen=True, slots=True)
class SeenSegment:
    """A segment as observed."""

    name: str
    segment_id: int
    container_id: int
    start_offset: int
    length: int
    storage_length: int
    sealed: bool
    attributes: dict[UUID, int]
    content: bytes
    """From start_offset to length, as read."""
    entries: tuple[SeenEntry, ...] | None = None
    """Of a table, all that it gives; None: it is no table."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The whole store at one time.

    `number` of a pair (see `again`) says which opening it is of.
    """

    begun: int
    ended: int
    process_run: int
    segments: dict[str, SeenSegment]
    again: bool = False
    """Taken after another recovery with nothing written since the observation before it: it must be
    equal.
    """
    findings: tuple[str, ...] = ()
    """Harmful findings of `recovery.store_check` on the files as they lay before this opening."""
    sequence_numbers: Mapping[int, int] = field(default_factory=dict)
    """By container, an operation as of which the store was as seen; empty: not noted."""
    time_ms: int = 0
    """A time as of which it was so, milliseconds since 1970 UTC; 0: not noted."""


@dataclass(slots=True)
class History:
    """Everything of one run, in order."""

    calls: list[Call] = field(default_factory=list)
    process_runs: list[ProcessRun] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    tiers: list[SeenTiers] = field(default_factory=list)
    """What lay in the tiers between the process runs, where a check was run."""
    stamp: int = 0
    past: SeenPast = field(default_factory=SeenPast)

    def next_stamp(self) -> int:
        """The next tick of the order of events."""
        self.stamp += 1
        return self.stamp


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a history breaks."""

    checker: str
    """Name of the checker that says so."""
    detail: str
    calls: Sequence[int] = ()
    """Numbers of the calls it is about."""

    def __str__(self) -> str:
        return f"{self.checker}: {self.detail}"
