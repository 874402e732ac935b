"""PendingSegment: a segment as it will be once all that was accepted is acknowledged. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from segmentstore.contracts.attribute_table import NO_ATTRIBUTES
from segmentstore.contracts.attributes import (
    ATTRIBUTE_UNSET,
    VALUE_MAX,
    AttributeConditionError,
    AttributeKey,
    KeyedUpdate,
    UpdateType,
    resolve_updates,
)
from segmentstore.contracts.errors import BadAttributeUpdateError
from segmentstore.contracts.metadata import SegmentMetadata

_REPLACE: Final = UpdateType.REPLACE
_ACCUMULATE: Final = UpdateType.ACCUMULATE
_REPLACE_IF_EQUALS: Final = UpdateType.REPLACE_IF_EQUALS


class EventSession:
    """Of an exactly-once writer: one event that is refused ends it.

    Events of a later number would hide from the writer that this one is missing.
    """

    __slots__ = ("refusal",)

    def __init__(self) -> None:
        self.refusal: BaseException | None = None
        """Why an event was refused; all behind it are refused for that."""


Event = tuple[AttributeKey, int, EventSession]
"""(writer's attribute, event number, session) of an exactly-once append: dropped, not refused, if
the number is not above.
"""


class PendingSegment:
    """A segment as it will be once everything accepted is acknowledged."""

    __slots__ = (
        "attribute_count",
        "attributes",
        "base",
        "group_attributes",
        "group_offset",
        "in_flight",
        "length",
        "name",
        "parts",
        "removed",
        "sealed",
        "segment_id",
        "start_offset",
    )

    def __init__(self, segment_id: int, name: str, base: SegmentMetadata | None) -> None:
        self.segment_id = segment_id
        self.name = name
        self.base = base
        """The committed record; None while the creation itself is pending."""
        if base is None:
            self.start_offset = self.length = 0
            self.sealed = self.removed = False
            self.attribute_count = 0
        else:
            self.start_offset = base.start_offset
            self.length = base.length
            self.sealed = base.sealed
            self.removed = base.merged_into is not None
            """Deleted or merged away."""
            self.attribute_count = len(base.attributes)
            """As it will be; not kept in replay, which has no bound."""
        self.attributes: dict[AttributeKey, int] = {}
        """Values accepted and not yet committed, ATTRIBUTE_UNSET for a removal; they hide the
        committed ones.
        """
        self.in_flight = 0
        """Operations accepted and not yet committed."""
        self.parts: list[bytes] | None = None
        """Appends gathered for the frame being packed, from `group_offset` on, with
        `group_attributes` (the packer's).
        """
        self.group_offset = 0
        self.group_attributes: dict[AttributeKey, int] | None = None

    @property
    def idle(self) -> bool:
        """True if this view says what the committed record says."""
        return not self.in_flight and self.parts is None

    def resolve(self, updates: Sequence[KeyedUpdate]) -> tuple[dict[AttributeKey, int], int]:
        """The values `updates` lead to on top of what is pending, and how many they add.

        Raises BadAttributeUpdateError.
        """
        try:
            return resolve_updates(
                updates, self.base.attributes if self.base else NO_ATTRIBUTES, self.attributes
            )
        except AttributeConditionError as error:
            raise BadAttributeUpdateError(
                self.name, UUID(bytes=error.key), error.current, error.detail
            ) from None

    def take(self, attributes: dict[AttributeKey, int] | None, growth: int) -> None:
        """Add accepted values to what is pending."""
        if attributes:
            self.attributes.update(attributes)
            self.attribute_count += growth

    # --- the common case --------------------------------------------------------------------------

    def take_next_event(self, event: Event) -> bool:
        """Take the number of an event that comes behind one of its writer on its way.

        False: it may not, and nothing was changed; `FramePacker` finds out what becomes of it.
        """
        key, number, session = event
        before = self.attributes.get(key)
        if before is None or not ATTRIBUTE_UNSET < before < number or session.refusal is not None:
            return False
        self.attributes[key] = number
        if self.group_attributes is None:
            self.group_attributes = {key: number}
        else:
            self.group_attributes[key] = number
        return True

    def take_next_number(self, updates: Sequence[KeyedUpdate]) -> bool:
        """Take a writer's number and a count of events, as `resolve` does, if both have values on
        their way. Then they add no attribute.

        False: another kind of updates, or a condition that may not hold; nothing was changed.
        """
        attributes = self.attributes
        try:
            (key, kind, number, expected), (count_key, count_kind, added, _) = updates
            before, count = attributes[key], attributes[count_key]
        except (KeyError, ValueError):
            return False
        if kind is _REPLACE_IF_EQUALS:
            if before != expected:
                return False
        elif kind is not _REPLACE:
            return False
        if (
            not before > ATTRIBUTE_UNSET < number
            or count == ATTRIBUTE_UNSET
            or count_kind is not _ACCUMULATE
            or key == count_key
        ):
            return False
        count += added
        if not ATTRIBUTE_UNSET < count <= VALUE_MAX:
            return False
        attributes[key] = number
        attributes[count_key] = count
        group = self.group_attributes
        if group is None:
            self.group_attributes = {key: number, count_key: count}
        else:
            group[key] = number
            group[count_key] = count
        return True
