"""GroupCommit: makes the frames of a file log durable, in groups, by one of two ways.

A group is what waits when the one before is durable, one write and one sync for all of it. A small
one is written by the event loop, and synced by the kernel's own workers: no thread has to be woken,
or waits for the interpreter lock (docs/decisions/0092-syncs-by-the-kernel.md). Everything else is
the *writer thread's*, an executor of one thread. That is a large group, one that needs another file
or more room, and the first ones of an opening. The thread takes all that waits, writes and syncs
it, reports to the loop, and goes on until nothing waits.

Rules of this file:

- one group is under way at a time. `_busy` says so; the loop alone sets and clears it, and checks
  the queue when it does. So no frame is ever left behind between the two;
- the writing end (group_writer.py) is used by whichever way is under way, and by no other. The
  state record may change beside it;
- where a write on the loop has waited, as behind the journal of a busy file system, the thread has
  the next ones for a while.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Final

from durablelog.data_frame import FRAME_HEADER_LENGTH
from durablelog.file.file_preparer import FilePreparer, Need
from durablelog.file.group_writer import (
    GroupWriter,
    PreparedFile,
    UnsyncedGroup,
    WaitingFrame,
    WrittenGroup,
    take_group,
)
from durablelog.file.log_folder import LogFolder
from durablelog.file.room import NoRoomError
from segmentstore.contracts.disk import KernelSyncs
from segmentstore.contracts.loop_calls import LoopCalls
from segmentstore.contracts.serial_thread import post

SMALL_GROUP_BYTES: Final = 64 * 1024
"""A group of so much is copied into the page cache in some 20 µs, headers included."""
LOAD_GROUPS = 32
"""What the kernel's syncs need is loaded behind so many groups: a short command is without."""
SLOW_WRITE_MS = 1
SLOW_PAUSE_MS: Final = 1000
"""After a write on the loop that took longer than the first, the thread writes for the second."""


