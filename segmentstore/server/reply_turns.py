"""ReplyTurns: the requests of one connection that wait until its client reads its replies.

They go on first come, first served, each once the transport has room: what one of them sends may be
what the next one waits for. Replies of reads that were begun before are kept up to a bound. Beyond
it they are dropped, and made again when it is their turn. For a thousand reads that wait at the end
of a segment all have their bytes in the same moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from segmentstore.wire.codec import encode_parts
from segmentstore.wire.commands import Command

KEPT_BYTES_MAX: Final = 4 << 20
"""Replies of reads that are kept while the transport has no room, of one connection."""
AGAIN_S: Final = 1.0
"""Longest that a reply which is made again holds up the requests behind it."""


class ReplyTurns:
    """Those of one connection."""

    def __init__(self) -> None:
        self._writable = asyncio.Event()
        self._writable.set()
        self._turn = asyncio.Lock()
        self._kept_bytes = 0

    @property
    def are_open(self) -> bool:
        """Whether the transport has room for replies."""
        return self._writable.is_set()

    def close(self) -> None:
        """The transport has no room."""
        self._writable.clear()

    def open(self) -> None:
        """It has some, or sends nothing any more."""
        self._writable.set()

    async def wait(self) -> None:
        """Wait for room, behind those that wait already."""
        if self._writable.is_set() and not self._turn.locked():
            return
        async with self._turn:
            await self._room()

    async def _room(self) -> None:
        # What is sent without a turn, as acknowledgements are, may have taken it again.
        while not self._writable.is_set():
            await self._writable.wait()

    async def of_read(
        self, reply: Command | None, again: Callable[[], Coroutine[Any, Any, Command | None]]
    ) -> Command | None:
        """The reply, once there is room: send it at once. `again()` makes another one like it.

        The caller keeps no reference to the reply, or dropping it would free nothing.
        """
        while reply is not None and not self._writable.is_set():
            size = sum(map(len, encode_parts(reply)))
            if self._kept_bytes + size <= KEPT_BYTES_MAX:
                self._kept_bytes += size
                try:
                    await self.wait()
                finally:
                    self._kept_bytes -= size
            else:
                reply = None
                reply = await self._repeated(again)
        return reply

    async def _repeated(
        self, again: Callable[[], Coroutine[Any, Any, Command | None]]
    ) -> Command | None:
        async with self._turn:
            await self._room()
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    return await again()
        # The segment may be another one by now, and the read one that waits.
        return await again()
