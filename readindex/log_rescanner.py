"""LogRescanner: un-flushed bytes that left memory and cache come back from Tier 1, by one rescan
for all (loop).

A reader that misses bytes registers a *want*: a read one, an upload one for each gap in its blocks,
all before it waits. At most one rescan of the log runs at a time. Bytes it brings go to every want
they answer directly, so all get on even when memory has no room to keep the bytes. A want is
answered as soon as it is whole. A rescan that is under way serves it when it has not passed its
beginning yet; else the next one does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from segmentstore.contracts.errors import ContainerStoppedError
from segmentstore.contracts.owned_tasks import own_task


class Want:
    """A missing range and what has come of it: `pieces` hold the bytes from `offset` to `position`,
    without a hole.

    `future` ends when the range is whole, or when a rescan that began after the want was registered
    is over.
    """

    __slots__ = ("end_offset", "future", "keep", "offset", "pieces", "position", "segment_id")

    def __init__(self, segment_id: int, offset: int, length: int, *, keep: bool) -> None:
        self.segment_id = segment_id
        self.offset = self.position = offset
        self.end_offset = offset + length
        self.keep = keep
        """Others may want the bytes too, so they should also be kept; False: they are on their way
        to Tier 2.
        """
        self.pieces: list[bytes] = []
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class LogRescanner:
    """Rescans for one container.

    `refill(wanted)` rescans once for all; the container answers it with `offer`.

    `wanted` has the segments that are waited for, each with how many bytes of it are taken without
    being kept.
    """

    def __init__(
        self, refill: Callable[[Mapping[int, int]], Awaitable[None]], container_id: int
    ) -> None:
        self._refill = refill
        self._container_id = container_id
        self._waiting: list[Want] = []
        self._served: list[Want] = []
        self._by_segment: dict[int, list[Want]] = {}
        """All wants that are not answered yet."""
        self._asking = 0
        self._asked = asyncio.Event()
        self._asked.set()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.refills = 0

    async def want(self, segment_id: int, offset: int, length: int) -> bytes:
        """Bytes from `offset`, at most `length`, as a rescan finds them; b"" if one that began
        after this call does not.

        Raises what the rescan raised, ContainerStoppedError when closed.
        """
        want = self.register(segment_id, offset, length, keep=True)
        try:
            await want.future
        finally:
            self.abandon((want,))
        return want.pieces[0] if len(want.pieces) == 1 else b"".join(want.pieces)

    def register(self, segment_id: int, offset: int, length: int, *, keep: bool) -> Want:
        """Ask for a range, and see to a rescan.

        The caller awaits the want's future, and abandons it in the end.
        """
        if self._closed:
            raise ContainerStoppedError(self._container_id)
        want = Want(segment_id, offset, length, keep=keep)
        self._waiting.append(want)
        self._by_segment.setdefault(segment_id, []).append(want)
        if self._task is None:
            self._task = own_task(self._run(), name="read index refill")
        return want

    @contextmanager
    def asking(self) -> Iterator[None]:
        """While a caller registers wants over several turns of the loop, no rescan begins: it would
        miss the rest.
        """
        self._asking += 1
        self._asked.clear()
        try:
            yield
        finally:
            self._asking -= 1
            if not self._asking:
                self._asked.set()

    def abandon(self, wants: Iterable[Want]) -> None:
        """No caller waits for these any more."""
        for want in wants:
            # A caller that was cancelled while waiting has cancelled the future with it.
            want.future.cancel()
            self._strike(want)

    def offer(self, segment_id: int, offset: int, data: bytes) -> bool:
        """Bytes a rescan found, in order of offset for each segment.

        True if a want took all of them and they need not be kept.
        """
        taken = False
        end_offset = offset + len(data)
        for want in tuple(self._by_segment.get(segment_id, ())):
            # A cancelled caller abandons its want only when it gets its turn.
            if want.future.done() or not offset <= want.position < end_offset:
                continue
            start, end = want.position, min(end_offset, want.end_offset)
            whole = end - start == len(data)
            want.pieces.append(data if whole else data[start - offset : end - offset])
            want.position = end
            taken |= whole and not want.keep
            if end == want.end_offset:
                want.future.set_result(None)
                self._strike(want)
        return taken

    @property
    def answered(self) -> bool:
        """True when a rescan has nothing left to find for those it was begun for."""
        return all(want.future.done() for want in self._served)

    @property
    def in_vain(self) -> bool:
        """True if there is a want for which the rescan has found nothing at all."""
        return any(not want.pieces and not want.future.done() for want in self._served)

    async def close(self) -> None:
        """Stop; waiting reads get ContainerStoppedError."""
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
                await self._asked.wait()
                self._served, self._waiting = self._waiting, []
                await self._serve([want for want in self._served if not want.future.done()])
        finally:
            self._task = None
            self._served = []

    async def _serve(self, wants: list[Want]) -> None:
        if not wants:
            return
        wanted: dict[int, int] = {}
        for want in wants:
            taken = 0 if want.keep else want.end_offset - want.offset
            wanted[want.segment_id] = wanted.get(want.segment_id, 0) + taken
        self.refills += 1
        try:
            await self._refill(wanted)
        except asyncio.CancelledError:
            self._resolve(wants, ContainerStoppedError(self._container_id))
            raise
        except Exception as error:  # noqa: BLE001
            # Handed on, whatever it is: a reader must not wait for ever.
            self._resolve(wants, error)
        else:
            self._resolve(wants, None)

    def _resolve(self, wants: list[Want], error: Exception | None) -> None:
        for want in wants:
            if want.future.done():
                continue
            self._strike(want)
            if error is None:
                want.future.set_result(None)
            else:
                want.future.set_exception(error)
                # Its reader may have been cancelled: then no caller receives it.
                want.future.exception()

    def _strike(self, want: Want) -> None:
        wants = self._by_segment.get(want.segment_id)
        if wants is not None and want in wants:
            wants.remove(want)
            if not wants:
                del self._by_segment[want.segment_id]
