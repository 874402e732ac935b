"""Tasks of the engine. Each has an owner, which alone can cancel it.

Programs end an event loop by cancelling `asyncio.all_tasks()`; `asyncio.run` does so when its main
coroutine returns. A task of the engine that is cut off in the middle of a flush, a rollover or a
close leaves its waiters without an answer. So tasks made here are not in that set: only their owner
has them, and it ends them in its own order. `asyncio.current_task()`, `asyncio.timeout` and task
groups work in them as in any task. Their steps are timed (contracts/loop_turns.py).

What a program sees instead is one task for each open store, which closes the store when it is
cancelled (segmentstore/cancellation_watch.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, TypeVar
from weakref import WeakSet

from segmentstore.contracts.loop_turns import timed_steps

T = TypeVar("T")

_owned: WeakSet[asyncio.Task[Any]] = WeakSet()


def own_task(
    work: Coroutine[Any, Any, T],
    *,
    name: str,
    on_failure: Callable[[BaseException], None] | None = None,
) -> asyncio.Task[T]:
    """Begin `work` on the running loop, in a task that `asyncio.all_tasks()` does not list.

    The caller keeps it.

    `on_failure` is called on the loop with the exception that ended the task, or with
    CancelledError. The owner may have cancelled it: that the owner knows itself. Without
    `on_failure` the owner checks the task.
    """
    loop = asyncio.get_running_loop()
    task = _hidden(loop.create_task(timed_steps(work, name, loop), name=name))
    if on_failure is not None:
        task.add_done_callback(lambda ended: _report(ended, on_failure))
    return task


async def gather_owned(*works: Coroutine[Any, Any, T], name: str) -> list[T]:
    """`asyncio.gather` of coroutines, each in a task of its own.

    Raises the first exception; the others go on.
    """
    return await asyncio.gather(*(own_task(work, name=name) for work in works))


async def gather_outcomes(*works: Coroutine[Any, Any, T], name: str) -> list[T | BaseException]:
    """`asyncio.gather(..., return_exceptions=True)` of coroutines, each in a task of its own."""
    return await asyncio.gather(
        *(own_task(work, name=name) for work in works), return_exceptions=True
    )


class OwnedTaskGroup(asyncio.TaskGroup):
    """A task group whose tasks `asyncio.all_tasks()` does not list."""

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Begin a task of the group; without a name it has the function's."""
        name = str(name or getattr(coro, "__qualname__", "task of a group"))
        loop = asyncio.get_running_loop()
        work = timed_steps(coro, name, loop) if isinstance(coro, Coroutine) else coro
        return _hidden(super().create_task(work, name=name, context=context))


def owned_tasks() -> set[asyncio.Task[Any]]:
    """The engine's tasks on the running loop that have not ended.

    For tests and for a person with a debugger.
    """
    loop = asyncio.get_running_loop()
    return {task for task in _owned if not task.done() and task.get_loop() is loop}


def _hidden(task: asyncio.Task[T]) -> asyncio.Task[T]:
    # asyncio documents this call for makers of tasks ("Extending", Task lifetime support).
    asyncio.tasks._unregister_task(task)  # noqa: SLF001
    _owned.add(task)
    return task


def _report(ended: asyncio.Task[Any], on_failure: Callable[[BaseException], None]) -> None:
    if ended.cancelled():
        on_failure(asyncio.CancelledError(f"the task {ended.get_name()} was cancelled"))
    elif (error := ended.exception()) is not None:
        on_failure(error)
