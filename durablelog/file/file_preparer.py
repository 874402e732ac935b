"""FilePreparer: creates the next file of a log before it is needed, and searches for room while
the disk is full.

On the event loop; the work is done on the log's second executor. Rules of this file:

- one file at a time; after a try that failed the next one waits, twice as long each time, up to a
  bound;
- a full disk fails no append: an operation that needs a file waits, and gets what the reserve has
  for frames meanwhile;
- any other error fails the operations that need the file; while there are none, it is only tried
  again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, Literal

from durablelog.file.group_writer import PreparedFile
from durablelog.file.log_folder import LogFolder
from durablelog.file.log_layout import prepared_name
from durablelog.file.room import NoRoomError

ZEROS_GROUP_BYTES_MAX: Final = 256 * 1024
"""Zeros written ahead make the sync of a small group twice as fast.

For larger ones on average they only double what the disk has to write, and room alone is found.
Neither is needed where a spare is.
"""
RETRY_S: Final = (0.1, 5.0)
"""Between two tries: the first interval and the longest; each is twice the one before."""

Need = Literal["", "file", "room"]
"""What the writer thread waits for: nothing, another file, or room to grow the current one (or
another file).
"""


class FilePreparer:
    """The preparing side of one opening.

    `on_ready`: what was needed may be there; `on_file`: the next file is there; `on_failure` gets
    the reason.
    """

    def __init__(
        self,
        folder: LogFolder,
        file_bytes: int,
        stopping: list[bool],
        *,
        on_ready: Callable[[], None],
        on_file: Callable[[], None],
        on_failure: Callable[[Exception], object],
        on_room: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._file_bytes = file_bytes
        self._stopping = stopping
        self._on_ready = on_ready
        self._on_file = on_file
        self._on_failure = on_failure
        self._on_room = on_room
        self._loop: asyncio.AbstractEventLoop | None = None
        self._helper: Executor | None = None
        self._busy = False
        self._count = 0
        self._retry: asyncio.TimerHandle | None = None
        self._retry_s = RETRY_S[0]
        self._groups_before = 0  # and bytes: when the last file was asked for
        self._bytes_before = 0
        self._groups = 0
        self._bytes = 0
        self.prepared: PreparedFile | None = None
        """Set on the loop, and only where it is None; given up by `take` alone."""
        self.ready_bytes = 0
        """Room of the files made, on the loop: what the log rolled to and acknowledged a group of
        is taken off by the log.
        """
        self.needed: Need = ""
        self.shortage = ""
        """What there is no room for; empty while there is."""
        self.file_bytes = file_bytes
        """Length of the last file: less than it should be where there was little room."""

    @property
    def limited(self) -> bool:
        """There is no room for another file, or only for one smaller than it should be."""
        return bool(self.shortage) or self.file_bytes < self._file_bytes

    def take(self) -> PreparedFile | None:
        """The next file, if it is there.

        For the writer thread, while the loop may set what was made: None takes nothing away.
        """
        prepared = self.prepared
        if prepared is not None:
            self.prepared = None
        return prepared

    def lost(self, prepared: PreparedFile, shortage: str) -> None:
        """A file that was taken got no name, for want of room, and is there no more."""
        self.ready_bytes -= prepared.room
        self.put_off(shortage)

    def begin(self, loop: asyncio.AbstractEventLoop, helper: Executor, *, short: bool) -> None:
        """The log is open: from now on files may be asked for.

        `short`: the opening has found too little room.
        """
        self._loop, self._helper = loop, helper
        if short:
            self.put_off(f"opening the log in {self._folder.directory}")

    def end(self) -> None:
        """No more tries. Idempotent."""
        retry, self._retry = self._retry, None
        if retry is not None:
            retry.cancel()

    def wrote(self, groups: int, size: int) -> None:
        """Groups written since the opening, and the bytes in them: large ones want files that
        grow.
        """
        self._groups, self._bytes = groups, size

    def want(self) -> None:
        """Have the next file made, unless it is there or on its way, or the last try was a moment
        ago.
        """
        if self._busy or self.prepared is not None or self._retry is not None or self._stopping:
            return
        assert self._helper is not None
        self._busy = True
        self._count += 1
        path = os.path.join(self._folder.directory, prepared_name(self._folder.epoch, self._count))
        groups, size = self._groups - self._groups_before, self._bytes - self._bytes_before
        self._groups_before, self._bytes_before = self._groups, self._bytes
        self._helper.submit(
            self._prepare, path, size <= groups * ZEROS_GROUP_BYTES_MAX, self.needed
        )

    def need(self, what: Need, detail: str = "") -> None:
        """The writer thread waits until `on_ready`; `detail` says what it found no room for."""
        self.needed = what
        if detail:
            self.put_off(detail)
        else:
            self.want()

    def put_off(self, shortage: str) -> None:
        """The next try is not before a while; `shortage` says what there is no room for, if it is
        that.
        """
        if self._retry is None and not self._stopping:
            assert self._loop is not None
            self._retry = self._loop.call_later(self._retry_s, self.try_again)
            self._retry_s = min(2 * self._retry_s, RETRY_S[1])
        if shortage:
            self._note(shortage)

    def try_again(self) -> None:
        """Now, if there is anything to try: room may have come."""
        self.end()
        if self.prepared is not None:
            # What found no room was not a file: the next claim tries that again.
            self._note("")
        elif self.limited or self.needed:
            self.want()

    # --- on the second executor -------------------------------------------------------------------

    # Submitted to an executor.
    def _prepare(self, path: str, zeros: bool, needed: Need) -> None:  # noqa: FBT001
        folder, shortage = self._folder, ""
        prepared: PreparedFile | None = None
        try:
            try:
                enough = self._has_enough_zeros if zeros else None
                prepared = folder.next_file(path, self._file_bytes, enough)
            except NoRoomError as error:
                shortage = f"preparing a log file in {folder.directory}: {error}"
                if needed == "file":
                    prepared = folder.makeshift_file(path)
                elif needed != "room" or not folder.reserve.give_to_frames():
                    raise
        except Exception as error:  # noqa: BLE001
            # Reported below; the writer thread may be waiting for it.
            self._post(self._failed, error)
            return
        if prepared is not None and self._stopping:
            prepared.file.close()
            folder.remove([prepared.path])
            return
        self._post(self._done, prepared, shortage)

    def _has_enough_zeros(self) -> bool:
        # An append that waits, for the file or for room, would wait for all of them.
        return bool(self._stopping or self.needed)

    def _post(self, callback: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(callback, *arguments)

    # --- its reports, on the loop -----------------------------------------------------------------

    def _done(self, prepared: PreparedFile | None, shortage: str) -> None:
        self._busy = False
        if self._stopping:
            if prepared is not None:
                # Its name goes with the next opening.
                prepared.file.close()
            return
        self.prepared = prepared
        if prepared is not None:
            self.ready_bytes += prepared.room
        if shortage:
            self.put_off(shortage)
        else:
            self._retry_s = RETRY_S[0]
            self.file_bytes = (prepared and prepared.allocated) or self._file_bytes
            self._note("")
            self._on_file()
        if self.needed:
            self.needed = ""
            self._on_ready()

    def _failed(self, error: Exception) -> None:
        self._busy = False
        if self._stopping:
            return
        full = isinstance(error, NoRoomError)
        if self.needed and not full:
            self._on_failure(error)
            return
        self.put_off(f"preparing a log file in {self._folder.directory}: {error}" if full else "")

    def _note(self, shortage: str) -> None:
        before, self.shortage = self.shortage, shortage
        if before or shortage:
            self._on_room()
