"""Stage: the names that clients use in each process run of a store, and the numbers and sizes of
exactly-once events.

Pure: everything follows from the number of the process run. So a client in another process, or
after a crash that left nothing but the store, knows what its predecessors knew. Process runs come
in generations; a new generation uses new segments, and those of the older ones are deleted when it
begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_UNUSED_EVENTS: Final = (23, 7)
"""Event numbers that leave this rest are never used: a writer may skip numbers."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Names of one workload on one store. All names begin with `label`."""

    label: str = "load"
    process_runs_per_generation: int = 5

    def generation(self, process_run: int) -> int:
        """Which generation of segments a process run uses."""
        return process_run // self.process_runs_per_generation

    def shared(self, role: str, index: int, process_run: int) -> str:
        """A segment that all clients of a generation use."""
        return f"{self.label}/{role}-{self.generation(process_run)}-{index}"

    def own(self, role: str, process_run: int, client: int, number: int) -> str:
        """A segment that one client makes in one process run."""
        return f"{self.label}/{role}-{self.generation(process_run)}-{process_run}.{client}.{number}"

    def source(self, target: str, process_run: int, client: int, number: int) -> str:
        """A merge source in the container of its target."""
        return f"{target}#transaction.{process_run:08x}{client:08x}{number:016x}"

    def is_retired(self, name: str, process_run: int) -> bool:
        """True of names that an older generation used."""
        found = re.match(rf"{re.escape(self.label)}/[a-z]+-(\d+)-", name)
        return found is not None and int(found[1]) < self.generation(process_run)

    def writer(self, place: int, process_run: int) -> int:
        """Number of the exactly-once writer in the given place: never that of another generation,
        never 0.
        """
        return self.generation(process_run) * 1000 + place + 1


def first_event(number: int) -> int:
    """The first usable event number from `number` on."""
    number = max(0, number)
    modulus, rest = _UNUSED_EVENTS
    return number + 1 if number % modulus == rest else number


def event_length(writer: int, event: int) -> int:
    """Filler bytes of an event: the same whenever it is sent again."""
    mixed = (writer * 1_000_003 + event * 7919) % 1009
    return 300 + mixed if mixed % 29 == 0 else mixed % 90
