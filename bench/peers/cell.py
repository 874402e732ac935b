"""A cell of the table: one load, which is put on every peer in turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self


class PeerSizes(NamedTuple):
    """How much is measured."""

    rounds: int
    rounds_dear: int
    """Of cells that fill or restart a peer, or create many logs."""
    warm_s: float
    seconds: float
    """Of a load that is measured by time."""
    catch_up_bytes: int
    sustained_s: int
    segments: Sequence[int]
    killed_records: int
    """Acknowledged before the kill, at least."""
    grown_bytes: int
    """In a log before it is measured."""
    grown_chunks: int
    """Of a segment in Tier 2 before it is measured."""


QUICK = PeerSizes(2, 1, 0.2, 0.5, 64 << 20, 5, (1, 1000), 20_000, 64 << 20, 200)
FULL = PeerSizes(
    5, 3, 1.0, 4.0, 1 << 30, 600, (1, 1000, 100_000, 1_000_000), 200_000, 4 << 30, 10_000
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRun:
    """One round of one cell on one peer, in a process of its own: what `peer_round` gets."""

    peer: str
    address: str
    base: str
    """Of the names of its logs, which no other round has."""
    processes: Sequence[int]
    """Of the server."""
    in_flight_max: int
    """Records of a producer that may wait for their acknowledgement."""
    sizes: PeerSizes

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**dataclasses.asdict(self), "sizes": self.sizes._asdict()}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From plain values."""
        return cls(**{**values, "sizes": PeerSizes(**values["sizes"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One line of loads. Its `module` has `floor_round(directory, **parameters)` and, unless it has
    `suite_round`, `peer_round(run, **parameters)`.

    `suite_round(peer, run, folder, parameters)` runs in the process of the suite: a load for which
    a peer is killed or restarted.
    """

    name: str
    unit: str
    module: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    lower_is_better: bool = False
    segments: int = 1
    rounds_max: int = 99
    left_out: Sequence[str] = ()
    """Peers that cannot do it."""

    @property
    def workload(self) -> str:
        """W1 to W7."""
        return self.name.partition(" ")[0]
