"""Seen past: what containers were at single operations, as live owners had it, and as it was
rebuilt later.

Pure data, part of a `History`. A *noted* moment is the committed metadata of a live owner, in the
turn of the loop in which an operation was committed. A *rebuilt* one is what replay of the history
gives at the same operation, with the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PastSegment:
    """A segment at an operation."""

    segment_id: int
    name: str
    start_offset: int
    length: int
    sealed: bool
    attributes: Mapping[bytes, int] | None
    """None: the owner did not have all of them in memory."""
    content: bytes | None = None
    """From the start offset to the length; None: not read."""


@dataclass(frozen=True, slots=True)
class PastMoment:
    """A container at an operation."""

    container_id: int
    sequence_number: int
    segments: Mapping[int, PastSegment] = field(default_factory=dict)
    """By id: those that callers could name."""
    whole: bool = True
    """False: the owner had other segments that were not in memory."""
    error: str = ""
    """Of one that was rebuilt: why it could not be."""
    lost: int = 0
    """Of one that was rebuilt: bytes that could not be had."""


@dataclass(slots=True)
class SeenPast:
    """Of one run."""

    noted: list[PastMoment] = field(default_factory=list)
    rebuilt: list[PastMoment] = field(default_factory=list)
