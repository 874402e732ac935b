"""The attributes of a segment that has many: pages of some, sorted by id.

Rules of this file:

- a page that was handed out (`freeze`) never changes: a change puts a copy in its place. So pages
  can be encoded in a thread, and what was encoded is true of its page for ever;
- a page begins at its start (the first at the lowest id) and ends where the next one begins. Its
  start stays while its attributes come and go;
- no page is empty, none has more than the largest number, and two neighbours together have more
  than half of it.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from itertools import pairwise
from operator import itemgetter

from segmentstore.contracts.attributes import ATTRIBUTE_UNSET, AttributeKey

_key_of = itemgetter(0)


class AttributePage:
    """Some attributes of a segment, neighbours by id."""

    __slots__ = ("encoded", "frozen", "values")

    def __init__(self, values: dict[AttributeKey, int]) -> None:
        self.values = values
        """In no order."""
        self.frozen = False
        """Handed out: it never changes again."""
        self.encoded: bytes | None = None
        """As a checkpoint holds it, kept by the checkpoint codec; of a frozen page alone."""

    def items(self) -> list[tuple[AttributeKey, int]]:
        """In order of id. O(n log n)."""
        values = self.values
        return [(key, values[key]) for key in sorted(values)]


class AttributePages:
    """All attributes of one segment. A look-up, a change: O(log attributes)."""

    __slots__ = ("_length", "_page_max", "_pages", "_starts")

    def __init__(self, values: Mapping[AttributeKey, int], page_max: int) -> None:
        """The pages of these attributes, at least one, with some room in each."""
        keys = sorted(values)
        count = max(1, -(-len(keys) // max(1, page_max * 3 // 4)))
        bounds = [len(keys) * number // count for number in range(count + 1)]
        self._page_max = page_max
        self._pages = [
            AttributePage({key: values[key] for key in keys[low:high]})
            for low, high in pairwise(bounds)
        ]
        self._starts: list[AttributeKey] = [b"", *(keys[low] for low in bounds[1:-1])]
        self._length = len(keys)

    def __len__(self) -> int:
        return self._length

    @property
    def count(self) -> int:
        """The number of pages."""
        return len(self._pages)

    def get(self, key: AttributeKey, /) -> int | None:
        """The value of an attribute; None if it is not there."""
        return self._pages[bisect_right(self._starts, key) - 1].values.get(key)

    def items(
        self, start: AttributeKey = b"", *, exclusive: bool = False
    ) -> Iterator[tuple[AttributeKey, int]]:
        """The attributes from `start` on (`exclusive`: behind it), in order of id.

        A page is sorted when it is reached. Nothing may change meanwhile.
        """
        first = bisect_right(self._starts, start) - 1
        for index in range(first, len(self._pages)):
            items = self._pages[index].items()
            if index == first:
                cut = bisect_right if exclusive else bisect_left
                items = items[cut(items, start, key=_key_of) :]
            yield from items

    def apply(self, values: Mapping[AttributeKey, int]) -> None:
        """Make resolved values true: those of ATTRIBUTE_UNSET are removed."""
        pages, starts = self._pages, self._starts
        for key, value in values.items():
            index = bisect_right(starts, key) - 1
            page = pages[index]
            if page.frozen:
                page = pages[index] = AttributePage(page.values.copy())
            there = page.values
            before = len(there)
            if value == ATTRIBUTE_UNSET:
                there.pop(key, None)
            else:
                there[key] = value
            if len(there) != before:
                self._length += len(there) - before
                if len(there) > self._page_max:
                    self._split(index)
                elif len(there) < before:
                    self._join(index)

    def freeze(self) -> list[AttributePage]:
        """The pages, in order of id; from now on they never change. O(pages)."""
        for page in self._pages:
            page.frozen = True
        return self._pages.copy()

    def _split(self, index: int) -> None:
        values = self._pages[index].values
        keys = sorted(values)
        middle = len(keys) // 2
        self._pages[index : index + 1] = [
            AttributePage({key: values[key] for key in half})
            for half in (keys[:middle], keys[middle:])
        ]
        self._starts.insert(index + 1, keys[middle])

    def _join(self, index: int) -> None:
        """Join a page that has become smaller with a neighbour, if both are small or one empty."""
        for left in (index - 1, index):
            if 0 <= left < len(self._pages) - 1:
                one, two = self._pages[left : left + 2]
                if not one.values or not two.values:
                    joined = one if one.values else two
                elif len(one.values) + len(two.values) <= self._page_max // 2:
                    joined = AttributePage({**one.values, **two.values})
                else:
                    continue
                self._pages[left : left + 2] = [joined]
                del self._starts[left + 1]
                return
