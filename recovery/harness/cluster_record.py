"""ClusterRecord: what was seen of a cluster from outside while it ran. Pure data.

It has acknowledgements with their owners, and each version of the map.

Stamps are of the history's counter, as those of calls.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from segmentstore.cluster.assignment_map import AssignmentMap


class Acknowledgement(NamedTuple):
    """A change that an owner said to be durable."""

    container: int
    epoch: int
    """Of the owner's log."""
    process: str
    begun: int
    """When the owner was given it."""
    ended: int


class MapWrite(NamedTuple):
    """One version of the map's node."""

    version: int
    map: AssignmentMap
    data: bytes
    at_us: int


class SeenBytes(NamedTuple):
    """What a reader was given, by whichever host."""

    segment: str
    offset: int
    data: bytes
    process: str


class Disorder(NamedTuple):
    """A state that must not be, as it was seen."""

    kind: str
    detail: str


@dataclass(slots=True)
class ClusterRecord:
    """Of one run, in order."""

    acknowledgements: list[Acknowledgement] = field(default_factory=list)
    maps: list[MapWrite] = field(default_factory=list)
    reads: list[SeenBytes] = field(default_factory=list)
    disorders: list[Disorder] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """`take-overs`: an owner began behind one that had not released the container. `moves`: behind
    one that had. `map writes`, `edits`, `kills`. `unknown outcomes`: appends that a host took, and
    of which it could not say whether they happened.
    """
    longest_unserved_s: float = 0.0
    """For which a container had no host that served it, the faults included."""
