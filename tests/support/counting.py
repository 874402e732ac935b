"""Containers that count how many of their items are touched: that distinguishes linear from
quadratic without a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex, TypeVar

T = TypeVar("T")
K = TypeVar("K")


class CountingList(list[T]):
    """A list; `touched` grows by each item that is checked."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        super().__init__(items)
        self.touched = 0

    def __iter__(self) -> Iterator[T]:
        for item in super().__iter__():
            self.touched += 1
            yield item

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        self.touched += 1
        return super().__getitem__(index)


class CountingDict(dict[K, T]):
    """A dictionary; `touched` grows by each key that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.touched = 0

    def __contains__(self, key: object) -> bool:
        self.touched += 1
        return super().__contains__(key)

    def __getitem__(self, key: K) -> T:
        self.touched += 1
        return super().__getitem__(key)

    def get(self, key: K, default: Any = None) -> Any:
        self.touched += 1
        return super().get(key, default)
