"""How long ago the record was known to be ours, and another check of it in time: what an
acknowledgement rests on.

A fence is not enough. Bookies may forget it with the ledger that a later owner deleted, create the
ledger anew for its old writer, and say OK. So a later owner deletes ledgers of others only
DELETE_AFTER_S after its claim (ledger_deleter.py). And every owner acknowledges only if the record
was its own less than LEASE_S ago: of the two one sees the other. Rules of this file:

- the age of a check counts from its beginning, and is compared when the results are there;
- checks are begun by results, from half of LEASE_S on, so that a busy log does not wait for one
  while the nodes answer;
- while nothing is appended there is one as often: an owner that was overtaken learns it by itself;
- one check a time; while the nodes do not answer it is tried again, as long as it takes. The record
  alone says which process owns the log: a check that finds another epoch ends the log.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from durablelog.bookkeeper.log_metadata_store import LogMetadataStore
from durablelog.bookkeeper.metadata_node import NodeUnavailableError
from durablelog.bookkeeper.waiting import FIRST_S, MOST_S
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.errors import SegmentStoreError, TierUnavailableError
from segmentstore.contracts.health import HealthNotes
from segmentstore.contracts.owned_tasks import own_task

LEASE_S: Final = 30.0
"""Loop time.

Less than DELETE_AFTER_S; long enough for a ZooKeeper ensemble to elect another leader.
"""
_CHECK_AFTER_S: Final = LEASE_S / 2
_TOPIC: Final = "acknowledging"


class OwnershipLease:
    """For one opening.

    `release` is called when results may be acknowledged that had to wait, `fail` with what ends the
    log.
    """

    def __init__(
        self,
        keeper: LogMetadataStore,
        rng: random.Random,
        notes: HealthNotes,
        *,
        release: Callable[[], None],
        fail: Callable[[SegmentStoreError], None],
    ) -> None:
        self._keeper = keeper
        self._rng = rng
        self._notes = notes
        self._release = release
        self._fail = fail
        self._stopped = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """The log is open: check now and then, from here on."""
        if not self._stopped:
            self._timer = asyncio.get_running_loop().call_later(_CHECK_AFTER_S, self._due)

    def is_valid(self) -> bool:
        """Whether results that are there may be acknowledged.

        If not, `release` or `fail` follows. O(1).
        """
        age_s = self._keeper.age_s
        if age_s < _CHECK_AFTER_S:
            return True
        self._renew()
        return age_s < LEASE_S

    def stop(self) -> None:
        """The log has failed for good: no further check."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        self.begin()
        if self._keeper.age_s >= _CHECK_AFTER_S * 2 / 3:
            self._renew()

    def _renew(self) -> None:
        if self._task is None and not self._stopped:
            self._task = own_task(self._run(), name="read-record")

    async def close(self) -> None:
        """Stop, and end the task. Idempotent."""
        self.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        backoff = Backoff(self._rng, min_s=FIRST_S, max_s=MOST_S)
        try:
            while not self._stopped:
                try:
                    await self._keeper.check()
                except NodeUnavailableError as error:
                    if self._keeper.age_s >= LEASE_S:
                        self._notes.set(
                            _TOPIC,
                            f"acknowledgements wait: the log's record does not answer: {error}",
                        )
                    await asyncio.sleep(backoff.next_s())
                else:
                    if self._keeper.age_s < LEASE_S:
                        break
        except SegmentStoreError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001
            # Whatever it is, the futures must not wait for ever.
            self._fail(TierUnavailableError("tier1", f"reading the log's record: {error!r}"))
        else:
            self._notes.clear(_TOPIC)
            self._release()
        finally:
            self._task = None
