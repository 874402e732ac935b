"""A process's gateway in a simulated world: the BookKeeper client, its handles, and what it waits
for.

It stands for a JVM beside the process: it goes on while the process is stopped, and ends with it,
or before it. Rules of this file:

- an entry is OK when its ack quorum has it and all entries before it are OK; results come in the
  order of the entries;
- a dead bookie does not end a handle as long as the others make an ack quorum
  (delayEnsembleChange);
- a handle's first failure is its end. All pending entries get the same code, all later ones -11,
  and the client closes the ledger by itself where it knows it to be OK;
- a fence that is received with an entry that is OK already ends the handle too: then the first code
  is -11.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from durablelog.bookkeeper.ledger_store import EMPTY, OK, AddResult
from recovery.harness.simulation.bookkeeper_bookies import (
    CLOSED,
    FENCED,
    GATEWAY_LOST,
    NOT_ENOUGH_BOOKIES,
    QUORUM_LATE,
    TIMED_OUT,
    BookieAnswer,
    BookKeeperServers,
    Entry,
    LedgerRecord,
)
from recovery.harness.simulation.bookkeeper_network import LATE, NetworkClient, NetworkProcess
from recovery.harness.simulation.virtual_loop import MICROSECONDS

ADD_TIMEOUT_S: Final = 5.0
REPORT_DELAY_S: Final = 0.2
"""explicitLacInterval."""
READ_ANSWER_TIMEOUT_S: Final = 5.0
METADATA_TIMEOUT_S: Final = 20.0
KILLED_S: Final = (0.5, 60.0)
STOPPED_S: Final = (0.5, 15.0)
AWAY_S: Final = (1.0, 120.0)


class Answers:
    """What several servers answer to one question, in the order of their coming."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._come: deque[tuple[int, Any]] = deque()
        self._waiting: asyncio.Future[None] | None = None

    def take(self, server: int, answer: object) -> None:
        """One more."""
        self._come.append((server, answer))
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def next(self) -> tuple[int, Any]:
        """The next one: its sender, and what it says."""
        while not self._come:
            self._waiting = self._loop.create_future()
            await self._waiting
        return self._come.popleft()


class SimulatedGateway(NetworkClient):
    """One process run of the gateway of one process."""

    def __init__(self, servers: BookKeeperServers, owner: NetworkProcess) -> None:
        super().__init__(
            servers.timeline,
            owner,
            servers.servers,
            breaks="bookkeeper.connection.broken",
            slows="bookkeeper.connection.slow",
        )
        self.servers = servers
        self.handles: list[Handle] = []
        self._asked: list[Answers] = []

    @property
    def zookeeper(self) -> int:
        """Its number among the servers."""
        return len(self.servers.bookies)

    def weather(self) -> None:
        """What chance does to the servers now."""
        strikes, rng = self.owner.world.strikes, self.owner.random
        servers, now_us = self.servers, self.now_us
        if strikes("bookkeeper.bookie.killed"):
            rng.choice(servers.bookies).kill(now_us, rng.uniform(*KILLED_S))
        if strikes("bookkeeper.bookie.stopped"):
            rng.choice(servers.bookies).stop(now_us, rng.uniform(*STOPPED_S))
        if strikes("bookkeeper.bookie.wiped"):
            # Always the same one: what two of three have lost is lost.
            servers.bookies[0].wipe()
        if strikes("node.away"):
            servers.zookeeper.stop(now_us, rng.uniform(*AWAY_S))

    def open_handle(
        self,
        ledger_id: int,
        record: LedgerRecord,
        on_result: Callable[[AddResult], None],
        on_death: Callable[[], None],
    ) -> Handle:
        """The handle of the process that created a ledger; `on_death` is called when the gateway is
        killed.
        """
        handle = Handle(self, ledger_id, record, on_result, on_death)
        if self.dead:
            # Killed between its answer and this: each entry will get that error.
            handle.closed = True
        else:
            self.handles.append(handle)
        return handle

    def ask(self, servers: Sequence[int], apply: Callable[[int], Any], timeout_s: float) -> Answers:
        """Ask several servers at once.

        If the gateway ends, GATEWAY_LOST is the last that is received.
        """
        answers = Answers(self.loop)
        self._asked.append(answers)
        for server in servers:
            self._ask(answers, server, apply, timeout_s)
        return answers

    def forget(self, answers: Answers) -> None:
        """No caller waits for them any more."""
        if answers in self._asked:
            self._asked.remove(answers)

    async def ask_one(self, server: int, apply: Callable[[], Any], timeout_s: float) -> Any:
        """Ask one server."""
        answers = self.ask([server], lambda _server: apply(), timeout_s)
        answer = (await answers.next())[1]
        self.forget(answers)
        return answer

    def end(self) -> None:
        """It is killed, and its process is alive: every handle is dead, and every call that was
        under way.
        """
        if self.dead:
            return
        self.die()
        for answers in self._asked:
            answers.take(-1, GATEWAY_LOST)
        for handle in self.handles:
            handle.killed()
        self._asked.clear()
        self.handles.clear()

    def _ask(
        self, answers: Answers, server: int, apply: Callable[[int], Any], timeout_s: float
    ) -> None:
        if self.dead:
            answers.take(server, GATEWAY_LOST)
        else:
            self.send(
                server,
                lambda: apply(server),
                lambda answer: answers.take(server, answer),
                timeout_s=timeout_s,
            )


