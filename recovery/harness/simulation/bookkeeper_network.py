"""Between processes and the servers of a simulated cluster: requests and answers on their way, in
virtual time.

A server is a bookie, or ZooKeeper. A client is what a process has of it (its gateway, its session):
it dies with its process, or before it. Rules of this file:

- requests of one client to one server arrive in the order they were sent, and so do the answers; to
  different servers, in any;
- what lies ahead is kept outside of the processes with the time it is due, and happens whether they
  run, are stopped or dead. `settle` does what is due, in order, before anything is checked;
- of the requests that a dead client had on their way to a server, a prefix of any length arrives,
  when it is due;
- with a broken connection is lost what had not arrived; of what had, the answers;
- a server that is stopped takes up waiting requests when it goes on; a client has given up by then,
  or not.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from recovery.harness.simulation.virtual_loop import MICROSECONDS, VirtualTime

LATENCY_S: Final = (0.000_1, 0.002_5)
"""Of a request, and of an answer."""
SLOW_S: Final = (0.01, 1.0)
"""Of a request whose packets were lost once."""
LOST: Final = "lost"
LATE: Final = "late"
"""What becomes of a request that no server answers: the connection is closed; nothing was received
in time.
"""


class NetworkWorld(Protocol):
    """What the cluster needs of its world."""

    @property
    def time(self) -> VirtualTime: ...

    def strikes(self, point: str) -> bool:
        """True if the fault of this name happens now."""

    def reach(self, point: str) -> None:
        """Count a fault that has come of others."""


class NetworkProcess(Protocol):
    """What it needs of a process."""

    @property
    def name(self) -> str: ...
    @property
    def world(self) -> NetworkWorld: ...
    @property
    def random(self) -> random.Random: ...
    @property
    def dead(self) -> bool: ...
    @property
    def paused(self) -> bool: ...

    def effect(self, kind: str, place: str, detail: str = "") -> None:
        """Called before each effect; raises, and is dead, if the process dies before it."""


class Timeline:
    """What happens outside, in the order of time. One for a world; every client's loop turns it."""

    def __init__(self) -> None:
        self._ahead: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._clients: list[NetworkClient] = []

    def at(self, due_us: int, action: Callable[[], None], number: int | None = None) -> int:
        """Have `action` done then; its number, which decides among those of one time. O(log n)."""
        if number is None:
            self._number += 1
            number = self._number
        heapq.heappush(self._ahead, (due_us, number, action))
        if self._ahead[0][1] == number:
            # Every client is awake at what was next until now.
            for client in self._clients:
                client.wake(due_us)
        return number

    def settle(self, now_us: int) -> None:
        """Do what is due by now."""
        for client in list(self._clients):
            if client.owner.dead:
                client.die()
        ahead = self._ahead
        while ahead and ahead[0][0] <= now_us:
            heapq.heappop(ahead)[2]()

    def attach(self, client: NetworkClient) -> None:
        """A new client: its loop turns the timeline from now on."""
        self._clients.append(client)
        if self._ahead:
            client.wake(self._ahead[0][0])

    def detach(self, client: NetworkClient) -> None:
        """It does so no more."""
        self._clients.remove(client)

    @property
    def next_us(self) -> int | None:
        """When something is due next."""
        return self._ahead[0][0] if self._ahead else None


class NetworkServer:
    """Says when a server listens.

    Killed, it loses no data, and connections break; stopped, it answers later.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.down_from_us = 0
        self.down_until_us = 0
        self.stopped_until_us = 0

    def is_up(self, now_us: int) -> bool:
        return now_us >= self.down_until_us

    def kill(self, now_us: int, seconds: float) -> None:
        """Dead for so long."""
        if self.is_up(now_us):
            self.down_from_us = now_us
        self.down_until_us = max(self.down_until_us, now_us + round(seconds * MICROSECONDS))

    def stop(self, now_us: int, seconds: float) -> None:
        """SIGSTOP, and so much later SIGCONT."""
        self.stopped_until_us = max(self.stopped_until_us, now_us + round(seconds * MICROSECONDS))

    def heal(self) -> None:
        """Up and running."""
        self.down_until_us = self.stopped_until_us = 0


@dataclass(slots=True, eq=False)
class Request:
    """One request to one server."""

    apply: Callable[[], Any]
    """What it does there; gives the answer."""
    on_answer: Callable[[Any], None]
    """Receives the answer, or LOST, or LATE; never more than one, and none once the client is dead.
    """
    sent_us: int
    timeout_us: int
    generation: int
    number: int = 0
    dropped: bool = False
    answered: bool = False
    given_up_at_us: int = 0


class Link:
    """A client's connections to one server, one after another."""

    __slots__ = ("generation", "in_flight", "last_answer_us", "last_due_us", "server")

    def __init__(self, server: NetworkServer) -> None:
        self.server = server
        self.generation = 0
        self.in_flight: dict[Request, None] = {}
        """In the order they were sent."""
        self.last_due_us = self.last_answer_us = 0


