"""AttributeTable: the committed attributes of one segment, by id.

Few attributes are one dict; many are pages (`attribute_pages.py`), so that a change, a step of an
iteration and a checkpoint touch the pages that they concern.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

from segmentstore.contracts.attribute_pages import AttributePage, AttributePages
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET, AttributeKey


class AttributeTable:
    """Attributes by id. Changed by the metadata updater alone, through `SegmentMetadata`."""

    __slots__ = ("_values",)

    PAGE_MAX: ClassVar[int] = 170
    """Attributes of one page at most; so many still are one dict. A dict takes the same memory for
    86 and for 170.
    """

    def __init__(self, values: Mapping[AttributeKey, int] | None = None) -> None:
        """A table of these values. O(n log n)."""
        self._values: dict[AttributeKey, int] | AttributePages
        if values is not None and len(values) > self.PAGE_MAX:
            self._values = AttributePages(values, self.PAGE_MAX)
        else:
            self._values = dict(values or {})

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AttributeTable):
            return NotImplemented
        return dict(self.items()) == dict(other.items())

    __hash__ = None  # type: ignore[assignment] # it changes

    def __repr__(self) -> str:
        return f"<AttributeTable of {len(self)}>"

    @property
    def paged(self) -> bool:
        """Whether there are so many that `pages` gives the same ones until they change."""
        return not isinstance(self._values, dict)

    def get(self, key: AttributeKey, /) -> int | None:
        """The value of an attribute; None if it is not there. O(log attributes)."""
        return self._values.get(key)

    def items(
        self, start: AttributeKey = b"", *, exclusive: bool = False
    ) -> Iterator[tuple[AttributeKey, int]]:
        """The attributes from `start` on (`exclusive`: behind it), in order of id.

        A caller that stops early has touched only the pages of what was given. The table may not
        change meanwhile.
        """
        values = self._values
        if isinstance(values, AttributePages):
            return values.items(start, exclusive=exclusive)
        return iter(
            [
                (key, values[key])
                for key in sorted(values)
                if key > start or (key == start and not exclusive)
            ]
        )

    def apply(self, values: Mapping[AttributeKey, int]) -> None:
        """Make resolved values true: those of ATTRIBUTE_UNSET are removed."""
        assert self is not NO_ATTRIBUTES
        there = self._values
        if isinstance(there, AttributePages):
            there.apply(values)
            if there.count == 1:
                self._values = dict(there.items())
            return
        there.update(values)
        if ATTRIBUTE_UNSET in values.values():
            for key, value in values.items():
                if value == ATTRIBUTE_UNSET:
                    del there[key]
        if len(there) > self.PAGE_MAX:
            self._values = AttributePages(there, self.PAGE_MAX)

    def pages(self) -> list[AttributePage]:
        """All attributes, in order of id; what is handed out never changes. O(pages)."""
        values = self._values
        if isinstance(values, AttributePages):
            return values.freeze()
        if not values:
            return []
        page = AttributePage(values.copy())
        page.frozen = True
        return [page]


NO_ATTRIBUTES: Final = AttributeTable()
"""Shared by all segments that have none."""
