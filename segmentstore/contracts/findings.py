"""What a check found: one record for verify, scrub, restore, gc, reconciliation and crash tests.

A finding says what it is, how bad it is, where, and what that means. Whose move is next follows
from its kind (`MOVES`, and docs/findings.md for people).

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple


class Severity(enum.StrEnum):
    """How bad a finding is, the worst first."""

    HARMFUL = "harmful"
    """Acknowledged bytes are missing or wrong, or it cannot be shown that they are not."""
    NOTE = "note"
    """Nothing is lost."""
    INFORMATION = "information"
    """As it should be."""
    UNKNOWN = "unknown"
    """It could not be known: what it would have to be compared with lacks."""


class Move(enum.StrEnum):
    """The party that acts next."""

    PERSON = "person"
    """An operator has to inspect it, and perhaps to restore, to delete or to repair."""
    OWNER = "owner"
    """The store's own work ends it, if the store is opened and runs."""
    NOBODY = "nobody"
    """Nothing has to be done."""


class Finding(NamedTuple):
    """One thing found. `kind` is a short fixed word for programs, the rest is for people."""

    severity: Severity
    kind: str
    """One of MOVES."""
    place: str
    """Where: a container, a segment, an object, a file. Empty where `detail` says it."""
    detail: str
    """What it means, in a sentence."""

    @property
    def move(self) -> Move:
        """Whose move is next. KeyError for a kind that is not in MOVES."""
        return MOVES[self.kind]

    def __str__(self) -> str:
        return f"{self.kind} {self.place}: {self.detail}"


MOVES: Final[Mapping[str, Move]] = {
    # verify, scrub, restore and crash tests: the log, and the metadata that it adds up to
    "log": Move.PERSON,
    "log-lost": Move.PERSON,
    "torn-tail": Move.OWNER,
    "checkpoint": Move.PERSON,
    "catalog": Move.OWNER,
    "metadata-snapshot": Move.OWNER,
    "metadata": Move.PERSON,
    "chunk": Move.PERSON,
    "gap": Move.PERSON,
    "overlap": Move.PERSON,
    "missing-bytes": Move.PERSON,
    # ... and objects in Tier 2
    "object-missing": Move.PERSON,
    "object-size": Move.PERSON,
    "block": Move.PERSON,
    "unused-block": Move.NOBODY,
    "unreadable": Move.PERSON,
    "garbage": Move.OWNER,
    "orphans": Move.OWNER,
    "foreign-objects": Move.PERSON,
    "marker-missing": Move.OWNER,
    # verify and gc: what is of other stores
    "other-store": Move.NOBODY,
    "unknown-owner": Move.PERSON,
    # gc: what was left undone
    "sweep-stopped": Move.PERSON,
    "newer-epoch": Move.PERSON,
    "deletion-failed": Move.OWNER,
    "orphan-ledger": Move.PERSON,
    # archive verify
    "archived-part": Move.PERSON,
    "archived-part-missing": Move.PERSON,
    "archive-hole": Move.PERSON,
    "archive-orphan": Move.PERSON,
    # reconciliation (tier2.spark: FindingKind)
    "missing": Move.PERSON,
    "wrong_size": Move.PERSON,
    "wrong_identity": Move.PERSON,
    "bad_checksum": Move.PERSON,
    "orphan": Move.OWNER,
    "in_flight": Move.OWNER,
    "waiting_for_deletion": Move.OWNER,
    "leftover": Move.OWNER,
    "foreign": Move.PERSON,
}
"""Every kind there is, and whose move it is."""


def harmful(kind: str, place: str, detail: str) -> Finding:
    """A finding that costs acknowledged bytes."""
    return Finding(Severity.HARMFUL, kind, place, detail)


def note(kind: str, place: str, detail: str) -> Finding:
    """A finding that costs nothing."""
    return Finding(Severity.NOTE, kind, place, detail)


def unknown(kind: str, place: str, detail: str) -> Finding:
    """A finding of what could not be checked."""
    return Finding(Severity.UNKNOWN, kind, place, detail)


def harmful_lines(findings: Iterable[Finding]) -> tuple[str, ...]:
    """The harmful ones, a line each."""
    return tuple(str(each) for each in findings if each.severity is Severity.HARMFUL)
