"""Spiller: the one background flow that moves extents from memory into the cache (loop).

Of what the log can give back, some is left to it in each turn. Memory of the rest is released only
after the cache said True. When it said False, nothing is tried for
`spill_retry_s`; meanwhile the tail may grow to its hard bound, where TailMemory drops instead. A
producer that brings bytes faster than they are spilled waits, batch by batch (`step`): replay and
rescans here, writers by the throttle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from readindex.cache_manager import CacheManager
from readindex.cached_blocks import CachedBlocks
from readindex.config import ReadIndexConfig
from readindex.tail_memory import HARD_BOUND
from segmentstore.contracts.owned_tasks import own_task


def _nothing() -> None:
    pass


class Spiller:
    """Keeps the tail of `cache_manager` at its bound.

    `on_spilled()` is called after each batch: there is room again.
    """

    def __init__(
        self,
        cache_manager: CacheManager,
        cached: CachedBlocks,
        config: ReadIndexConfig,
        on_spilled: Callable[[], None] = _nothing,
    ) -> None:
        self._cache_manager = cache_manager
        self._cached = cached
        self._config = config
        self._task: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._step: asyncio.Future[None] | None = None
        """Ends with the batch on its way."""
        self._closed = False
        self._on_spilled = on_spilled
        self.trim_at = config.tail_bytes_max
        """Tail bytes above which appends call `trim`; more while that cannot help."""

    @property
    def refused(self) -> bool:
        """True while the cache has refused the last spill."""
        return self._retry is not None

    def trim(self) -> None:
        """Drop what may go and begin to spill the rest.

        Called above `trim_at`, on the event loop.
        """
        if (
            self._cache_manager.trim()
            and self._task is None
            and self._retry is None
            and not self._closed
        ):
            self._task = own_task(self._run(), name="read index spill")
            self._set_trim_at()

    async def wait_idle(self) -> None:
        """Wait until nothing is being spilled."""
        while self._task is not None:
            await asyncio.wait({self._task})

    async def step(self) -> bool:
        """Wait until one batch more has been dealt with; False at once if none is on its way, nor
        can be.
        """
        self.trim()
        if self._task is None:
            return False
        if self._step is None:
            self._step = asyncio.get_running_loop().create_future()
        # Others wait for the same batch.
        await asyncio.shield(self._step)
        return True

    async def close(self) -> None:
        """Stop; what was on its way may or may not be in the cache, which is not read any more."""
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            # One that had not begun yet reports nothing.
            self._end_step()

    async def _run(self) -> None:
        try:
            while self._cache_manager.trim():
                items = self._cache_manager.take_batch()
                if not items:
                    await asyncio.sleep(0)
                    self._end_step()
                    continue
                if await self._cached.insert(items):
                    self._cache_manager.spilled(items)
                    self._end_step()
                    continue
                self._cache_manager.spill_refused(items)
                if not self._closed:
                    loop = asyncio.get_running_loop()
                    self._retry = loop.call_later(self._config.spill_retry_s, self._try_again)
                break
        finally:
            self._task = None
            self._set_trim_at()
            self._end_step()

    def _end_step(self) -> None:
        step, self._step = self._step, None
        if step is not None and not step.done():
            step.set_result(None)
        self._on_spilled()

    def _try_again(self) -> None:
        self._retry = None
        self._set_trim_at()
        self.trim()

    def _set_trim_at(self) -> None:
        bound = self._config.tail_bytes_max
        waiting = self._task is not None or self._retry is not None
        self.trim_at = HARD_BOUND * bound if waiting else bound
