"""Waiting that a cancellation does not cut short: for work that must come to its end before its
caller goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from segmentstore.contracts.owned_tasks import own_task

T = TypeVar("T")

_ACCEPT_TURNS: Final = 4
"""Turns of the event loop from the acceptance of a connection to its callback."""


async def outlast(future: asyncio.Future[Any]) -> bool:
    """Wait until `future` is done, however often the waiting task is cancelled meanwhile; True if
    it was.

    The caller decides what its own cancellation means, which was only kept back: it raises
    CancelledError in the end. The outcome of the future is left in the future.
    """
    cancelled = False
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError:
            cancelled = True
    return cancelled


def note_end(future: asyncio.Future[Any]) -> None:
    """For `add_done_callback`: how it ended was noted, though its caller may have been cancelled.

    Else asyncio reports its error as never retrieved: `shield` forgets a future whose caller is
    cancelled.
    """
    if not future.cancelled():
        future.exception()


async def open_or_release(
    opening: Coroutine[Any, Any, T], release: Callable[[T], Coroutine[Any, Any, object]], name: str
) -> T:
    """What `opening` gives.

    Cancelled, it ends with nothing left open, however often it is cancelled.

    `opening` runs in a task of its own, which is cancelled once; it releases what it had opened so
    far. What it gives all the same goes to `release`. The cancellation is raised when that is over.
    """
    task = own_task(opening, name=name)
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        task.cancel()
        await outlast(task)
        if not task.cancelled() and task.exception() is None:
            releasing = own_task(release(task.result()), name=f"{name}: release")
            await outlast(releasing)
            if not releasing.cancelled():
                releasing.exception()  # what matters to the caller is the cancellation
        raise
    return task.result()


async def stop_accepting(server: asyncio.Server) -> None:
    """Close it, when each connection that was accepted has reached its callback.

    asyncio forgets the socket of a connection whose server is closed before its transport is made.
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener)
    for _ in range(_ACCEPT_TURNS):
        await asyncio.sleep(0)
    server.close()
