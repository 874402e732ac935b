"""What undoes the steps of something that was opened, last step first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress


class UndoStack:
    """Steps push what undoes them; `unwind` runs it in reverse, past a failure.

    `contextlib.AsyncExitStack` goes on after GeneratorExit, too: of a task that is destroyed with
    its event loop it would run what is left, with no loop to await it.
    """

    def __init__(self) -> None:
        self._undos: list[Callable[[], Awaitable[object]]] = []
        self._abandons: list[Callable[[], object]] = []

    def push(
        self,
        undo: Callable[[], Awaitable[object]],
        *,
        abandon: Callable[[], object] | None = None,
    ) -> None:
        """Add a step; `undo` undoes it. `abandon` releases what keeps others out, without
        awaiting; idempotent, and may raise OSError.
        """
        self._undos.append(undo)
        if abandon is not None:
            self._abandons.append(abandon)

    def abandon(self) -> None:
        """Release what can be released once the event loop is closed, last step first. Idempotent;
        from any thread.
        """
        for abandon in reversed(self._abandons):
            with suppress(OSError):
                abandon()

    async def unwind(self) -> None:
        """Undo all steps; each is undone once. Raises the first failure, when all is done."""
        failure: BaseException | None = None
        while self._undos:
            try:
                await self._undos.pop()()
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - raised below
                failure = failure or error
        if failure is not None:
            raise failure
