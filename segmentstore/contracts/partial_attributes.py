"""Some of a segment's attributes: those in memory, while the catalog has all of them.

An attribute is known with its value, known not to be there, or unknown. The number of all
attributes is known always.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from segmentstore.contracts.attributes import ATTRIBUTE_UNSET, AttributeKey


class UnknownAttributeError(LookupError):
    """An attribute was needed that is not in memory, and may be in the catalog: an error of the
    caller.
    """

    def __init__(self, key: AttributeKey | None) -> None:
        which = "all attributes" if key is None else f"attribute {key.hex()}"
        super().__init__(f"not in memory: {which}")
        self.key = key
        """None if all were needed."""


class KnownAttributes(dict[AttributeKey, int | None]):
    """Values by id, None where there is no attribute; an unknown one is an error."""

    __slots__ = ()

    def __missing__(self, key: AttributeKey) -> int | None:
        raise UnknownAttributeError(key)


class PartialAttributes:
    """The known ones of `len()` attributes."""

    __slots__ = ("_count", "_present", "get", "known")

    def __init__(self, count: int) -> None:
        """None is known yet."""
        self.known = KnownAttributes()
        self.get: Callable[[AttributeKey], int | None] = self.known.__getitem__
        """Raises UnknownAttributeError. It is the dictionary's own, and as fast."""
        self._count = count
        self._present = 0
        """Known with a value."""

    def __len__(self) -> int:
        return self._count

    def apply(self, values: Mapping[AttributeKey, int]) -> None:
        """Make resolved values true: those of ATTRIBUTE_UNSET are removed.

        Raises UnknownAttributeError, and changes nothing, if one is not known.
        """
        known = self.known
        for key in values:
            if key not in known:
                raise UnknownAttributeError(key)
        for key, value in values.items():
            after = None if value == ATTRIBUTE_UNSET else value
            growth = (known[key] is None) - (after is None)
            known[key] = after
            if growth:
                self._count += growth
                self._present += growth

    def learn(self, values: Mapping[AttributeKey, int | None]) -> None:
        """Know these as well; what is known stays as it is.

        Raises ValueError, and learns nothing, if there would be more than there are.
        """
        known = self.known
        news = {key: value for key, value in values.items() if key not in known}
        present = self._present + sum(value is not None for value in news.values())
        if present > self._count or ATTRIBUTE_UNSET in news.values():
            raise ValueError(f"{present} of {self._count} attributes are there: {news}")
        known.update(news)
        self._present = present

    def forget(self, keys: Iterable[AttributeKey]) -> None:
        """Know these no more; those that are not known are passed over."""
        for key in keys:
            if key in self.known:
                self._present -= self.known.pop(key) is not None
