"""Clients that change tables over the wire: each has a table of its own, and several requests on
their way at a time, by several connections.

After a burst of requests a client waits until those whose connection was cut are decided, so that a
check has few calls of unknown outcome at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from recovery.harness.history import Call, CallKind, CallOutcome, SeenEntry
from recovery.harness.records import append_record
from recovery.harness.simulation.wire_connections import MemoryConnection
from recovery.harness.workloads.bench import ClientBench
from recovery.harness.workloads.wire_writers import ATTEMPTS_MAX, HELLO, WireFaultError
from segmentstore.wire.commands import (
    NO_VERSION,
    NOT_EXISTS,
    Command,
    Hello,
    ReadTable,
    RemoveTableKeys,
    Request,
    TableEntriesUpdated,
    TableKey,
    TableKeyBadVersion,
    TableKeyDoesNotExist,
    TableKeysRemoved,
    TableRead,
    UpdateTableEntries,
    WrongHost,
)

DECIDED: Final = "Decided"
"""The error of a call without an answer that had its effect, or none, by its end."""
_KEYS: Final = tuple(bytes((97 + number,)) * (number + 1) for number in range(5))
_REFUSALS: Final[dict[type, str]] = {
    TableKeyBadVersion: "BadKeyVersionError",
    TableKeyDoesNotExist: "KeyNotFoundError",
}


@dataclass(slots=True)
class _Exchange:
    """Requests of one connection."""

    connection: MemoryConnection
    calls: dict[int, Call]
    """Those without an answer, by request id."""


async def change_table(bench: ClientBench) -> None:
    """Changes and reads a table in bursts, until its part is done."""
    client = _TableClient(bench)
    refused = 0
    while bench.goes_on() and refused < ATTEMPTS_MAX:
        if await client.burst():
            refused = 0
        else:
            refused += 1
            await bench.pause(2.0**refused)


class _TableClient:
    """The client of one table, in one process run."""

    def __init__(self, bench: ClientBench) -> None:
        names = bench.segments["table"]
        self._bench = bench
        self._store = bench.store
        self._name = names[bench.place % len(names)]
        self._known: dict[bytes, int | None] = {}
        """Versions of keys; None: absent."""

    async def burst(self) -> bool:
        """Some requests at a time; False if an uncut server left some unanswered."""
        rng = self._bench.random
        exchanges = []
        if len(self._known) < len(_KEYS):
            exchanges.append(self._send([self._read(_KEYS)]))
        exchanges += [
            self._send([self._draw() for _ in range(rng.randrange(1, 4))])
            for _ in range(rng.choice((1, 1, 2)))
        ]
        unanswered = [call for exchange in exchanges for call in await self._drain(exchange)]
        answers = all(not each.calls or each.connection.reached_bound for each in exchanges)
        again = [self._again(call) for call in unanswered if rng.random() < 0.5]
        if again and answers:
            unanswered += await self._drain(self._send(again))
        else:
            unanswered += again
        is_decided = await self._bench.service.tables.settled()
        for call in unanswered:
            for key, _ in call.keys:
                self._known.pop(key, None)
            call.error = DECIDED if is_decided else ""
            self._store.ended(call, CallOutcome.UNKNOWN)
        return answers

    # --- requests ---------------------------------------------------------------------------------

    def _draw(self) -> Call:
        rng = self._bench.random
        keys = tuple(rng.sample(_KEYS, rng.choice((1, 1, 2, 3))))
        kind = rng.random()
        if kind < 0.25:
            return self._read(keys)
        versioned = tuple((key, self._condition(key)) for key in keys)
        if kind > 0.85:
            # An absent key is removed whatever it was to be.
            removed = tuple((key, NO_VERSION if at < 0 else at) for key, at in versioned)
            return self._store.begin(CallKind.TABLE_REMOVE, self._name, keys=removed)
        return self._update(versioned)

    def _condition(self, key: bytes) -> int:
        kind = self._bench.random.random()
        if kind < 0.3:
            return NO_VERSION
        version = self._known.get(key)
        if kind < 0.4:
            return NOT_EXISTS if version is not None else 3
        return NOT_EXISTS if version is None else version

    def _read(self, keys: tuple[bytes, ...]) -> Call:
        versioned = tuple((key, NO_VERSION) for key in keys)
        return self._store.begin(CallKind.TABLE_READ, self._name, keys=versioned)

    def _update(self, keys: tuple[tuple[bytes, int], ...]) -> Call:
        lengths = tuple(self._bench.random.randrange(40) for _ in keys)
        return self._store.begin(CallKind.TABLE_UPDATE, self._name, keys=keys, lengths=lengths)

    def _again(self, call: Call) -> Call:
        """The same with values of its own, as a client does that cannot know."""
        if call.kind is CallKind.TABLE_UPDATE:
            return self._update(call.keys)
        return self._store.begin(call.kind, self._name, keys=call.keys)

    def _send(self, calls: list[Call]) -> _Exchange:
        connection = self._bench.service.connect(self._bench.random)
        connection.put(HELLO, *map(self._request, calls))
        return _Exchange(connection, {call.number: call for call in calls})

    def _request(self, call: Call) -> Request:
        rid, name = call.number, self._name
        keys = tuple(TableKey(*key) for key in call.keys)
        if call.kind is CallKind.TABLE_READ:
            return ReadTable(rid, name, "", keys)
        if call.kind is CallKind.TABLE_REMOVE:
            return RemoveTableKeys(rid, name, "", keys)
        entries = zip(keys, values_of(call), strict=True)
        return UpdateTableEntries(rid, name, "", tuple(entries))

    # --- replies ----------------------------------------------------------------------------------

    async def _drain(self, exchange: _Exchange) -> list[Call]:
        """Take all replies; the calls that have none."""
        reply = await exchange.connection.take()
        if isinstance(reply, Hello):
            while exchange.calls:
                reply = await exchange.connection.take()
                if reply is None:
                    break
                self._answered(exchange, reply)
        elif reply is not None:
            raise WireFaultError(f"Hello is answered by {reply}")
        exchange.connection.cut()
        return list(exchange.calls.values())

    def _answered(self, exchange: _Exchange, reply: Command) -> None:
        if isinstance(reply, WrongHost):
            exchange.connection.cut()
            return
        rid = getattr(reply, "request_id", -1)
        call = exchange.calls.pop(rid, None)
        if call is None:
            raise WireFaultError(f"{reply} answers nothing")
        if type(reply) in _REFUSALS and call.kind is not CallKind.TABLE_READ:
            call.error = _REFUSALS[type(reply)]
            self._store.ended(call, CallOutcome.REFUSED)
            for key, _ in call.keys:
                self._known.pop(key, None)
            return
        self._done(call, reply)
        self._store.ended(call, CallOutcome.OK)

    def _done(self, call: Call, reply: Command) -> None:
        keys = [key for key, _ in call.keys]
        if isinstance(reply, TableEntriesUpdated) and call.kind is CallKind.TABLE_UPDATE:
            call.versions = reply.versions
            self._known.update(zip(keys, reply.versions, strict=True))
        elif isinstance(reply, TableKeysRemoved) and call.kind is CallKind.TABLE_REMOVE:
            self._known.update(dict.fromkeys(keys))
        elif isinstance(reply, TableRead) and call.kind is CallKind.TABLE_READ:
            entries = [SeenEntry(*key, value) for key, value in reply.entries]
            if [entry.key for entry in entries] != keys:
                raise WireFaultError(f"a read of the keys {keys} is answered by {reply}")
            call.found = tuple(entry for entry in entries if entry.version != NOT_EXISTS)
            self._known.update(dict.fromkeys(keys))
            self._known.update((entry.key, entry.version) for entry in call.found)
        else:
            raise WireFaultError(f"a {call.kind} is answered by {reply}")


def values_of(call: Call) -> Iterator[bytes]:
    """What an update sets its keys to: a record of the call for each."""
    return (append_record(call.number, item, length) for item, length in enumerate(call.lengths))
