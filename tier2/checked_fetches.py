"""What fails its checks is fetched anew, so that one wrong answer decides nothing.

A bit may change on the way, where no checksum of the connection shows it. What is damaged in the
storage fails each time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tier2.block_reader import FETCHES_MAX

_T = TypeVar("_T")


async def fetch_checked(fetch: Callable[[], Awaitable[_T]], *failed: type[Exception]) -> _T:
    """What `fetch` gives, which fetches and checks; FETCHES_MAX times in all while it raises one of
    `failed`, the last of which is raised.
    """
    for _ in range(FETCHES_MAX - 1):
        try:
            return await fetch()
        except failed:
            pass
    return await fetch()
