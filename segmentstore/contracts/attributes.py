"""Attributes of a segment: a 128-bit id to a signed 64-bit value, and the five ways to update one.

Inside the engine an attribute id is its 16 bytes (`uuid.UUID.bytes`): hashing a UUID object costs
more than the rest of an append's bookkeeping. The door converts.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

AttributeKey = bytes
"""16 bytes: the big-endian form of the attribute's UUID."""

ATTRIBUTES_PER_SEGMENT_MAX: Final = 1_000_000
"""How many attributes a segment may have, unless a setting says otherwise."""
VALUE_MIN = -(2**63)
VALUE_MAX = 2**63 - 1
ATTRIBUTE_UNSET: Final = VALUE_MIN
"""Says "no value": as the value of an update it removes the attribute, as its expected value it
means that there is none. No attribute has it. (Pravega: `NULL_ATTRIBUTE_VALUE`.)
"""


class UpdateType(enum.IntEnum):
    """How an attribute update meets the value that is there.

    Pravega's names without the table types.
    """

    NONE = 1
    """Set, only if the attribute is absent."""
    REPLACE = 2
    """Set, whatever is there."""
    REPLACE_IF_GREATER = 3
    """Set, only if absent or the new value is greater than the one there."""
    ACCUMULATE = 4
    """Add to the value that is there; absent counts as 0."""
    REPLACE_IF_EQUALS = 5
    """Set, only if the value there equals `expected`; None or ATTRIBUTE_UNSET means absent."""


# In Python 3.11 the name of a member costs more than its use: here once, and not in each append.
_REPLACE: Final = UpdateType.REPLACE
_REPLACE_IF_GREATER: Final = UpdateType.REPLACE_IF_GREATER
_ACCUMULATE: Final = UpdateType.ACCUMULATE
_REPLACE_IF_EQUALS: Final = UpdateType.REPLACE_IF_EQUALS


class AttributeUpdate(NamedTuple):
    """One change of one attribute.

    `value` is signed 64-bit; ATTRIBUTE_UNSET removes the attribute. `expected` is
    checked by REPLACE_IF_EQUALS alone. A tuple: an exactly-once append makes several.
    """

    id: uuid.UUID
    type: UpdateType
    value: int
    expected: int | None = None


class AttributeConditionError(Exception):
    """Raised by `resolve_updates`; the metadata updater turns it into BadAttributeUpdateError with
    the name.
    """

    def __init__(self, key: AttributeKey, current: int | None, detail: str) -> None:
        super().__init__(detail)
        self.key = key
        self.current = current
        self.detail = detail


KeyedUpdate = tuple[AttributeKey, UpdateType, int, int | None]
"""(key, type, value, expected): an AttributeUpdate after the door, cheap to carry."""


def next_key(key: AttributeKey) -> AttributeKey | None:
    """The attribute id that follows; None: there is none."""
    number = int.from_bytes(key) + 1
    return None if number >> 128 else number.to_bytes(16)


class AttributeValues(Protocol):
    """Values by id: an AttributeTable, or a dict."""

    def get(self, key: AttributeKey, /) -> int | None:
        """The value of an attribute; None if it is not there."""


def resolve_updates(
    updates: Sequence[KeyedUpdate], current: AttributeValues, pending: AttributeValues
) -> tuple[dict[AttributeKey, int], int]:
    """The values the updates lead to, all or nothing, and how many attributes they add.

    Later updates of one call see earlier ones. `pending` holds values accepted but not yet durable
    and hides `current`. ATTRIBUTE_UNSET in `pending` and in the result means a removal, and
    the number is negative if more are removed than added. Raises
    AttributeConditionError at the first condition that does not hold.
    """
    result: dict[AttributeKey, int] = {}
    growth = 0
    for key, update_type, value, expected in updates:
        there = result.get(key) if result else None
        if there is None:
            there = pending.get(key)
            if there is None:
                there = current.get(key)
        if there == ATTRIBUTE_UNSET:
            there = None
        # In the loop, without a call for each: an exactly-once append comes through here.
        resolved, holds = value, True
        if update_type is _REPLACE_IF_EQUALS:
            holds = there == (None if expected == ATTRIBUTE_UNSET else expected)
        elif update_type is _ACCUMULATE:
            resolved = value + (there or 0)
            holds = ATTRIBUTE_UNSET < resolved <= VALUE_MAX
        elif update_type is _REPLACE_IF_GREATER:
            holds = there is None or value > there
        elif update_type is not _REPLACE:
            holds = there is None
        if not holds:
            raise AttributeConditionError(key, there, _unmet(update_type, value, expected))
        result[key] = resolved
        if there is None:
            if resolved != ATTRIBUTE_UNSET:
                growth += 1
        elif resolved == ATTRIBUTE_UNSET:
            growth -= 1
    return result, growth


def _unmet(update_type: UpdateType, value: int, expected: int | None) -> str:
    """What is said of a condition that does not hold."""
    if update_type is _REPLACE_IF_EQUALS:
        return f"expected {expected}"
    if update_type is _ACCUMULATE:
        return f"adding {value} leaves the range of values"
    if update_type is _REPLACE_IF_GREATER:
        return f"{value} is not greater"
    return "already has a value"
