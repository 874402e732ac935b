"""Frames on their way into the current ledger: any number in flight, acknowledged in order.

Never awaits.

A frame is *queued* until its ledger may take it, then *sent*. Its entry number is its place in the
sequence sent to that ledger. So the end of the ledger, once known, decides every unconfirmed frame.
Rules of this file:

- frames go out in the order of the appends, and to one ledger only: nothing is sent to the next one
  while anything is in flight in the one before;
- the first result that is not OK ends the ledger: what is in flight is in doubt, and stays so until
  `settle`;
- what bookies say is an acknowledgement only while the record is surely ours: until then results
  are *held*. Frames that are held are in flight;
- a frame sent a second time is the same bytes, header included.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Final, cast

from durablelog.bookkeeper.ledger_addresses import ENTRIES_MAX, make_address
from durablelog.bookkeeper.ledger_store import OK, AddResult, LedgerWriter
from durablelog.bookkeeper.log_metadata import LedgerItem
from durablelog.data_frame import FRAME_HEADER_LENGTH, seal_header
from durablelog.durable_data_log import LogAddress
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import DataCorruptionError, SegmentStoreError

STRETCH_MAX: Final = 4
"""So many times its size a ledger may get while no next one can be made."""
UNEXPECTED: Final = -999
"""For an entry at another place than its frame's: the log would be out of order."""


class WrittenLedger:
    """A ledger that this opening writes, or has written."""

    __slots__ = (
        "confirmed",
        "ends",
        "failure_code",
        "full",
        "item",
        "next_wanted",
        "room_bytes",
        "sent",
        "sent_bytes",
        "writer",
    )

    def __init__(self, item: LedgerItem, writer: LedgerWriter) -> None:
        self.item = item
        self.writer = writer
        self.sent = 0
        self.sent_bytes = 0
        self.confirmed = 0
        """Entries that bookies said to be OK: acknowledged, or held."""
        self.ends = array("Q")
        """Bytes of the ledger up to and including each acknowledged entry."""
        self.failure_code: int | None = None
        """What its first failed append said."""
        self.full = False
        """It takes no more frames."""
        self.next_wanted = False
        """It is so full that the next one should be made."""
        self.room_bytes = 0
        """What it takes beyond the usual, for there was no next one."""

    @property
    def acknowledged(self) -> int:
        """Entries."""
        return len(self.ends)

    @property
    def acknowledged_bytes(self) -> int:
        """Of these entries."""
        return self.ends[-1] if self.ends else 0

    @property
    def end(self) -> tuple[int, int, int]:
        """(sequence, last entry, length) as far as acknowledged: the end, once nothing is in
        flight.
        """
        return self.item.sequence, self.acknowledged - 1, self.acknowledged_bytes


_Frame = tuple[asyncio.Future[LogAddress], int, Sequence[Buffer]]
"""The future that waits for it, its length, its header and payload.

A plain tuple: one is made for every append.
"""


