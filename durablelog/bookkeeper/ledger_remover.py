"""Deletes ledgers that are no part of the log any more, until they are gone.

A ledger gets here after a record that names it in `removing` was written. Rules of this file:

- recovered first, whatever is known of it: deleting does not fence, and a writer that was forgotten would go on being told
  that all is well;
- nothing is deleted while somebody reads;
- a ledger is gone when the cluster says so; until then it is tried again, for ever, one at a time.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Final

from durablelog.bookkeeper.failure_codes import LedgerCall, Reaction, code_text, reaction
from durablelog.bookkeeper.ledger_store import LedgerError, LedgerStore
from durablelog.bookkeeper.log_record import LogRecord
from durablelog.bookkeeper.waiting import Backoff, HealthNotes

_TOPIC: Final = "removing"
_MOST_S: Final = 60.0
_SAID_AFTER_TRIES: Final = 3


class LedgerRemover:
    """For one opening."""

    def __init__(self, ledgers: LedgerStore, chance: random.Random, notes: HealthNotes) -> None:
        self._ledgers = ledgers
        self._chance = chance
        self._notes = notes
        self._queue: deque[int] = deque()
        self._known: dict[int, None] = {}
        self._gone: dict[int, None] = {}
        self._readers = 0
        self._free = asyncio.Event()
        self._free.set()
        self._task: asyncio.Task[None] | None = None

    @property
    def gone(self) -> tuple[int, ...]:
        """Ids that may leave the record."""
        return tuple(self._gone)

    def take(self, record: LogRecord) -> None:
        """A record was written, or taken over: what it says goes."""
        for ledger_id in record.removing:
            if ledger_id not in self._known:
                self._known[ledger_id] = None
                self._queue.append(ledger_id)
        self._gone = {ledger_id: None for ledger_id in self._gone if ledger_id in record.removing}
        if self._queue and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="remove-ledgers")

    def hold(self) -> None:
        """Somebody reads."""
        self._readers += 1
        self._free.clear()

    def release(self) -> None:
        """He has finished."""
        self._readers -= 1
        if not self._readers:
            self._free.set()

    async def close(self) -> None:
        """Stop; what is left is in the record, for the next opening. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        backoff, tries = Backoff(self._chance, most_s=_MOST_S), 0
        while self._queue:
            await self._free.wait()
            ledger_id = self._queue[0]
            try:
                await self._remove(ledger_id)
            except LedgerError as error:
                tries += 1
                if tries >= _SAID_AFTER_TRIES:
                    detail = f": {error.detail}" if error.detail else ""
                    self._notes.say(_TOPIC, f"ledger {ledger_id} cannot be deleted: {code_text(error.code)}{detail}")
                self._queue.rotate(-1)
                await asyncio.sleep(backoff.next_s())
                continue
            self._queue.popleft()
            self._gone[ledger_id] = None
            self._notes.over(_TOPIC)
            backoff, tries = Backoff(self._chance, most_s=_MOST_S), 0
        self._task = None

    async def _remove(self, ledger_id: int) -> None:
        try:
            await self._ledgers.recover(ledger_id)
            await self._free.wait()
            await self._ledgers.delete(ledger_id)
        except LedgerError as error:
            if reaction(LedgerCall.DELETE, error.code) is not Reaction.GONE:
                raise
