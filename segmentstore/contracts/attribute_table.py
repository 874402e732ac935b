"""AttributeTable: the committed attributes of one segment, by id.

Few attributes are one dict; many are pages (`attribute_pages.py`), so that a change, a step of an
iteration and a checkpoint touch the pages that they concern.

A *partial* table knows some attributes (`partial_attributes.py`), and the catalog has all. Nothing
here loads one. What needs an attribute that is not known raises UnknownAttributeError and changes
nothing: the caller asks `knows` before, and has `learn` take the values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import ClassVar, Final, Self

from segmentstore.contracts.attribute_pages import AttributePage, AttributePages
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET, AttributeKey
from segmentstore.contracts.partial_attributes import PartialAttributes, UnknownAttributeError

__all__ = ["NO_ATTRIBUTES", "AttributeTable", "UnknownAttributeError"]


class AttributeTable:
    """Attributes by id. Changed by the metadata updater alone, through `SegmentMetadata`."""

    __slots__ = ("_values",)

    PAGE_MAX: ClassVar[int] = 170
    """Attributes of one page at most; so many still are one dict. A dict takes the same memory for
    86 and for 170.
    """

    def __init__(self, values: Mapping[AttributeKey, int] | None = None) -> None:
        """A table of these values. O(n log n)."""
        self._values: dict[AttributeKey, int] | AttributePages | PartialAttributes
        if values is not None and len(values) > self.PAGE_MAX:
            self._values = AttributePages(values, self.PAGE_MAX)
        else:
            self._values = dict(values or {})

    @classmethod
    def partial(cls, count: int) -> Self:
        """A table of `count` attributes of which none is known."""
        table = cls()
        table._values = PartialAttributes(count)
        return table

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
        return isinstance(self._values, AttributePages)

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
        values = self._whole()
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
        if type(there) is dict:
            there.update(values)
            if ATTRIBUTE_UNSET in values.values():
                for key, value in values.items():
                    if value == ATTRIBUTE_UNSET:
                        del there[key]
            if len(there) > self.PAGE_MAX:
                self._values = AttributePages(there, self.PAGE_MAX)
            return
        if isinstance(there, AttributePages):
            there.apply(values)
            if there.count == 1:
                self._values = dict(there.items())
            return
        assert isinstance(there, PartialAttributes)
        there.apply(values)

    def pages(self) -> list[AttributePage]:
        """All attributes, in order of id; what is handed out never changes. O(pages)."""
        values = self._whole()
        if isinstance(values, AttributePages):
            return values.freeze()
        if not values:
            return []
        page = AttributePage(values.copy())
        page.frozen = True
        return [page]

    # --- what is in memory ------------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Whether it knows all attributes. A partial table stays partial, whatever it learns."""
        return not isinstance(self._values, PartialAttributes)

    @property
    def known_count(self) -> int:
        """Attributes in memory, those included that are known not to be there. O(1)."""
        values = self._values
        return len(values.known if isinstance(values, PartialAttributes) else values)

    def knows(self, key: AttributeKey, /) -> bool:
        """Whether `get` gives the value, or None because there is none. O(1)."""
        values = self._values
        return not isinstance(values, PartialAttributes) or key in values.known

    def known(self) -> Iterator[tuple[AttributeKey, int | None]]:
        """The attributes in memory, in no order; None for those known not to be there.

        The table may not change meanwhile.
        """
        values = self._values
        return iter(
            values.known.items() if isinstance(values, PartialAttributes) else values.items()
        )

    def learn(self, values: Mapping[AttributeKey, int | None]) -> None:
        """Know these attributes as the catalog has them: None for those that it has not.

        What is known stays as it is: memory is newer. Raises ValueError, and learns nothing, if
        there would be more attributes than the table has.
        """
        there = self._values
        if isinstance(there, PartialAttributes):
            there.learn(values)

    def forget(self, keys: Iterable[AttributeKey]) -> None:
        """Have these in the catalog alone; those that are not known are passed over.

        Of a partial table: a whole one becomes partial by `make_partial`.
        """
        there = self._values
        assert isinstance(there, PartialAttributes), self
        there.forget(keys)

    def make_partial(self, keep: Collection[AttributeKey]) -> None:
        """Know only these from now on, as far as they are known, whether they are there or not."""
        assert self is not NO_ATTRIBUTES
        known = {key: self.get(key) for key in keep if self.knows(key)}
        partial = PartialAttributes(len(self))
        partial.learn(known)
        self._values = partial

    def _whole(self) -> dict[AttributeKey, int] | AttributePages:
        """All values; raises UnknownAttributeError if they are not all known."""
        values = self._values
        if isinstance(values, PartialAttributes):
            raise UnknownAttributeError(None)
        return values


NO_ATTRIBUTES: Final = AttributeTable()
"""Shared by all segments that have none."""
