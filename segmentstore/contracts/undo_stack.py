"""What undoes the steps of something that was opened, last step first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable


class UndoStack:
    """Steps push what undoes them; `unwind` runs it in reverse, past a failure.

    `contextlib.AsyncExitStack` goes on after GeneratorExit, too: of a task that is destroyed with
    its event loop it would run what is left, with no loop to await it.
    """

    def __init__(self) -> None:
        self._undos: list[Callable[[], Awaitable[object]]] = []

    def push(self, undo: Callable[[], Awaitable[object]]) -> None:
        """Add a step; `undo` undoes it."""
        self._undos.append(undo)

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
