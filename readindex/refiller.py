"""Refiller: un-flushed bytes that left memory and cache come back from Tier 1, by one rescan for all (loop).

A reader that misses bytes registers a *want*. At most one rescan of the log runs at a time; it serves
the wants registered before it began. Bytes the rescan brings go to every want they answer directly, so a
reader gets on even when memory has no room to keep them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from segmentstore.contracts.errors import ContainerStoppedError


class _Want:
    """A reader's missing range and what has come of it: `data` holds bytes from `offset` on, without a hole."""

    __slots__ = ("data", "future", "length", "offset", "segment_id")

    def __init__(self, segment_id: int, offset: int, length: int) -> None:
        self.segment_id = segment_id
        self.offset = offset
        self.length = length
        self.data = bytearray()
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Refiller:
    """Rescans for one container. `refill(segment_id)` rescans; the container answers it with `offer`."""

    def __init__(self, refill: Callable[[int], Awaitable[None]], container_id: int) -> None:
        self._refill = refill
        self._container_id = container_id
        self._waiting: list[_Want] = []
        self._served: list[_Want] = []
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.refills = 0

    async def want(self, segment_id: int, offset: int, length: int) -> bytes:
        """Bytes from `offset`, at most `length`, as a rescan that begins after this call finds them; b"" if it does not.

        Raises what the rescan raised, ContainerStoppedError when closed.
        """
        if self._closed:
            raise ContainerStoppedError(self._container_id)
        want = _Want(segment_id, offset, length)
        self._waiting.append(want)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="read index refill")
        await want.future
        return bytes(want.data)

    def offer(self, segment_id: int, offset: int, data: bytes) -> None:
        """Bytes a rescan found. In order of offset for one segment, or a want gets only the first of them."""
        for want in (*self._served, *self._waiting):
            position = want.offset + len(want.data)
            if want.segment_id == segment_id and offset <= position < offset + len(data):
                missing = want.length - len(want.data)
                want.data += data[position - offset : position - offset + missing]

    async def close(self) -> None:
        """Stop; who waits gets ContainerStoppedError."""
        self._closed = True
        self._resolve([*self._served, *self._waiting], ContainerStoppedError(self._container_id))
        self._waiting.clear()
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _run(self) -> None:
        try:
            while self._waiting:
                self._served, self._waiting = self._waiting, []
                await self._serve(self._served)
        finally:
            self._task = None
            self._served = []

    async def _serve(self, wants: list[_Want]) -> None:
        asked: set[int] = set()
        try:
            for want in wants:
                # The first rescan usually serves all; one that looked at a single segment is asked again for the next.
                if not want.data and not want.future.done() and want.segment_id not in asked:
                    asked.add(want.segment_id)
                    self.refills += 1
                    await self._refill(want.segment_id)
        except asyncio.CancelledError:
            self._resolve(wants, ContainerStoppedError(self._container_id))
            raise
        except Exception as error:  # noqa: BLE001 -- handed on, whatever it is: a reader must not wait for ever
            self._resolve(wants, error)
        else:
            self._resolve(wants, None)

    @staticmethod
    def _resolve(wants: list[_Want], error: Exception | None) -> None:
        for want in wants:
            if want.future.done():
                continue
            if error is None:
                want.future.set_result(None)
            else:
                want.future.set_exception(error)
                # Its reader may have been cancelled: then there is nobody to hear of it.
                want.future.exception()
