"""Whether the ledgers of an open log are still there.

A tool may delete a ledger under its writer, which continues to receive OK. Nothing shows it until
the ledger is read, at the next opening at the latest. Rules of this file:

- the cluster's metadata is asked once in CHECK_S, for the current ledger and for one of the others
  in turn. An append pays nothing;
- a ledger is missing if it was so twice, and the record is ours after that: a later owner may have
  deleted it;
- a current ledger that is missing is followed by another one: no more frames go into it. What it
  holds that is not flushed is in memory alone, so `health` says so until the log is truncated
  behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from durablelog.bookkeeper.failure_codes import LedgerCall, Reaction, reaction
from durablelog.bookkeeper.ledger_store import LedgerError, LedgerStore
from durablelog.bookkeeper.log_metadata import LogMetadata
from durablelog.bookkeeper.metadata_node import NodeUnavailableError
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.health import HealthNotes
from segmentstore.contracts.owned_tasks import own_task

CHECK_S: Final = 60.0
"""Loop time. Bookies keep the entries of a deleted ledger for longer, by default."""
_AGAIN_S: Final = 5.0
"""A server of ZooKeeper may be so far behind the others."""
_TOPIC: Final = "missing"


class ListedLedgers:
    """For one opening.

    `record` gives the record as it is known, `check_owner` reads it. `follow` is called with the id
    of a ledger that is missing; if that is the current one, the caller begins another.
    """

    def __init__(
        self,
        ledgers: LedgerStore,
        notes: HealthNotes,
        *,
        record: Callable[[], LogMetadata],
        check_owner: Callable[[], Awaitable[None]],
        follow: Callable[[int], None],
    ) -> None:
        self._ledgers = ledgers
        self._notes = notes
        self._record = record
        self._check_owner = check_owner
        self._follow = follow
        self._missing: dict[int, None] = {}
        self._turn = 0
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """The log is open: check now and then, from here on."""
        if not self._stopped:
            self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._due)

    def note(self) -> None:
        """Say what is missing of what the record lists now."""
        listed = {item.ledger_id for item in self._record().ledgers}
        self._missing = {each: None for each in self._missing if each in listed}
        if not self._missing:
            self._notes.clear(_TOPIC)
            return
        ids = ", ".join(map(str, self._missing))
        self._notes.set(
            _TOPIC,
            f"the log's record lists what is missing, ledger {ids}: a tool deleted it. Before the "
            "store is closed, flush and checkpoint: what is not in tier2 is in memory alone",
        )

    def stop(self) -> None:
        """The log has failed for good: no further check."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        """Stop, and end the task. Idempotent."""
        self.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _due(self) -> None:
        self.begin()
        if self._task is None:
            self._task = own_task(self._run(), name="check-ledgers")

    async def _run(self) -> None:
        try:
            *others, current = (item.ledger_id for item in self._record().ledgers)
            self._turn += 1
            some = [current, others[self._turn % len(others)]] if others else [current]
            for ledger_id in some:
                if ledger_id not in self._missing and await self._is_missing(ledger_id):
                    self._missing[ledger_id] = None
            self.note()
            for ledger_id in self._missing:
                self._follow(ledger_id)
        except (LedgerError, NodeUnavailableError):
            pass  # the next time
        except SegmentStoreError:
            pass  # what ends the log was said by `check_owner`
        finally:
            self._task = None

    async def _is_missing(self, ledger_id: int) -> bool:
        for pause_s in (_AGAIN_S, 0.0):
            try:
                await self._ledgers.describe(ledger_id)
            except LedgerError as error:
                if reaction(LedgerCall.RECOVER, error.code) is not Reaction.NO_LEDGER:
                    raise
            else:
                return False
            await asyncio.sleep(pause_s)
        await self._check_owner()
        return True
