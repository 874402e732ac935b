"""How a command opens a store, and how it stops: every command that changes or reads one goes through here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import segmentstore
from segmentstore.config import FILE_NAME
from segmentstore.contracts.errors import NotAStoreError

if TYPE_CHECKING:
    from segmentstore import SegmentStore

T = TypeVar("T")

CACHE_FOLDER = "cache"
"""Throw-away: may be removed while the store is stopped."""


def require_store(location: str) -> None:
    """Raise NotAStoreError unless `location` is a store: a command that looks must not make one by looking."""
    if not Path(location).is_dir():
        raise NotAStoreError(location, "there is no such folder")
    if not (Path(location) / FILE_NAME).is_file():
        raise NotAStoreError(location, f"it has no {FILE_NAME}")


def with_store(
    location: str,
    action: Callable[[SegmentStore], Awaitable[T]],
    *,
    create: bool = False,
    **options: Any,
) -> T:
    """Open the store, run `action` on it, close it; what `action` gave is the result.

    `create` makes a store that is not there. Ctrl-C cancels the action, closes the store and raises KeyboardInterrupt.
    """
    if not create:
        require_store(location)

    async def opened() -> T:
        async with segmentstore.open(location, **options) as store:
            return await action(store)

    return run(opened())


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a fresh event loop."""
    return asyncio.run(work)