class NetworkClient:
    """One process's way to the servers, for as long as it is alive.

    `breaks` and `slows` name the faults of a connection that breaks, or takes long; none: it does
    not.
    """

    def __init__(
        self,
        timeline: Timeline,
        owner: NetworkProcess,
        servers: tuple[NetworkServer, ...],
        *,
        breaks: str = "",
        slows: str = "",
    ) -> None:
        self.timeline = timeline
        self.owner = owner
        self.dead = False
        self.loop = asyncio.get_running_loop()
        self._links = [Link(server) for server in servers]
        self._breaks = breaks
        self._slows = slows
        self._timer: asyncio.TimerHandle | None = None
        timeline.attach(self)

    @property
    def now_us(self) -> int:
        return self.owner.world.time.now_us

    def draw_us(self, span_s: tuple[float, float] = LATENCY_S) -> int:
        """A time within a span of seconds."""
        least, most = span_s
        return round((least + (most - least) * self.owner.random.random()) * MICROSECONDS)

    def send(
        self,
        server: int,
        apply: Callable[[], Any],
        on_answer: Callable[[Any], None],
        *,
        timeout_s: float,
    ) -> None:
        """Put a request on its way.

        From now on nothing of this process can take it back, but its death perhaps.
        """
        link = self._links[server]
        now_us = self.now_us
        request = Request(
            apply, on_answer, now_us, round(timeout_s * MICROSECONDS), link.generation
        )
        link.in_flight[request] = None
        travels_us = self.draw_us(SLOW_S if self._strikes(self._slows) else LATENCY_S)
        link.last_due_us = max(link.last_due_us, now_us + travels_us)
        request.number = self.timeline.at(link.last_due_us, lambda: self._arrive(link, request))

    def wake(self, due_us: int) -> None:
        """See to it that this loop turns the timeline then, at the latest."""
        if self.owner.dead or self.loop.is_closed():
            return
        due_s = due_us / MICROSECONDS
        if self._timer is not None:
            if self._timer.when() <= due_s:
                return
            self._timer.cancel()
        self._timer = self.loop.call_at(due_s, self._turn)

    def die(self) -> None:
        """Missing: of what is on its way to each server chance decides how much arrives; no answer
        is received any more.
        """
        if self.dead:
            return
        self.dead = True
        for link in self._links:
            arrive = self.owner.random.randint(0, len(link.in_flight))
            for place, request in enumerate(link.in_flight):
                request.dropped = place >= arrive
        self.timeline.detach(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _turn(self) -> None:
        self._timer = None
        self.timeline.settle(self.now_us)
        next_us = self.timeline.next_us
        if next_us is not None and not self.dead:
            self.wake(next_us)

    def _arrive(self, link: Link, request: Request) -> None:
        """It is there, or would be: the server takes it now, later, or not at all."""
        server, now_us = link.server, self.now_us
        if not request.dropped and request.generation == link.generation:
            if not server.is_up(now_us):
                link.generation += 1
            elif server.stopped_until_us > now_us:
                self.timeline.at(
                    server.stopped_until_us, lambda: self._arrive(link, request), request.number
                )
                self._time_out(request)
                return
        del link.in_flight[request]
        if request.dropped:
            return
        if request.generation != link.generation:
            self._answer(link, request, LOST)
            return
        answer = request.apply()
        if self._strikes(self._breaks):
            link.generation += 1
            answer = LOST
        self._answer(link, request, answer)

    def _strikes(self, point: str) -> bool:
        return bool(point) and not self.dead and self.owner.world.strikes(point)

    def _answer(self, link: Link, request: Request, answer: object) -> None:
        if self.dead:
            return
        link.last_answer_us = max(link.last_answer_us, self.now_us + self.draw_us())
        self.timeline.at(link.last_answer_us, lambda: self._receive(request, answer))

    def _time_out(self, request: Request) -> None:
        give_up_us = request.sent_us + request.timeout_us
        if not self.dead and not request.given_up_at_us:
            request.given_up_at_us = max(give_up_us, self.now_us)
            self.timeline.at(request.given_up_at_us, lambda: self._receive(request, LATE))

    def _receive(self, request: Request, answer: object) -> None:
        if request.answered or self.dead or self.owner.dead:
            return
        request.answered = True
        request.on_answer(answer)
