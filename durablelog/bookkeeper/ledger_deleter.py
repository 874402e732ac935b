"""Deletes ledgers that are no part of the log any more, until they are deleted.

A ledger gets here after a record that names it in `removing` was written. Rules of this file:

- recovered first, whatever is known of it: deleting does not fence, and a forgotten writer would
  continue to receive OK;
- a ledger of an earlier owner that is not known to have closed is deleted no sooner than
  DELETE_AFTER_S after the record became ours. Bookies may forget the fence with the ledger, and
  until then that owner may take what they say for an acknowledgement. One that closed takes nothing
  for it, so its ledgers are deleted at once, as our own are;
- nothing is deleted while the log is read, and a ledger that is pinned not at all;
- a ledger is deleted when the cluster says so; until then it is tried again, for ever, one at a
  time, whatever went wrong;
- nothing is begun once the log has failed for good or was closed: what is left is in the record.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable
from typing import Final

from durablelog.bookkeeper.failure_codes import LedgerCall, Reaction, code_text, reaction
from durablelog.bookkeeper.ledger_store import LedgerError, LedgerStore
from durablelog.bookkeeper.log_metadata import LogMetadata
from durablelog.bookkeeper.waiting import FIRST_S
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.health import HealthNotes
from segmentstore.contracts.owned_tasks import own_task

_TOPIC: Final = "removing"
_MOST_S: Final = 60.0
_SAID_AFTER_TRIES: Final = 3
DELETE_AFTER_S: Final = 60.0
"""More than LEASE_S (ownership_lease.py), for which an owner acknowledges without another check of
the record. The result of an entry that an earlier owner gets into a ledger we deleted comes so late
that this owner checks first, and sees our epoch. Twice as much, for clocks that go at different
speeds.
"""


def _never(_ledger_id: int) -> bool:
    """Nothing is pinned."""
    return False


class LedgerDeleter:
    """For one opening. `is_pinned` is asked with a ledger's id when its turn has come; a caller
    that says yes calls `unpinned` later.
    """

    def __init__(
        self,
        ledgers: LedgerStore,
        rng: random.Random,
        notes: HealthNotes,
        is_pinned: Callable[[int], bool] = _never,
    ) -> None:
        self._is_pinned = is_pinned
        self._pinned: dict[int, None] = {}
        self._ledgers = ledgers
        self._rng = rng
        self._notes = notes
        self._queue: deque[int] = deque()
        self._later: deque[int] = deque()
        self._free_from_s = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._known: dict[int, None] = {}
        self._deleted: dict[int, None] = {}
        self._readers = 0
        self._free = asyncio.Event()
        self._free.set()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def deleted(self) -> tuple[int, ...]:
        """Ids that may leave the record."""
        return tuple(self._deleted)

    def begin(self) -> None:
        """The record is ours, from now on at the latest."""
        self._free_from_s = asyncio.get_running_loop().time() + DELETE_AFTER_S

    @property
    def settled(self) -> bool:
        """The record has been ours for so long that no earlier owner acknowledges any more."""
        return asyncio.get_running_loop().time() >= self._free_from_s

    def take(self, record: LogMetadata) -> None:
        """A record was written, or taken over: what it says goes."""
        for ledger_id, epoch in record.removing:
            if ledger_id not in self._known:
                (self._queue if epoch > record.unclosed else self._later).append(ledger_id)
        removing = {each.ledger_id: None for each in record.removing}
        self._known = removing
        self._deleted = {each: None for each in self._deleted if each in removing}
        self._go_on()

    def hold(self) -> None:
        """A reader begins."""
        self._readers += 1
        self._free.clear()

    def release(self) -> None:
        """A reader has finished."""
        self._readers -= 1
        if not self._readers:
            self._free.set()

    def unpinned(self, ledger_id: int) -> None:
        """This ledger has no reader any more."""
        if ledger_id in self._pinned:
            del self._pinned[ledger_id]
            self._queue.append(ledger_id)
            self._go_on()

    def stop(self) -> None:
        """The log has failed for good: no further ledger."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self) -> None:
        """Stop; what is left is in the record, for the next opening. Idempotent."""
        self.stop()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _go_on(self) -> None:
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        if self._later:
            if loop.time() >= self._free_from_s:
                self._queue += self._later
                self._later.clear()
            elif self._timer is None:
                self._timer = loop.call_at(self._free_from_s, self._due)
        if self._queue and self._task is None:
            self._task = own_task(self._run(), name="remove-ledgers")

    def _due(self) -> None:
        self._timer = None
        self._free_from_s = -math.inf
        self._go_on()

    async def _run(self) -> None:
        backoff = Backoff(self._rng, min_s=FIRST_S, max_s=_MOST_S)
        while self._queue:
            await self._free.wait()
            if self._closed:
                break
            ledger_id = self._queue[0]
            if self._is_pinned(ledger_id):
                self._pinned[self._queue.popleft()] = None
                continue
            try:
                await self._remove(ledger_id)
            except Exception as error:  # noqa: BLE001
                # Whatever it is, what is behind it must be deleted all the same.
                pause_s = backoff.next_s()
                if backoff.failures >= _SAID_AFTER_TRIES or not isinstance(error, LedgerError):
                    self._notes.set(
                        _TOPIC, f"ledger {ledger_id} cannot be deleted: {_what_went_wrong(error)}"
                    )
                self._queue.rotate(-1)
                await asyncio.sleep(pause_s)
                continue
            self._queue.popleft()
            self._deleted[ledger_id] = None
            self._notes.clear(_TOPIC)
            backoff.reset()
        self._task = None

    async def _remove(self, ledger_id: int) -> None:
        try:
            await self._ledgers.recover(ledger_id)
            await self._free.wait()
            await self._ledgers.delete(ledger_id)
        except LedgerError as error:
            if reaction(LedgerCall.DELETE, error.code) is not Reaction.NO_LEDGER:
                raise


def _what_went_wrong(error: Exception) -> str:
    if not isinstance(error, LedgerError):
        return repr(error)
    return f"{code_text(error.code)}{': ' + error.detail if error.detail else ''}"
