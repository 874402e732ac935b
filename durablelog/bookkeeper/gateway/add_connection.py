"""The socket that entries go out on and acknowledgements come in on: one for a store, on its event
loop.

Rules of this file:

- an append costs a few list operations. The socket is written once per turn of the loop, with as
  many parts as the system takes at once, and without a copy of ours but of small entries;
- entries acknowledged in a row cost one tuple; a writer is notified of all that came with one check
  of the socket in one call;
- what is lost with the connection is reported to every writer, once, for every entry it still waits
  for;
- what waits here is bounded by what the callers have in flight.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

from durablelog.bookkeeper.gateway.gateway_protocol import ACK, BEAT, ENTRY, ENTRY_BYTES_MAX
from durablelog.bookkeeper.gateway.gateway_settings import GATEWAY_CLOSED
from durablelog.bookkeeper.ledger_store import EMPTY, OK, AddResult, LedgerWriter
from segmentstore.contracts.checksum import Buffer

_PARTS_MAX: Final = os.sysconf("SC_IOV_MAX")
_ACK_BUFFER_BYTES: Final = ACK.size * 4096
_JOINED_MAX: Final = 4096
_SOCKET_BUFFER_BYTES: Final = 4 << 20
"""Asked for; the system gives what it allows.

A larger entry than fits wakes the sender once for each time it is full.
"""
STALL_S: Final = 30.0
"""The gateway's client answers every entry within about 15 s, if only with an error.

None for longer: it hangs.
"""
SILENCE_S: Final = 8.0
"""A gateway says something each second. Nothing for so long: it hangs."""
_SILENCE_SEEN_S: Final = 3.0
"""`health` reports it from here on."""
_CHECK_S: Final = 1.0


class Beat(NamedTuple):
    """What the gateway says when there is nothing else to say, too."""

    changes: int
    """How often a bookie came into trouble, or out of it."""
    troubled: int
    """Bookies that are in trouble now."""
    direct_bytes: int
    """The gateway's memory for entries."""


def _ignore(_reported: object) -> None:
    """Stands for a listener that is not set yet."""


class GatewayWriter(LedgerWriter):
    """A ledger that was created through the gateway."""

    def __init__(
        self,
        connection: AddConnection,
        handle: int,
        ledger_id: int,
        seal: Callable[[int], Awaitable[None]],
        bookies: Iterable[str] = (),
    ) -> None:
        self.handle = handle
        self.on_results = _ignore
        self.on_short = _ignore
        self.bookies = frozenset(bookies)
        self.sent = 0
        self.answered = 0
        self._connection = connection
        self._ledger_id = ledger_id
        self._seal = seal
        self._closing = asyncio.Lock()
        self._silent = False
        self._closed = False
        connection.writers[handle] = self

    @property
    def ledger_id(self) -> int:
        return self._ledger_id

    def append(self, parts: Sequence[Buffer]) -> None:
        if self._silent:
            return
        self._connection.send(self.handle, self.sent, parts)
        self.sent += 1

    async def close(self) -> None:
        self._silent = True
        self._connection.writers.pop(self.handle, None)
        async with self._closing:
            if not self._closed and self._connection.lost is None:
                await self._seal(self.handle)
            self._closed = True

    def fall_short(self, reason: str) -> None:
        """One of its bookies gets no entries, and there are others."""
        if not self._silent:
            self.on_short(reason)

    def fail_rest(self) -> None:
        """Fail every entry without an answer: whether it is in the ledger is unknown."""
        missing = self.sent - self.answered
        self.answered = self.sent
        if missing:
            self.on_results([AddResult(GATEWAY_CLOSED, EMPTY, missing)])


