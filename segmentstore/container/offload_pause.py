"""OffloadPause: no part begins its way to the archive while the container is about to stop.

A request that is cut off may end behind the next owner's deletion of what it left, and leave an
object that nothing deletes. So a planned stop lets the part under way end first.
"""

from __future__ import annotations

import asyncio


class OffloadPause:
    """Of one archiver; on its event loop. At most one part is under way."""

    def __init__(self) -> None:
        self._idle = asyncio.Event()
        self._idle.set()
        self._open = asyncio.Event()
        self._open.set()
        self._end: asyncio.TimerHandle | None = None

    @property
    def lasts(self) -> bool:
        """Whether no part may begin now."""
        return not self._open.is_set()

    async def enter(self) -> None:
        """A part is about to begin: returns when no pause lasts. `leave` follows."""
        await self._open.wait()
        self._idle.clear()

    def leave(self) -> None:
        """The part is in the archive, or has failed."""
        self._idle.set()

    async def begin(self, seconds: float) -> None:
        """No part begins for so long from now on. Returns when none is under way, after that time
        at the latest.
        """
        if self._end is not None:
            self._end.cancel()
        self._open.clear()
        self._end = asyncio.get_running_loop().call_later(seconds, self._open.set)
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return