@dataclass(slots=True, eq=False)
class _Add:
    """An entry on its way to its bookies."""

    entry: int
    length: int
    acknowledged: int = 0
    failed: int = 0
    done: bool = False


class Handle:
    """The one writer of a ledger, in the gateway. `on_result` gets every entry, in order."""

    def __init__(
        self,
        gateway: SimulatedGateway,
        ledger_id: int,
        record: LedgerRecord,
        on_result: Callable[[AddResult], None],
        on_death: Callable[[], None],
    ) -> None:
        self.ledger_id = ledger_id
        self.confirmed = EMPTY
        """The last entry that is OK."""
        self.length = 0
        """Up to that one."""
        self.closed = False
        self._gateway = gateway
        self._record = record
        self._on_result = on_result
        self._on_death = on_death
        self._confirmed_us = gateway.now_us
        gateway.servers.writers[ledger_id] = self
        self._pending: deque[_Add] = deque()
        self._sent = 0
        self._sent_length = 0

    def add(self, data: bytes) -> None:
        """Send the next entry to its bookies."""
        if self.closed:
            self._on_result(AddResult(GATEWAY_LOST if self._gateway.dead else CLOSED, EMPTY))
            return
        gateway, bookies = self._gateway, self._gateway.servers.bookies
        self._sent_length += len(data)
        add = _Add(self._sent, self._sent_length)
        self._sent += 1
        self._pending.append(add)
        entry = Entry(data, self.confirmed, add.length)
        for number in self._record.write_set(add.entry):
            gateway.send(
                number,
                partial(bookies[number].add, self.ledger_id, add.entry, entry),
                lambda answer: self._answered(add, answer),
                timeout_s=ADD_TIMEOUT_S,
            )

    def announced(self, now_us: int) -> int:
        """The last entry bookies were reported by now; what is younger goes with the next entry, or
        a while later.
        """
        idle = not self._gateway.dead and now_us - self._confirmed_us >= round(
            REPORT_DELAY_S * MICROSECONDS
        )
        return self.confirmed if idle else EMPTY

    def seal(self) -> None:
        """Take no more entries; what is pending gets -11."""
        if not self.closed:
            self._end(CLOSED)

    def killed(self) -> None:
        """The gateway was killed. The notified client fails what is pending."""
        self.closed = True
        self._pending.clear()
        self._on_death()

    def close_ledger(self) -> object:
        """What closing does in ZooKeeper."""
        return self._gateway.servers.close_ledger(self.ledger_id, self.confirmed, self.length)

    def _answered(self, add: _Add, answer: BookieAnswer | str) -> None:
        if self.closed:
            return
        if isinstance(answer, BookieAnswer) and answer.code == OK:
            add.acknowledged += 1
            self._advance()
        elif isinstance(answer, BookieAnswer) and answer.code == FENCED:
            self._fail(CLOSED if add.done else FENCED)
        else:
            add.failed += 1
            quorums = self._record.replication
            if not add.done and quorums.write_quorum - add.failed < quorums.ack_quorum:
                self._fail(self._too_few(late=answer == LATE))

    def _advance(self) -> None:
        pending = self._pending
        while pending and pending[0].acknowledged >= self._record.replication.ack_quorum:
            add = pending.popleft()
            add.done = True
            self.confirmed, self.length = add.entry, add.length
            self._confirmed_us = self._gateway.now_us
            self._on_result(AddResult(OK, add.entry))

    def _too_few(self, *, late: bool) -> int:
        if not late:
            return NOT_ENOUGH_BOOKIES
        return self._gateway.owner.random.choice((NOT_ENOUGH_BOOKIES, QUORUM_LATE, TIMED_OUT))

    def _fail(self, code: int) -> None:
        """The end, of a handle that was not closed: the client itself closes the ledger."""
        self._gateway.owner.world.reach(_POINTS[code])
        self._end(code)
        gateway = self._gateway
        gateway.send(gateway.zookeeper, self.close_ledger, _nothing, timeout_s=METADATA_TIMEOUT_S)

    def _end(self, code: int) -> None:
        self.closed = True
        pending = len(self._pending)
        self._pending.clear()
        for _ in range(pending):
            self._on_result(AddResult(code, EMPTY))


_POINTS: Final = {
    CLOSED: "bookkeeper.add.closed",
    FENCED: "bookkeeper.add.fenced",
    NOT_ENOUGH_BOOKIES: "bookkeeper.add.not-enough",
    QUORUM_LATE: "bookkeeper.add.late",
    TIMED_OUT: "bookkeeper.add.late",
}


def _nothing(_answer: object) -> None:
    """No caller waits for it."""