class GroupCommit:
    """The writing side of one opening; on the event loop, but for what says otherwise.

    `room_wanted`: bytes that should be known to have room before a group is written. `on_written`
    gets each durable group, in order. `on_full`: the file has no more room. `on_failed` gets what
    ends the log for good, and what was being done to the log. `now_ms` is a clock that goes on in
    the midst of a turn of the loop, unlike uvloop's.
    """

    def __init__(
        self,
        folder: LogFolder,
        preparer: FilePreparer,
        stopping: list[bool],
        *,
        room_wanted: Callable[[], int],
        on_written: Callable[[WrittenGroup], None],
        on_full: Callable[[], None],
        on_failed: Callable[[str, BaseException], object],
        now_ms: Callable[[], int],
    ) -> None:
        self._folder = folder
        self._preparer = preparer
        self._stopping = stopping
        self._room_wanted = room_wanted
        self._on_written = on_written
        self._on_full = on_full
        self._on_failed = on_failed
        self._now_ms = now_ms
        self._queue: deque[WaitingFrame] = deque()
        self._busy = False
        self._groups = 0
        self._thread: Executor | None = None
        self._helper: Executor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: LoopCalls | None = None
        self._syncs: KernelSyncs | None = None
        self._syncing: UnsyncedGroup | None = None
        self._settled: asyncio.Future[None] | None = None
        self._slow_until = 0

    def open(self, writer_thread: Executor, helper: Executor) -> None:
        """The log is being opened. `helper` is for what takes long and writes no group."""
        self._thread, self._helper = writer_thread, helper
        self._loop, self._calls = asyncio.get_running_loop(), LoopCalls(self._lost)

    def begin(self, syncs: KernelSyncs | None) -> None:
        """The log is open. `syncs`: of its folder, closed by `close`."""
        self._syncs = syncs

    def add(self, frame: WaitingFrame) -> None:
        """Write this frame behind all before it. Costs a write, if the group is a small one."""
        self._queue.append(frame)
        if not self._busy and not self._preparer.needed:
            self.start()

    def start(self) -> None:
        """Begin a group of what waits. No other is under way."""
        self._busy = True
        try:
            if not self._begin_small():
                assert self._thread is not None
                post(self._thread, self._drain)
        except BaseException as error:
            self._syncing = None
            if isinstance(error, Exception):
                # In a turn of its own: the caller is on its way to the log with this very frame.
                assert self._loop is not None
                self._loop.call_soon(self._on_failed, "writing", error)
                return
            self._on_failed("writing", error)
            raise

    def drop(self) -> None:
        """The log has failed, or closes: nothing that waits is written any more."""
        self._queue.clear()

    async def settle(self) -> None:
        """Wait for the kernel, if it syncs. Nothing is begun any more."""
        assert self._stopping
        if self._syncing is not None:
            assert self._loop is not None
            self._settled = self._loop.create_future()
            await self._settled

    def close(self) -> None:
        """Give everything back, once it is settled and the thread does nothing. Idempotent."""
        if self._calls is not None:
            self._calls.close()
        if self._syncs is not None:
            self._syncs.close()

    # --- by the kernel ----------------------------------------------------------------------------

    def _begin_small(self) -> bool:
        """Begin the group of what waits; False: it is for the thread, and nothing was done."""
        syncs, writer = self._syncs, self._folder.writer
        if syncs is None or not self._queue or self._stopping:
            return False
        size = 0
        for frame in self._queue:
            size += FRAME_HEADER_LENGTH + frame.length
            if size > SMALL_GROUP_BYTES:
                return False
        if (
            not writer.has_room(size, self._room_wanted())
            or self._rolls_early(writer)
            or not syncs.ready
        ):
            return False
        began = self._now_ms()
        if began < self._slow_until:
            return False
        group = self._syncing = writer.put(take_group(self._queue, size))
        ended = self._now_ms()
        if ended - began > SLOW_WRITE_MS:
            # Not from its beginning: it may have waited for longer than the pause.
            self._slow_until = ended + SLOW_PAUSE_MS
        if not syncs.begin(group.file, partial(self._synced, group)):
            self._syncing = None
            assert self._thread is not None
            post(self._thread, self._commit, group)
        return True

    def _synced(self, group: UnsyncedGroup, error: OSError | None) -> None:
        if group is not self._syncing:
            # A report that was interrupted comes twice.
            return
        if self._settled is not None and not self._settled.done():
            # First: what interrupts it is followed by the same report, of a group still under way.
            self._settled.set_result(None)
        try:
            self._syncing = None
            if self._stopping:
                return
            if error is not None:
                raise error
            written = self._folder.writer.finish(group)
            self._busy = False
            # First: what the next write waits for is nothing to the callers of this one.
            self._on_written(written)
            if self._queue and not self._busy and not self._stopping:
                self.start()
        except BaseException as failure:
            self._on_failed("writing", failure)
            if not isinstance(failure, Exception):
                raise

    def _commit(self, group: UnsyncedGroup) -> None:
        """On the writer thread: what the kernel has refused."""
        try:
            self._post(self._writer_idle, self._folder.writer.commit(group))
        except Exception as error:  # noqa: BLE001
            self._post(self._on_failed, "writing", self._folder.reason(error))

    # --- by the writer thread ---------------------------------------------------------------------

    def _drain(self) -> None:
        """On the writer thread: write groups until nothing waits, then rest; or rest because no
        file is ready.

        When the loop stops this thread it may empty the queue at any moment; what that raises here
        meets a log that has failed already, and changes nothing.
        """
        writer, preparer = self._folder.writer, self._preparer
        fits = True
        try:
            while not self._stopping:
                if not self._queue:
                    self._post(self._writer_idle, None)
                    return
                length = self._queue[0].length
                fits = writer.fits(length)
                if not fits or self._rolls_early(writer):
                    prepared = preparer.take()
                    if prepared is not None:
                        self._roll(writer, prepared, stays=fits)
                        fits = True
                    elif not fits:
                        self._post(self._writer_needs, "file", "")
                        return
                try:
                    if (
                        not writer.secure(FRAME_HEADER_LENGTH + length, self._room_wanted())
                        and not preparer.shortage
                    ):
                        self._post(
                            preparer.put_off,
                            f"no room to grow a log file in {self._folder.directory}",
                        )
                except NoRoomError:
                    prepared = preparer.take()
                    if prepared is None:
                        raise
                    self._roll(writer, prepared, stays=False)
                    continue
                group = writer.write(take_group(self._queue, writer.room))
                if not self._queue:
                    # One call for report and rest: the loop checks the queue again when it gets
                    # it.
                    self._post(self._writer_idle, group)
                    return
                self._post(self._written, group)
        except NoRoomError as error:
            detail = f"writing the log in {self._folder.directory}: {error}"
            self._post(self._writer_needs, "room" if fits else "file", detail)
        except Exception as error:  # noqa: BLE001
            # Whatever it is, the futures must not wait for ever.
            self._post(self._on_failed, "writing", self._folder.reason(error))

    def _roll(self, writer: GroupWriter, prepared: PreparedFile, *, stays: bool) -> None:
        """Go on in a prepared file; if it gets no name, in the present one where that `stays`."""
        try:
            writer.roll(prepared)
        except NoRoomError as error:
            detail = f"beginning a log file in {self._folder.directory}: {error}"
            self._post(self._preparer.lost, prepared, detail)
            if not stays:
                raise

    def _rolls_early(self, writer: GroupWriter) -> bool:
        """What was shipped by the room of the present file has its place in the next one, too."""
        ready = self._preparer.prepared
        return writer.prefers_roll and ready is not None and ready.room >= writer.room

    def no_file(self, error: Exception) -> None:
        """On the writer thread, which waits for a file that could not be made."""
        self._post(self._on_failed, "preparing a file of", self._folder.reason(error))

    def _post(self, callback: Callable[..., object], *arguments: object) -> None:
        assert self._calls is not None
        self._calls.call(callback, *arguments)

    # --- its reports, on the loop -----------------------------------------------------------------

    def _lost(self, error: BaseException) -> None:
        # With one acknowledgement missing, each later one would answer the callers of another.
        self._on_failed("acknowledging what was written to", error)

    def _written(self, group: WrittenGroup) -> None:
        self._on_written(group)
        self._groups += 1
        if self._groups == LOAD_GROUPS and self._syncs is not None and not self._stopping:
            assert self._helper is not None
            post(self._helper, self._syncs.load)

    def _writer_idle(self, group: WrittenGroup | None) -> None:
        self._busy = False
        if group is not None:
            self._written(group)
        if not self._stopping and self._queue and not self._busy:
            self.start()

    def _writer_needs(self, what: Need, detail: str) -> None:
        self._busy = False
        if self._stopping:
            return
        if what == "room":
            self._on_full()
        if self._preparer.prepared is not None:
            self.start()
        else:
            self._preparer.need(what, detail)
