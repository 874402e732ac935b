"""Ledgers as one process of a simulated world has them: a LedgerStore over the modelled cluster,
with every fault on the way.

Rules of this file:

- what a process does to the outside is announced (`NetworkProcess.effect`) before it is handed to
  the gateway: there it can die or be stopped, between any two;
- results cross from the gateway to the process a little later; those that had not when the gateway
  was killed are lost, and their entries have an unknown outcome (-19);
- a gateway that was killed is started again by the next call that needs one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

from durablelog.bookkeeper.ledger_store import (
    EMPTY,
    AddResult,
    LedgerDescription,
    LedgerError,
    LedgerState,
    LedgerStore,
    LedgerWriter,
    Replication,
    joined,
)
from recovery.harness.simulation.bookkeeper_bookies import (
    GATEWAY_LOST,
    NO_LEDGER,
    NOT_ENOUGH_BOOKIES,
    READ_FAILED,
    TIMED_OUT,
    BookKeeperServers,
    LedgerRecord,
)
from recovery.harness.simulation.bookkeeper_gateway import (
    METADATA_TIMEOUT_S,
    Handle,
    SimulatedGateway,
)
from recovery.harness.simulation.bookkeeper_network import LATE, LOST, NetworkProcess
from recovery.harness.simulation.bookkeeper_recovery import LedgerRecovery, read_entries
from segmentstore.contracts.checksum import Buffer

START_S: Final = (0.5, 3.0)
"""How long a gateway takes to start."""
SOCKET_S: Final = (0.000_02, 0.000_5)
"""How long a result takes from the gateway to the process."""
_BATCH_ENTRIES: Final = 16


class SimulatedLedgers(LedgerStore):
    """One process's ledgers, with the faults of the group `bookkeeper.`."""

    def __init__(self, servers: BookKeeperServers, process: NetworkProcess) -> None:
        self.process = process
        self._servers = servers
        self._gateway: SimulatedGateway | None = None
        self._starting: asyncio.Task[SimulatedGateway] | None = None
        self._started = False
        self._closed = False

    async def create(self, replication: Replication, custom: Mapping[str, bytes]) -> LedgerWriter:
        gateway = await self._live("create")
        await self.effect("bookkeeper.create", str(replication))
        turn = self.process.random.randrange(len(self._servers.bookies))
        made = await self._metadata(
            gateway,
            "create",
            lambda: self._servers.create(gateway.now_us, turn, replication, custom),
        )
        if made == NOT_ENOUGH_BOOKIES:
            self.process.world.reach("bookkeeper.create.refused")
        ledger_id, record = self._result(made, "create")
        self._comes_late("create")
        return SimulatedWriter(self, gateway, ledger_id, record)

    async def recover(self, ledger_id: int) -> LedgerDescription:
        gateway = await self._live("recover")
        description = await LedgerRecovery(gateway, ledger_id, self.effect).run()
        self._comes_late("recover")
        return description

    async def describe(self, ledger_id: int) -> LedgerDescription:
        gateway = await self._live("describe")
        found = await self._metadata(gateway, "describe", lambda: self._servers.describe(ledger_id))
        description = self._result(found, "describe")
        assert isinstance(description, LedgerDescription)
        return description

    async def confirmed(self, ledger_id: int) -> int:
        gateway = await self._live("confirmed")
        found = await self._metadata(
            gateway, "confirmed", lambda: self._servers.confirmed(gateway.now_us, ledger_id)
        )
        (last,) = self._result(found, "confirmed")
        return int(last)

    async def read(
        self, ledger_id: int, first: int, last: int
    ) -> AsyncIterator[Sequence[memoryview]]:
        if first > last:
            return
        gateway = await self._live("read")
        found = await self._metadata(
            gateway, "read", lambda: self._servers.records.get(ledger_id, NO_LEDGER)
        )
        record = self._result(found, "read")
        assert isinstance(record, LedgerRecord)
        if record.state is LedgerState.CLOSED and last > record.last_entry:
            raise LedgerError(
                READ_FAILED,
                "read",
                f"ledger {ledger_id} ends at {record.last_entry}, asked for {last}",
            )
        for start in range(first, last + 1, _BATCH_ENTRIES):
            gateway = await self._live("read")
            entries = await read_entries(
                gateway, record, ledger_id, start, min(start + _BATCH_ENTRIES - 1, last)
            )
            yield [memoryview(data) for data in entries]

    async def delete(self, ledger_id: int) -> None:
        gateway = await self._live("delete")
        await self.effect("bookkeeper.delete", str(ledger_id))
        await self._metadata(
            gateway, "delete", lambda: self._servers.delete(gateway.now_us, ledger_id)
        )
        self._comes_late("delete")

    async def list_ids(self) -> Sequence[int]:
        gateway = await self._live("list")
        found = await self._metadata(gateway, "list", lambda: sorted(self._servers.records))
        assert isinstance(found, list)
        return found

    async def close(self) -> None:
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
        if self._gateway is not None:
            self._gateway.end()

    def health(self) -> str | None:
        return "the gateway is not running" if self._gateway is None or self._gateway.dead else None

    async def effect(self, kind: str, detail: str) -> None:
        """Announce what comes next; a process that is stopped just before it goes on with its next
        turn.
        """
        self.process.effect(kind, "cluster", detail)
        if self.process.paused:
            await asyncio.sleep(0)

    def meet_gateway_death(self, gateway: SimulatedGateway) -> bool:
        """True if the gateway is killed now."""
        if gateway.dead or not self.process.world.strikes("bookkeeper.gateway.killed"):
            return False
        gateway.end()
        return True

    async def _live(self, operation: str) -> SimulatedGateway:
        """A gateway that runs, started if need be. Raises LedgerError if it is killed just now."""
        if self._closed:
            raise LedgerError(GATEWAY_LOST, operation, "it was closed")
        if self._gateway is None or self._gateway.dead:
            if self._starting is None or self._starting.done():
                self._starting = asyncio.get_running_loop().create_task(
                    self._start(), name="start gateway"
                )
            await asyncio.wait([self._starting])
        gateway = self._gateway
        if gateway is None or gateway.dead:
            raise LedgerError(GATEWAY_LOST, operation, "it was closed, or killed as soon as it ran")
        gateway.weather()
        if self.meet_gateway_death(gateway):
            raise LedgerError(GATEWAY_LOST, operation, "the gateway was killed")
        return gateway

    async def _start(self) -> SimulatedGateway:
        if self._started:
            least, most = START_S
            await asyncio.sleep(least + (most - least) * self.process.random.random())
        self._started = True
        self._gateway = SimulatedGateway(self._servers, self.process)
        return self._gateway

    async def _metadata(
        self, gateway: SimulatedGateway, operation: str, apply: Callable[[], Any]
    ) -> Any:
        answer = await gateway.ask_one(gateway.zookeeper, apply, METADATA_TIMEOUT_S)
        if answer == GATEWAY_LOST:
            raise LedgerError(GATEWAY_LOST, operation, "the gateway was killed")
        if answer in (LOST, LATE):
            raise LedgerError(TIMED_OUT, operation, "no answer from ZooKeeper")
        return answer

    def _result(self, answer: Any, operation: str) -> Any:
        """What was asked for; a number is a code."""
        if isinstance(answer, int):
            raise LedgerError(answer, operation)
        return answer

    def _comes_late(self, operation: str) -> None:
        if self.process.world.strikes("bookkeeper.call.late"):
            raise LedgerError(TIMED_OUT, operation, "its answer came too late")


