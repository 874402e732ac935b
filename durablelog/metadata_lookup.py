"""MetadataLookup: brings into memory what queued requests need, while their queue waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from durablelog.metadata_needs import Need
from segmentstore.contracts.owned_tasks import own_task

Learn = Callable[[Sequence[Need]], Awaitable[None]]
"""Has memory know what is needed; raises what stands in the way."""


class MetadataLookup:
    """One at a time. `on_known()` is called in the turn of the loop in which all is known, so that
    nothing of it has left memory again.
    """

    def __init__(
        self,
        learn: Learn | None,
        on_known: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Without `learn` all metadata are in memory always."""
        self._learn = learn
        self._on_known = on_known
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self.lookups = 0
        """Begun so far."""

    @property
    def in_progress(self) -> bool:
        """Whether the queue has to wait."""
        return self._task is not None

    def begin(self, needs: Sequence[Need]) -> None:
        """Bring what is needed, of which there is something."""
        assert needs, "a queue waits, and nothing is missing"
        assert self._learn is not None, needs
        assert self._task is None, needs
        self.lookups += 1
        self._task = own_task(
            self._run(self._learn, needs), name="metadata lookup", on_failure=self._failed
        )

    def stop(self) -> None:
        """No caller waits for it any more."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self, learn: Learn, needs: Sequence[Need]) -> None:
        await learn(needs)
        self._task = None
        if not self._stopped:
            self._on_known()

    def _failed(self, error: BaseException) -> None:
        if not self._stopped:
            self._on_failure(error)