class FramePipeline:
    """For one opening.

    `finished` is called when the current ledger has failed or is full, `nearly_full` some time
    before that, `settled` after futures were resolved. `is_valid` is asked before frames are
    acknowledged; a caller that answers False calls `acknowledge_held` as soon as that has changed.
    """

    def __init__(
        self,
        container_id: int,
        ledger_bytes: int,
        *,
        is_valid: Callable[[], bool],
        finished: Callable[[], None],
        nearly_full: Callable[[], None],
        settled: Callable[[], None],
    ) -> None:
        self._container_id = container_id
        self._ledger_bytes = ledger_bytes
        self._nearly_bytes = ledger_bytes - ledger_bytes // 8
        self._is_valid = is_valid
        self._finished = finished
        self._nearly_full = nearly_full
        self._settled = settled
        self._epoch = 0
        self._next_sequence = 1
        self._durable_through = 0
        self._queued: deque[_Frame] = deque()
        self._sent: deque[_Frame] = deque()
        self._quiet: asyncio.Future[None] | None = None
        self._ledger: WrittenLedger | None = None
        self.bytes_in_flight = 0
        """Payload bytes of frames queued and sent."""
        self.frames_appended = 0
        self.bytes_appended = 0
        self.batches = 0
        self.written: dict[int, WrittenLedger] = {}
        """By sequence: the ledgers of this opening that are part of the log, the current one
        last.
        """

    def begin(self, epoch: int, last_sequence: int, ledger: WrittenLedger) -> None:
        """The log is open; its last frame is `last_sequence`, 0 for none."""
        self._epoch = epoch
        self._next_sequence = last_sequence + 1
        self._durable_through = last_sequence
        self.attach(ledger)

    @property
    def ledger(self) -> WrittenLedger:
        """The current one."""
        assert self._ledger is not None
        return self._ledger

    @property
    def begun(self) -> bool:
        """There is a current one."""
        return self._ledger is not None

    @property
    def frames_in_flight(self) -> int:
        """Queued and sent."""
        return len(self._queued) + len(self._sent)

    @property
    def durable_through(self) -> int:
        """The highest frame sequence acknowledged."""
        return self._durable_through

    def append(
        self, future: asyncio.Future[LogAddress], payload: Sequence[Buffer], length: int
    ) -> None:
        """One more frame."""
        sequence = self._next_sequence
        # What cannot be sealed has had no sequence: behind a hole the log would not be whole.
        header = seal_header(
            self._container_id, self._epoch, sequence, self._durable_through, payload
        )
        self._next_sequence = sequence + 1
        self.bytes_in_flight += length
        frame = (future, FRAME_HEADER_LENGTH + length, (header, *payload))
        if self._queued or not self._send(frame):
            self._queued.append(frame)

    def attach(self, ledger: WrittenLedger) -> None:
        """Go on in this ledger: first what was sent to the one before and is not in it, then what
        is queued.
        """
        assert self._ledger is None or not self._sent or self._ledger.failure_code is not None
        self._ledger = ledger
        self.written[ledger.item.sequence] = ledger
        ledger.writer.on_results = partial(self._on_results, ledger)
        ledger.writer.on_short = partial(self._on_short, ledger)
        self._queued.extendleft(reversed(self._sent))
        self._sent.clear()
        while self._queued and self._send(self._queued[0]):
            self._queued.popleft()

    def can_stretch(self) -> bool:
        """The current ledger may take more than its size: it is whole, and not many times larger
        yet.
        """
        ledger = self.ledger
        whole = ledger.failure_code is None and ledger.sent < ENTRIES_MAX
        return whole and ledger.sent_bytes < STRETCH_MAX * self._ledger_bytes

    def stretch(self) -> None:
        """Go on in the current ledger, which is full, for an eighth of a ledger: there is no next
        one.
        """
        ledger = self.ledger
        over = max(0, ledger.sent_bytes - self._ledger_bytes)
        ledger.room_bytes = over + max(1, self._ledger_bytes // 8)
        ledger.full = False
        if self._queued:
            # One at least, whatever its size: each try for the next ledger is followed by a frame.
            ledger.room_bytes = max(ledger.room_bytes, over + self._queued[0][1])
        while self._queued and self._send(self._queued[0]):
            self._queued.popleft()

    def leave(self, ledger_id: int) -> None:
        """If this is the current ledger it takes no more frames: the next one does."""
        ledger = self.ledger
        if ledger.item.ledger_id == ledger_id and not ledger.full and ledger.failure_code is None:
            ledger.full = True
            self._finished()

    def forget_below(self, sequence: int) -> None:
        """Ledgers before this one are no part of the log any more."""
        self.written = {
            number: ledger for number, ledger in self.written.items() if number >= sequence
        }

    async def quiet(self) -> None:
        """Returns when nothing is in flight in the current ledger, or it has failed."""
        if self._sent and self.ledger.failure_code is None:
            self._quiet = asyncio.get_running_loop().create_future()
            await self._quiet

    def settle(self, last_entry: int) -> None:
        """The failed ledger was found to end with this entry: acknowledge what is in it.

        The record was ours after that. Raises DataCorruptionError if it ends before what was
        confirmed, or behind what was ever sent.
        """
        ledger = self.ledger
        acknowledged = ledger.acknowledged
        if not ledger.confirmed - 1 <= last_entry < ledger.sent:
            detail = (
                f"it ends at entry {last_entry}; {ledger.confirmed} entries were confirmed, "
                f"{ledger.sent} were sent to it"
            )
            raise DataCorruptionError(f"ledger {ledger.item.ledger_id}", detail)
        # None are left if the log was closed or has failed meanwhile.
        if last_entry >= acknowledged and self._sent:
            self._acknowledge(ledger, last_entry + 1 - acknowledged)
            self._settled()

    def acknowledge_held(self) -> None:
        """The record is surely ours: what is held is acknowledged.

        Nothing happens if nothing is.
        """
        ledger = self._ledger
        # A ledger that was settled may have more acknowledged than was ever confirmed; and none are
        # left of what was confirmed if the log was closed or has failed meanwhile.
        if ledger is None or ledger.confirmed <= ledger.acknowledged or not self._sent:
            return
        self._acknowledge(ledger, ledger.confirmed - ledger.acknowledged)
        self._settled()
        if not self._sent:
            self._wake()

    def fail_all(self, failure: Callable[[], SegmentStoreError]) -> None:
        """Nothing more is sent or acknowledged: every frame fails."""
        frames = [*self._sent, *self._queued]
        self._sent.clear()
        self._queued.clear()
        self.bytes_in_flight = 0
        if self._ledger is not None:
            self._ledger.full = True
        self._wake()
        for future, _, _ in frames:
            if not future.done():
                future.set_exception(failure())
        if frames:
            self._settled()

    # --- one ledger -------------------------------------------------------------------------------

    def _send(self, frame: _Frame) -> bool:
        """False if the ledger does not take it."""
        ledger = self._ledger
        assert ledger is not None
        if ledger.full or ledger.failure_code is not None:
            return False
        _, length, parts = frame
        sent, sent_bytes = ledger.sent, ledger.sent_bytes + length
        if sent and (sent_bytes > self._ledger_bytes + ledger.room_bytes or sent == ENTRIES_MAX):
            ledger.full = True
            self._finished()
            return False
        ledger.sent = sent + 1
        ledger.sent_bytes = sent_bytes
        self._sent.append(frame)
        ledger.writer.append(parts)
        if sent_bytes >= self._nearly_bytes and not ledger.next_wanted:
            ledger.next_wanted = True
            self._nearly_full()
        return True

    def _on_short(self, ledger: WrittenLedger, _reason: str) -> None:
        """A bookie gets nothing of it any more: what comes goes to the next ledger."""
        if ledger is self._ledger and ledger.sent:
            self.leave(ledger.item.ledger_id)

    def _on_results(self, ledger: WrittenLedger, results: Sequence[AddResult]) -> None:
        if ledger is not self._ledger or ledger.failure_code is not None or not self._sent:
            return
        self.batches += 1
        expected = ledger.confirmed
        good = 0
        for code, entry, count in results:
            if code != OK:
                ledger.failure_code = code
                break
            if entry != expected + good:
                ledger.failure_code = UNEXPECTED
                break
            good += count
        ledger.confirmed += good
        if good and self._is_valid():
            self.acknowledge_held()
        if ledger.failure_code is not None:
            self._wake()
            self._finished()

    def _acknowledge(self, ledger: WrittenLedger, count: int) -> None:
        """The first `count` of the frames in flight are durable."""
        sent, ends = self._sent, ledger.ends
        address = make_address(ledger.item.sequence, len(ends))
        addresses = cast("Sequence[LogAddress]", range(address, address + count))
        end = ledger.acknowledged_bytes
        frames = [sent.popleft() for _ in range(count)]
        ends.extend(accumulate([length for _, length, _ in frames[1:]], initial=end + frames[0][1]))
        # Frames are sent in the order of their sequences, and none is left out.
        self._durable_through += count
        length = ends[-1] - end - count * FRAME_HEADER_LENGTH
        self.bytes_in_flight -= length
        self.frames_appended += count
        self.bytes_appended += length
        for (future, _, _), place in zip(frames, addresses, strict=True):
            if not future.done():
                future.set_result(place)

    def _wake(self) -> None:
        quiet, self._quiet = self._quiet, None
        if quiet is not None and not quiet.done():
            quiet.set_result(None)
