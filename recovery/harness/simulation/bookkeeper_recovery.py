"""Recovery of a ledger in a simulated world, as BookKeeper does it: mark, fence, find the end,
write again, close.

Rules of this file:

- enough have answered when no ack quorum can lie among those who have not; fewer, and nothing is
  known: -10;
- behind what is known to be OK, an entry that any bookie gives is part of the ledger, and is
  written to its quorum again. The first one that enough bookies do not have is behind the end;
- the first who closes decides where: another recovery, or the writer itself, may have done so
  meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from durablelog.bookkeeper.ledger_store import (
    EMPTY,
    OK,
    LedgerDescription,
    LedgerError,
    LedgerState,
)
from recovery.harness.simulation.bookkeeper_bookies import (
    BOOKIE_AWAY,
    GATEWAY_LOST,
    NO_ENTRY,
    NO_RECOVERY,
    TIMED_OUT,
    BookieAnswer,
    Entry,
    LedgerRecord,
)
from recovery.harness.simulation.bookkeeper_gateway import (
    ADD_TIMEOUT_S,
    METADATA_TIMEOUT_S,
    READ_ANSWER_TIMEOUT_S,
    SimulatedGateway,
)
from recovery.harness.simulation.bookkeeper_network import LATE, LOST

_OPERATION: Final = "recover"
_READ_CODES: Final[Mapping[object, int]] = {
    LOST: BOOKIE_AWAY,
    LATE: TIMED_OUT,
    GATEWAY_LOST: GATEWAY_LOST,
}


class LedgerRecovery:
    """One recovery of one ledger. `effect` announces what is about to be done."""

    def __init__(
        self,
        gateway: SimulatedGateway,
        ledger_id: int,
        effect: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self._gateway = gateway
        self._servers = gateway.servers
        self._ledger_id = ledger_id
        self._effect = effect

    async def run(self) -> LedgerDescription:
        """Recover it; as it is then. Raises LedgerError."""
        record = await self._metadata(lambda: self._servers.records.get(self._ledger_id))
        if record is None or record.state is not LedgerState.CLOSED:
            await self._effect("bookkeeper.recover", "")
            record = await self._metadata(lambda: self._servers.begin_recovery(self._ledger_id))
        if record.state is not LedgerState.CLOSED:
            await self._effect("bookkeeper.fence", "")
            confirmed = await self._fence(record)
            length = 0
            while (entry := await self._find(record, confirmed + 1)) is not None:
                confirmed, length = confirmed + 1, entry.length
                await self._effect("bookkeeper.rewrite", str(confirmed))
                await self._write(record, confirmed, entry)
            await self._effect("bookkeeper.close", str(confirmed))
            record = await self._close(confirmed, length or self._length(record, confirmed))
        return self._servers.description(self._ledger_id, record)

    async def _metadata(self, apply: Callable[[], Any]) -> Any:
        """A request to ZooKeeper; a number it gives is a code."""
        gateway = self._gateway
        answer = await gateway.ask_one(gateway.zookeeper, apply, METADATA_TIMEOUT_S)
        if answer in (LOST, LATE):
            raise self._error(TIMED_OUT)
        if isinstance(answer, int):
            raise self._error(answer)
        return answer

    async def _fence(self, record: LedgerRecord) -> int:
        """Fence it; the last entry that is known to be OK."""
        bookies, ledger_id = self._servers.bookies, self._ledger_id
        answers = self._gateway.ask(
            record.bookies, lambda number: bookies[number].fence(ledger_id), READ_ANSWER_TIMEOUT_S
        )
        confirmed, received = EMPTY, list[int]()
        for _ in record.bookies:
            number, answer = await answers.next()
            self._check(answer)
            if isinstance(answer, BookieAnswer) and answer.code == OK:
                received.append(number)
                confirmed = max(confirmed, answer.confirmed)
                if self._is_enough(record, received):
                    self._gateway.forget(answers)
                    return confirmed
        self._gateway.forget(answers)
        raise self._refused()

    async def _find(self, record: LedgerRecord, number: int) -> Entry | None:
        """An entry; None if it is behind the end."""
        bookies, ledger_id, asked = self._servers.bookies, self._ledger_id, record.write_set(number)
        answers = self._gateway.ask(
            asked, lambda at: bookies[at].read(ledger_id, number, number), READ_ANSWER_TIMEOUT_S
        )
        missing = 0
        try:
            for _ in asked:
                answer = (await answers.next())[1]
                self._check(answer)
                if not isinstance(answer, BookieAnswer):
                    continue
                if number in answer.entries:
                    return answer.entries[number]
                missing += answer.code == OK
                if missing > record.replication.write_quorum - record.replication.ack_quorum:
                    return None
        finally:
            self._gateway.forget(answers)
        raise self._refused()

    async def _write(self, record: LedgerRecord, number: int, entry: Entry) -> None:
        """Write an entry again, to all its bookies; an ack quorum must have it."""
        bookies, ledger_id, asked = self._servers.bookies, self._ledger_id, record.write_set(number)
        answers = self._gateway.ask(
            asked,
            lambda at: bookies[at].add(ledger_id, number, entry, recovering=True),
            ADD_TIMEOUT_S,
        )
        written = 0
        try:
            for _ in asked:
                answer = (await answers.next())[1]
                self._check(answer)
                written += isinstance(answer, BookieAnswer) and answer.code == OK
                if written >= record.replication.ack_quorum:
                    return
        finally:
            self._gateway.forget(answers)
        raise self._refused()

    async def _close(self, confirmed: int, length: int) -> LedgerRecord:
        record = await self._metadata(
            lambda: self._servers.close_ledger(self._ledger_id, confirmed, length)
        )
        assert isinstance(record, LedgerRecord)
        if record.last_entry != confirmed:
            self._gateway.owner.world.reach("bookkeeper.recover.raced")
        return record

    def _is_enough(self, record: LedgerRecord, received: list[int]) -> bool:
        quorums = record.replication
        return all(
            sum(number not in received for number in record.write_set(entry)) < quorums.ack_quorum
            for entry in range(quorums.ensemble)
        )

    def _length(self, record: LedgerRecord, last_entry: int) -> int:
        """Bytes up to an entry; the simulation reads it where no client could."""
        replicas = (
            self._servers.bookies[number].replica(self._ledger_id) for number in record.bookies
        )
        return next(
            (
                found.length
                for each in replicas
                if (found := each.entries.get(last_entry)) is not None
            ),
            0,
        )

    def _check(self, answer: object) -> None:
        if answer == GATEWAY_LOST:
            raise self._error(GATEWAY_LOST)

    def _refused(self) -> LedgerError:
        self._gateway.owner.world.reach("bookkeeper.recover.refused")
        return self._error(NO_RECOVERY)

    def _error(self, code: int) -> LedgerError:
        return LedgerError(code, _OPERATION, f"ledger {self._ledger_id}")


async def read_entries(
    gateway: SimulatedGateway, record: LedgerRecord, ledger_id: int, first: int, last: int
) -> list[bytes]:
    """Entries of a range, from one bookie after another until all are there.

    Raises LedgerError: that an entry is not there only if all have answered.
    """
    bookies = gateway.servers.bookies
    turn = gateway.owner.random.randrange(len(record.bookies))
    found: dict[int, Entry] = {}
    code = NO_ENTRY
    for number in (*record.bookies[turn:], *record.bookies[:turn]):
        bookie = bookies[number]
        answer = await gateway.ask_one(
            number, partial(bookie.read, ledger_id, first, last), READ_ANSWER_TIMEOUT_S
        )
        if isinstance(answer, BookieAnswer):
            found.update(answer.entries)
        else:
            code = _READ_CODES[answer]
        if len(found) == last - first + 1:
            return [found[entry].data for entry in range(first, last + 1)]
        if code == GATEWAY_LOST:
            break
    raise LedgerError(code, "read", f"ledger {ledger_id}, entries {first} to {last}")
