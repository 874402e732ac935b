"""ClusterTimeline: what a cluster wrote into ZooKeeper, and when; the phases of a pause by that.

What a record says of a state has the time of its host's clock, which is this machine's; the map has
when a move was decided. What has no time of its own counts from when a watch here saw it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from bench.cluster_load import Pause
from segmentstore.cluster.assignment_map import AssignmentMap
from segmentstore.cluster.cluster_nodes import ClusterNodes
from segmentstore.cluster.cluster_view import ClusterSeen, ClusterView
from segmentstore.cluster.host_record import ReportedState

MOVE_PHASES: Final = ("decide", "prepare", "release", "open", "find")
"""Of a planned move. The first two are no part of its pause: the container serves meanwhile."""
TAKEOVER_PHASES: Final = ("session", "decide", "notice", "open", "replay", "find")
"""Of a killed host."""
MEANINGS: Final[Mapping[str, str]] = {
    "session": "until ZooKeeper has removed the host's record",
    "decide": "until the map names the new owner",
    "prepare": "until the old owner takes no more appends",
    "release": "until the old owner has stopped, and the new one begins to open the log",
    "notice": "until the new owner begins to open the log",
    "open": "the log opened, in a move also replayed",
    "replay": "the log replayed",
    "find": "until the client has its first acknowledgement",
}


class _Seen(NamedTuple):
    at: float
    """By the monotonic clock, in seconds."""
    owner: str | None
    """By the map."""
    decided: float | None
    """Since when it moves there."""
    states: Mapping[str, tuple[ReportedState, float]]
    """Of the container, by host, with since when."""
    hosts: frozenset[str]


class ClusterTimeline:
    """Of one cluster, from `open` to `close`."""

    def __init__(self, nodes: ClusterNodes) -> None:
        self._changed = asyncio.Event()
        self._view = ClusterView(nodes, self._changed.set)
        self._seen: list[tuple[float, ClusterSeen]] = []
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to watch."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Watch no more."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait((self._task,))
        self._view.close()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            seen = await self._view.read(records=True)
            self._seen.append((time.monotonic(), seen))
            await self._changed.wait()

    def forget(self) -> None:
        """What is over."""
        del self._seen[:-1]

    def move(self, number: int, target: str, asked: float, pause: Pause) -> dict[str, float]:
        """Seconds of each of MOVE_PHASES, for a move that was asked for at this time.

        What cannot be seen apart has no time of its own.
        """
        seen = self._of(number)
        moves = (each.decided for each in seen if each.owner == target)
        decided = next((at for at in moves if at is not None), asked)
        begun, serves = _start(seen, decided, target)
        times = (asked, decided, pause.begin, begun, serves, pause.end)
        return _spans(MOVE_PHASES, times)

    def takeover(
        self, number: int, victim: str, killed: float, pause: Pause, replay_s: float
    ) -> dict[str, float]:
        """Seconds of each of TAKEOVER_PHASES, for a host that was killed at this time."""
        seen = self._of(number)
        gone = _first(seen, killed, lambda each: victim not in each.hosts)
        decided = _first(seen, gone, lambda each: each.owner not in (victim, None))
        target = next(each.owner for each in seen if each.at >= decided)
        begun, serves = _start(seen, decided, str(target))
        times = (killed, gone, decided, begun, serves - replay_s, serves, pause.end)
        return _spans(TAKEOVER_PHASES, times)

    def _of(self, number: int) -> list[_Seen]:
        return [_of_container(at, seen, number) for at, seen in self._seen]


def _of_container(at: float, seen: ClusterSeen, number: int) -> _Seen:
    clock_s = time.time() - time.monotonic()
    states = {
        host: (report.state, report.since_ms / 1000 - clock_s)
        for host, record in seen.records.items()
        if (report := record.containers.get(number)) is not None
    }
    assigned = AssignmentMap() if seen.stored is None else seen.stored.map
    move = assigned.moves.get(number)
    decided = None if move is None else move.started_ms / 1000 - clock_s
    owner = assigned.owners.get(number)
    return _Seen(at, owner, decided, states, frozenset(seen.nodes))


def _first(seen: list[_Seen], begin: float, holds: Callable[[_Seen], bool]) -> float:
    return next((each.at for each in seen if each.at >= begin and holds(each)), begin)


def _start(seen: list[_Seen], begin: float, target: str) -> tuple[float, float]:
    """When this host began to start the container, and when it served."""
    begun = serves = begin
    for each in seen:
        state, since = each.states.get(target, (None, 0.0))
        if since < begin:
            continue
        if state is ReportedState.STARTING:
            begun = since
        elif state is ReportedState.RUNNING:
            serves = since
            break
    else:
        return begin, begin
    if begun == begin:
        begun = serves
    return min(begun, serves), serves


def _spans(names: tuple[str, ...], times: tuple[float, ...]) -> dict[str, float]:
    """Each from the latest time before it, so that they add up."""
    spans: dict[str, float] = {}
    latest = times[0]
    for name, at in zip(names, times[1:], strict=True):
        spans[name] = max(0.0, at - latest)
        latest = max(latest, at)
    return spans