class AddConnection:
    """Entries of all writers of a store.

    `on_lost` is called when the connection is closed, with the reason; `on_beat` once a second.
    """

    def __init__(
        self,
        connected: socket.socket,
        on_lost: Callable[[str], None],
        on_beat: Callable[[Beat], None] = _ignore,
    ) -> None:
        self.writers: dict[int, GatewayWriter] = {}
        self.lost: str | None = None
        self.hangs = False
        """The gateway was given up because it did not answer."""
        self._loop = asyncio.get_running_loop()
        self._socket = connected
        self._on_lost = on_lost
        self._on_beat = on_beat
        self._out: list[Buffer] = []
        self._flush_due = False
        self._blocked = False
        self._in = bytearray(_ACK_BUFFER_BYTES)
        self._in_view = memoryview(self._in)
        self._in_used = 0
        self._said = 0
        self._answered = 0
        self._silent_s = 0.0
        self._unanswered_s = 0.0
        self._watch = self._loop.call_later(_CHECK_S, self._check_progress, 0, 0)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        self._loop.add_reader(connected, self._read)

    def send(self, handle: int, sequence: int, parts: Sequence[Buffer]) -> None:
        """Queue an entry. What goes wrong comes as its result."""
        length = sum(map(len, parts))
        if length > ENTRY_BYTES_MAX:
            raise ValueError(f"an entry of {length} bytes is over {ENTRY_BYTES_MAX}")
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush_soon)
        if self.lost is not None:
            return
        framed = (ENTRY.pack(length, handle, sequence), *parts)
        if length <= _JOINED_MAX:
            # One part of a few KiB costs less than each of them does on its way into the system.
            self._out.append(b"".join(framed))
        else:
            self._out += framed

    def close(self, reason: str) -> None:
        """End it: every entry not answered fails, those of later appends too. Idempotent."""
        if self.lost is not None:
            return
        self.lost = reason
        self._loop.remove_reader(self._socket)
        if self._blocked:
            self._loop.remove_writer(self._socket)
        self._watch.cancel()
        self._socket.close()
        self._out.clear()
        self._on_lost(reason)
        self._fail_all()

    def abandon(self) -> None:
        """End it where the event loop is closed: no caller is notified."""
        if self.lost is None:
            self.lost = "the event loop is closed"
            self._socket.close()

    def _fail_all(self) -> None:
        for writer in list(self.writers.values()):
            writer.fail_rest()

    def _flush_soon(self) -> None:
        self._flush_due = False
        if self.lost is not None:
            self._fail_all()
            return
        if not self._blocked:
            self._flush()

    def _flush(self) -> None:
        out = self._out
        while out:
            batch = out[:_PARTS_MAX] if len(out) > _PARTS_MAX else out
            try:
                sent = self._socket.sendmsg(batch)
            except BlockingIOError:
                if not self._blocked:
                    self._blocked = True
                    self._loop.add_writer(self._socket, self._flush)
                return
            except OSError as error:
                self.close(f"sending to the gateway: {error}")
                return
            self._drop(sent)
        if self._blocked:
            self._blocked = False
            self._loop.remove_writer(self._socket)

    def _drop(self, sent: int) -> None:
        """Forget the bytes at the head that the system has taken."""
        out = self._out
        if len(out) <= _PARTS_MAX and sent == sum(map(len, out)):
            out.clear()
            return
        done = 0
        for part in out:
            if len(part) > sent:
                break
            sent -= len(part)
            done += 1
        del out[:done]
        if sent:
            out[0] = memoryview(out[0])[sent:]

    def _read(self) -> None:
        try:
            got = self._socket.recv_into(self._in_view[self._in_used :])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"reading from the gateway: {error}")
            return
        if not got:
            self.close("the gateway has ended")
            return
        used = self._in_used + got
        whole = used - used % ACK.size
        acks = list(ACK.iter_unpack(self._in_view[:whole]))
        self._in[: used - whole] = self._in[whole:used]
        self._in_used = used - whole
        self._said += len(acks)
        self._hand_out(acks)

    def _hand_out(self, acks: list[tuple[int, int, int, int, int]]) -> None:
        batches: dict[GatewayWriter, list[AddResult]] = {}
        answered: dict[GatewayWriter, int] = {}
        for handle, sequence, count, code, entry in acks:
            if handle == BEAT:
                self._on_beat(Beat(sequence, count, entry))
                continue
            self._answered += 1
            writer = self.writers.get(handle)
            if writer is None:
                continue  # it was closed meanwhile
            expected = answered.get(writer, writer.answered)
            if (
                sequence != expected
                or (code == OK and entry != sequence)
                or not 0 < count <= writer.sent - expected
            ):
                told = f"{sequence} for {expected} ({count} with code {code}, entry {entry})"
                self.close(f"the gateway mixed up entries: {told}")
                return
            answered[writer] = expected + count
            batches.setdefault(writer, []).append(AddResult(code, entry, count))
        for writer, results in batches.items():
            # The receiver of one writer's results may close another.
            if self.lost is None and writer.handle in self.writers:
                writer.answered = answered[writer]
                writer.on_results(results)

    def health(self) -> str | None:
        """Whether the gateway seems to hang, before it is given up for it."""
        if self._silent_s < _SILENCE_SEEN_S or self.lost is not None:
            return None
        return f"the gateway has said nothing for {self._silent_s:.0f} s"

    def _check_progress(self, said: int, answered: int) -> None:
        """Time is counted in checks: a process that was stopped has not checked."""
        waits = any(writer.answered != writer.sent for writer in self.writers.values())
        self._silent_s = self._silent_s + _CHECK_S if said == self._said else 0.0
        self._unanswered_s = (
            self._unanswered_s + _CHECK_S if waits and answered == self._answered else 0.0
        )
        if self._silent_s >= SILENCE_S:
            self._hang(f"the gateway said nothing for {SILENCE_S:.0f} s")
        elif self._unanswered_s >= STALL_S:
            self._hang(f"the gateway answered nothing for {STALL_S:.0f} s")
        else:
            self._watch = self._loop.call_later(
                _CHECK_S, self._check_progress, self._said, self._answered
            )

    def _hang(self, reason: str) -> None:
        self.hangs = True
        self.close(reason)
