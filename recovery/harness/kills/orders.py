"""Kill orders: what a child process is asked to do with a store, and the clock it shares with its
parent.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from recovery.harness.runs.allowed_ends import FORESEEN
from segmentstore.contracts.errors import DataCorruptionError, StoreInUseError

OVERTAKEN: Final = (*FORESEEN, StoreInUseError, DataCorruptionError)
"""And how that of one of two owners may: both opened at the same time; an object it would read is
deleted.
"""

Ending = Literal["killed", "closed", "checked"]
"""killed: work, then wait for the signal; closed: work, then close; checked: no work, all into Tier
2, check, close.
"""


@dataclass(frozen=True, slots=True)
class Orders:
    """One process run of a store in a process of its own."""

    location: str
    process_run: int
    seed: str
    workload: str
    first_call: int
    """Number of the first call it makes."""
    operations: int
    """Calls to make, about; 0 only checks."""
    ending: Ending = "killed"
    proves: bool = False
    """Reports what it saw only after it has shown, by a checkpoint, that it was the owner all the
    time.
    """
    pace: float = 0.002
    """Factor on the pauses of clients."""
    phases: int = 1
    """The workload is run so often, each time on segments of its own; between them the whole store
    is observed.
    """
    dies_at: str = ""
    """A point of `log_points` at which it ends itself."""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """On one line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Orders:
        """What `to_json` wrote."""
        return cls(**json.loads(text))


def shared_clock_ns() -> int:
    """Nanoseconds since the machine started: the same clock in every process, never set back."""
    return time.monotonic_ns()