class SimulatedWriter(LedgerWriter):
    """The process's end of a handle."""

    def __init__(
        self,
        ledgers: SimulatedLedgers,
        gateway: SimulatedGateway,
        ledger_id: int,
        record: LedgerRecord,
    ) -> None:
        self.on_results = _not_listening
        self.on_short = _not_listening
        self._ledgers = ledgers
        self._gateway = gateway
        self._loop = asyncio.get_running_loop()
        self._ledger_id = ledger_id
        self._waiting: deque[Sequence[Buffer]] = deque()
        """Not handed to the gateway yet."""
        self._announced = False
        """The first of them has been notified; the process was stopped between that and the
        sending.
        """
        self._results: list[AddResult] = []
        self._handed_over = 0
        """Entries without a result that the process has seen."""
        self._delivering = False
        self._closed = False
        self._handle: Handle = gateway.open_handle(
            ledger_id, record, self._take, self._gateway_died
        )

    @property
    def ledger_id(self) -> int:
        return self._ledger_id

    def append(self, parts: Sequence[Buffer]) -> None:
        self._waiting.append(parts)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._send)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._waiting.clear()
        if self._gateway.dead:
            return
        self._handle.seal()
        await self._ledgers.effect("bookkeeper.close", str(self._ledger_id))
        gateway = self._gateway
        await gateway.ask_one(gateway.zookeeper, self._handle.close_ledger, METADATA_TIMEOUT_S)

    def _send(self) -> None:
        """Hand over what waits, entry by entry: the process can die or be stopped before each, and
        so can the gateway.
        """
        while self._waiting:
            if not self._announced:
                self._announced = True
                process = self._ledgers.process
                process.effect(
                    "bookkeeper.append",
                    f"ledger-{self._ledger_id}",
                    str(sum(map(len, self._waiting[0]))),
                )
                if process.paused:
                    self._loop.call_soon(self._send)
                    return
            self._announced = False
            data = b"".join(self._waiting.popleft())
            if not self._gateway.dead:
                self._gateway.weather()
                self._ledgers.meet_gateway_death(self._gateway)
            self._handed_over += 1
            self._handle.add(data)

    def _take(self, result: AddResult) -> None:
        """A result, in the gateway: it crosses to the process."""
        self._results.append(result)
        gateway = self._gateway
        if gateway.dead:
            self._arrive()
        elif not self._delivering:
            self._delivering = True
            gateway.timeline.at(gateway.now_us + gateway.draw_us(SOCKET_S), self._arrive)

    def _arrive(self) -> None:
        if not self._gateway.owner.dead:
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._delivering = False
        results, self._results = self._results, []
        self._handed_over -= len(results)
        if results and not self._closed:
            self.on_results(joined(results))

    def _gateway_died(self) -> None:
        """What the process has not received it never gets."""
        self._results.clear()
        for _ in range(self._handed_over):
            self._take(AddResult(GATEWAY_LOST, EMPTY))


def _not_listening(_reported: object) -> None:
    """Set by the appending client."""
