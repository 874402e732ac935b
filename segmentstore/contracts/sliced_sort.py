"""Sorting much of what a loop owns, without keeping others of the loop waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from heapq import merge
from typing import Any, TypeVar

T = TypeVar("T")


async def sorted_in_slices(slices: Iterable[list[T]]) -> Iterator[T]:
    """All items of the slices, in order. Each slice is made, and sorted in place, in a turn of its
    own.

    O(n log n) in all; then O(log slices) for each item.
    """
    runs: list[Any] = []
    for one in slices:
        if runs:
            await asyncio.sleep(0)
        one.sort()
        runs.append(one)
    return merge(*runs)
