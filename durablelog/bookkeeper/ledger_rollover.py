"""From one ledger to the next: rolling, and settling what a failed ledger left in doubt.

One task at a time, begun when the current ledger is full or has failed. Rules of this file:

- frames wait meanwhile; the next ledger gets one only when nothing is in flight in the one before
  and the record lists it;
- after a failure the record is read before anything else, and again before anything is
  acknowledged. It alone says whether the log is still ours;
- frames in doubt are acknowledged if the recovered ledger holds them, and sent again, in order, if
  not;
- it waits for bookies and nodes as long as it takes, and says for what; ledgers that fail before
  anything was acknowledged in them follow each other slower and slower;
- a full ledger that is well goes on while bookies are too few for the next one, up to a bound;
- a ledger that was begun and not listed is removed only if no writing of ours can list it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from durablelog.bookkeeper.failure_codes import LedgerCall, Reaction, code_text, reaction
from durablelog.bookkeeper.frame_pipeline import FramePipeline, WrittenLedger
from durablelog.bookkeeper.ledger_calls import BegunLedger, LedgerCalls, custom_metadata
from durablelog.bookkeeper.ledger_deleter import LedgerDeleter
from durablelog.bookkeeper.ledger_opening import list_ledger
from durablelog.bookkeeper.ledger_reading import LedgerReader
from durablelog.bookkeeper.ledger_store import LedgerWriter, Replication
from durablelog.bookkeeper.log_metadata_size import ROLL_BYTES_MAX, note_size
from durablelog.bookkeeper.log_metadata_store import LogMetadataStore
from durablelog.bookkeeper.waiting import Waiting
from segmentstore.contracts.errors import (
    DataCorruptionError,
    NotPrimaryError,
    SegmentStoreError,
    TierUnavailableError,
)
from segmentstore.contracts.health import HealthNotes
from segmentstore.contracts.owned_tasks import own_task

_TOPIC: Final = "ledger"
_DEGRADED: Final = "replication"
CLOSE_TIMEOUT_S: Final = 10.0
"""How long closing waits for the cluster to seal what was written; it is whole without that."""


class LedgerRollover:
    """For one opening. `fail` is called with what ends the log for good."""

    def __init__(
        self,
        *,
        calls: LedgerCalls,
        keeper: LogMetadataStore,
        pipeline: FramePipeline,
        reader: LedgerReader,
        remover: LedgerDeleter,
        notes: HealthNotes,
        replication: Replication,
        waiting: Callable[[str], Waiting],
        fail: Callable[[SegmentStoreError], None],
    ) -> None:
        self._calls = calls
        self._keeper = keeper
        self._pipeline = pipeline
        self._reader = reader
        self._remover = remover
        self._notes = notes
        self._replication = replication
        self._new_waiting = waiting
        self._fail = fail
        self._stopped = False
        self._moving = False
        self._move: asyncio.Task[None] | None = None
        self._preparation: asyncio.Task[BegunLedger | None] | None = None
        self._releasing: list[asyncio.Task[None]] = []
        self._barren: Waiting | None = None

    def begin(self, ledger: WrittenLedger) -> None:
        """The opening's own ledger is listed."""
        self._entered(ledger)

    def finished(self) -> None:
        """The current ledger is full or has failed."""
        if not self._moving and not self._stopped:
            self._moving = True
            self._move = own_task(self._move_on(), name="next-ledger")

    def stop(self) -> None:
        """The log has failed for good: no further ledger."""
        self._stopped = True

    def prepare(self) -> None:
        """Make the next ledger ahead, tried once: if that fails it is made when it is needed."""
        if self._preparation is None and not self._stopped:
            create = self._calls.create_whole(self._custom())
            self._preparation = own_task(create, name="prepare-ledger")

    async def close(self, current: LedgerWriter | None) -> None:
        """Stop, seal and release, within CLOSE_TIMEOUT_S."""
        self._stopped = True
        move, self._move = self._move, None
        if move is not None:
            move.cancel()
            await asyncio.wait([move])
        if current is not None:
            self.release(current.close())
        if self._preparation is not None:
            self.release(self._discard_prepared(self._preparation))
            self._preparation = None
        tasks, self._releasing = self._releasing, []
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    # --- the way to the next ledger ---------------------------------------------------------------

    async def _move_on(self) -> None:
        begun: BegunLedger | None = None
        try:
            while self._wants_next():
                await self._pipeline.quiet()
                ledger = self._pipeline.ledger
                end = ledger.end if ledger.failure_code is None else await self._settle(ledger)
                begun = await self._next(stretchable=ledger.failure_code is None)
                if begun is None:
                    self._go_on(ledger)
                    continue
                if self._stopped:
                    self.release(self._calls.discard(begun.writer))
                    return
                item = await list_ledger(
                    self._keeper,
                    begun,
                    (end,),
                    self._remover.deleted,
                    self._new_waiting(_TOPIC),
                    record_bytes_max=ROLL_BYTES_MAX,
                )
                following, begun = WrittenLedger(item, begun.writer), None
                self._remover.take(self._keeper.record)
                note_size(self._keeper.record, self._keeper.size, self._notes)
                self.release(ledger.writer.close())
                self._entered(following)
                self._pipeline.attach(following)
        except asyncio.CancelledError:
            if begun is not None:
                self.release(begun.writer.close())
            raise
        except SegmentStoreError as error:
            self._give_up(error, begun)
        except Exception as error:  # noqa: BLE001
            # Whatever it is, the futures must not wait for ever.
            self._give_up(
                TierUnavailableError("tier1", f"going on to the next ledger: {error!r}"), begun
            )
        finally:
            self._moving = False

    def _wants_next(self) -> bool:
        ledger = self._pipeline.ledger
        return not self._stopped and (ledger.full or ledger.failure_code is not None)

    async def _settle(self, ledger: WrittenLedger) -> tuple[int, int, int]:
        """What became of the frames in doubt; the ledger's end."""
        assert ledger.failure_code is not None
        ledger_id = ledger.item.ledger_id
        what = f"ledger {ledger_id} failed with {code_text(ledger.failure_code)}"
        self._notes.set(_TOPIC, f"{what}; what it holds is being found out")
        waiting = self._new_waiting(_TOPIC)
        await waiting.for_node(self._keeper.check)
        if reaction(LedgerCall.ADD, ledger.failure_code) is not Reaction.SETTLE:
            raise TierUnavailableError("tier1", what)
        description = await self._calls.recover(ledger_id, waiting)
        await waiting.for_node(self._keeper.check)
        if description is None:
            raise DataCorruptionError(
                f"ledger {ledger_id}", "it is missing, and the record lists it"
            )
        self._reader.sealed(ledger_id)
        self._pipeline.settle(description.last_entry)
        if ledger.acknowledged:
            self._barren = None
        elif self._barren is None:
            self._barren = self._new_waiting(_TOPIC)
        else:
            await self._barren.again(f"{what}, as the one before, with nothing acknowledged in it")
        return ledger.item.sequence, description.last_entry, description.length

    def _go_on(self, ledger: WrittenLedger) -> None:
        """Bookies are too few for another ledger, and this one is well: it takes more than its
        size.
        """
        if self._stopped:
            return
        what = f"ledger {ledger.item.ledger_id} goes on beyond its size"
        self._notes.set(
            _DEGRADED, f"{what}: there are too few bookies for a new one, of {self._replication}"
        )
        self._pipeline.stretch()

    async def _next(self, *, stretchable: bool) -> BegunLedger | None:
        """A ledger that is not listed yet; None if there are too few bookies, and the one before
        can go on.
        """
        preparation, self._preparation = self._preparation, None
        if preparation is not None:
            prepared = await self._taken(preparation)
            if prepared is not None:
                return prepared
            # Maybe it was made, and only its reply is lost: not another one before the record
            # answers.
            await self._new_waiting(_TOPIC).for_node(self._keeper.check)
        waiting = self._new_waiting(_TOPIC)
        if stretchable and self._pipeline.can_stretch():
            return await self._calls.create_if_enough(self._custom(), waiting)
        return await self._calls.create(self._custom(), waiting)

    async def _taken(self, preparation: asyncio.Task[BegunLedger | None]) -> BegunLedger | None:
        """What was prepared. Returned to the closing caller if we are stopped meanwhile."""
        try:
            return await asyncio.shield(preparation)
        except asyncio.CancelledError:
            self._preparation = preparation
            raise

    def _entered(self, ledger: WrittenLedger) -> None:
        """The record lists it."""
        item = ledger.item
        self._reader.sealed(item.ledger_id)
        self._notes.clear(_TOPIC)
        if item.replication == self._replication:
            self._notes.clear(_DEGRADED)
        else:
            detail = (
                f"there were too few bookies for {self._replication}; the next ledger tries "
                "that again"
            )
            self._notes.set(
                _DEGRADED, f"ledger {item.ledger_id} is on {item.replication}: {detail}"
            )

    def _give_up(self, error: SegmentStoreError, begun: BegunLedger | None) -> None:
        self._fail(error)
        if begun is not None:
            unlisted = isinstance(error, NotPrimaryError) and self._keeper.surely_unlisted(
                begun.writer.ledger_id
            )
            self.release(self._calls.discard(begun.writer) if unlisted else begun.writer.close())

    # --- what is left behind ----------------------------------------------------------------------

    async def _discard_prepared(self, preparation: asyncio.Task[BegunLedger | None]) -> None:
        try:
            prepared = await preparation
        except asyncio.CancelledError:
            preparation.cancel()
            raise
        if prepared is not None:
            await self._calls.discard(prepared.writer)

    def release(self, work: Coroutine[Any, Any, None]) -> None:
        """Have it done beside everything else; `close` waits for it."""
        self._releasing = [task for task in self._releasing if not task.done()]
        self._releasing.append(own_task(work, name="release-ledger"))

    def _custom(self) -> dict[str, bytes]:
        record = self._keeper.record
        return custom_metadata(record.store_id, record.container_id, record.epoch)
