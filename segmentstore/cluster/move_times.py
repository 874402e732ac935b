"""MoveTimes: how containers came to this host, and how long each was not served meanwhile. Pure.

A container is *given* by the version of the map that first names this host. From then until it
serves here is its arrival: the owner before stops it, or is dead; then it is opened, and its log
replayed. In a planned move the owner before goes on serving at the beginning of that time. So the
arrival is a bound of the pause that clients saw. In a take-over the time before is added, in which
the death was noticed: the session's timeout.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from segmentstore.cluster.assignment_map import AssignmentMap


class MoveTimes:
    """Of one host; times are of one clock that only goes forward, in seconds."""

    def __init__(self) -> None:
        self._given: dict[int, tuple[float, bool]] = {}
        """Since when the map gives each container that does not serve here yet, and whether by a
        planned move.
        """
        self._ours: frozenset[int] = frozenset()
        self.moved_in = 0
        """Containers that began to serve here behind a planned move."""
        self.taken_over = 0
        """Those that did without one: their host died or left, or they never had one."""
        self._arrival_s: dict[int, float] = {}
        self._start_s: dict[int, float] = {}
        self._stop_s: dict[int, float] = {}

    def follow(self, now_s: float, me: str, current: AssignmentMap) -> None:
        """The map is this now. O(containers of the map)."""
        ours = frozenset(number for number, owner in current.owners.items() if owner == me)
        for number in ours - self._ours:
            self._given[number] = now_s, number in current.moves
        for number in self._ours - ours:
            self._given.pop(number, None)
        self._ours = ours

    def started(self, number: int, begun_s: float, now_s: float) -> None:
        """A container serves, whose start began then."""
        given_s, is_planned = self._given.pop(number, (begun_s, False))
        self._arrival_s[number] = now_s - given_s
        self._start_s[number] = now_s - begun_s
        self._stop_s.pop(number, None)
        if is_planned:
            self.moved_in += 1
        else:
            self.taken_over += 1

    def stopped(self, number: int, begun_s: float, now_s: float) -> None:
        """All of a container is released, whose stop began then."""
        self._stop_s[number] = now_s - begun_s
        self._arrival_s.pop(number, None)
        self._start_s.pop(number, None)

    def kept(self, number: int) -> None:
        """A container served all the time: the map gave it back before it was stopped."""
        self._given.pop(number, None)

    @property
    def arrival_s(self) -> Mapping[int, float]:
        """From the map that gave a container to this host until it served, by container."""
        return dict(self._arrival_s)

    @property
    def start_s(self) -> Mapping[int, float]:
        """Of that, what opening, fencing and replay took."""
        return dict(self._start_s)

    @property
    def stop_s(self) -> Mapping[int, float]:
        """What stops of containers took that are not here any more, by container."""
        return dict(self._stop_s)

    def missing(self, running: Collection[int]) -> list[int]:
        """Containers that the map gives to this host and that do not serve here, ascending."""
        return sorted(self._ours.difference(running))

    @property
    def assigned(self) -> int:
        """How many containers the map gives to this host."""
        return len(self._ours)
