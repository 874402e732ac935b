"""The processes of a simulated machine, as one of them sees them: its own identity, and whether
another one still runs.
"""

from __future__ import annotations

from collections.abc import Callable

from segmentstore.contracts.processes import ProcessIdentity

_HOST = "simulated"


class SimulatedProcesses:
    """`name` ends in a dot and the number of the process; `living` gives the names of those that
    are not dead.
    """

    def __init__(self, name: str, living: Callable[[], list[str]]) -> None:
        self._name = name
        self._living = living

    def me(self) -> ProcessIdentity:
        return ProcessIdentity(_HOST, int(self._name.rpartition(".")[2]), _HOST, self._name)

    def is_alive(self, identity: ProcessIdentity) -> bool | None:
        return identity.started in self._living() if identity.place == _HOST else None
