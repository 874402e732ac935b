"""The store as a plain model: what each call of the public API must do, without any engine.

Each method changes the model and returns what the call gives, or raises the error class the call
must raise.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from segmentstore import (
    AttributeUpdate,
    BadAttributeUpdateError,
    BadOffsetError,
    ContainerMismatchError,
    EndOfSegmentError,
    Merged,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStoreError,
    SegmentTruncatedError,
    UpdateType,
)
from segmentstore.contracts.segment_mapper import container_of


class RefusedError(Exception):
    """The call must raise this error."""

    def __init__(self, error: type[SegmentStoreError]) -> None:
        super().__init__(error.__name__)
        self.error = error


@dataclass(slots=True)
class PlainSegment:
    data: bytearray = field(default_factory=bytearray)
    start: int = 0
    sealed: bool = False
    attributes: dict[UUID, int] = field(default_factory=dict)


class PlainModel:
    def __init__(self, containers: int) -> None:
        self.containers = containers
        self.segments: dict[str, PlainSegment] = {}

    def copy(self) -> PlainModel:
        return copy.deepcopy(self)

    def container(self, name: str) -> int:
        return container_of(name, self.containers)

    def find(self, name: str) -> PlainSegment:
        if name not in self.segments:
            raise RefusedError(SegmentNotFoundError)
        return self.segments[name]

    def create(self, name: str) -> None:
        if name in self.segments:
            raise RefusedError(SegmentExistsError)
        self.segments[name] = PlainSegment()

    def append(
        self,
        name: str,
        data: bytes,
        expected: int | None = None,
        updates: Sequence[AttributeUpdate] = (),
    ) -> int:
        segment = self.find(name)
        if segment.sealed:
            raise RefusedError(SegmentSealedError)
        attributes = self._resolve(segment, updates)
        if expected is not None and expected != len(segment.data):
            raise RefusedError(BadOffsetError)
        segment.attributes = attributes
        offset = len(segment.data)
        segment.data += data
        return offset

    def event(self, name: str, writer: UUID, number: int, data: bytes) -> int | None:
        segment = self.find(name)
        if segment.sealed:
            raise RefusedError(SegmentSealedError)
        if number <= segment.attributes.get(writer, -1):
            return None
        segment.attributes[writer] = number
        offset = len(segment.data)
        segment.data += data
        return offset

    def update(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        segment = self.find(name)
        attributes = self._resolve(segment, updates)
        if updates and segment.sealed:
            raise RefusedError(SegmentSealedError)
        segment.attributes = attributes

    def seal(self, name: str) -> int:
        segment = self.find(name)
        if segment.sealed:
            raise RefusedError(SegmentSealedError)
        segment.sealed = True
        return len(segment.data)

    def truncate(self, name: str, offset: int) -> None:
        segment = self.find(name)
        if not segment.start <= offset <= len(segment.data):
            raise RefusedError(BadOffsetError)
        segment.start = offset

    def merge(self, target: str, source: str, updates: Sequence[AttributeUpdate] = ()) -> Merged:
        into, of = self.find(target), self.find(source)
        if self.container(target) != self.container(source):
            raise RefusedError(ContainerMismatchError)
        attributes = self._resolve(into, updates)
        if into.sealed:
            raise RefusedError(SegmentSealedError)
        if of.start:
            raise RefusedError(SegmentTruncatedError)
        into.attributes = attributes
        offset = len(into.data)
        into.data += of.data
        del self.segments[source]
        return Merged(offset, len(into.data))

    def delete(self, name: str) -> None:
        self.find(name)
        del self.segments[name]

    def readable(self, name: str, offset: int) -> bytes:
        """All bytes a read at `offset` may give a beginning of; b"" at the tail."""
        segment = self.find(name)
        if offset < segment.start:
            raise RefusedError(SegmentTruncatedError)
        if offset > len(segment.data):
            raise RefusedError(BadOffsetError)
        if offset == len(segment.data) and segment.sealed:
            raise RefusedError(EndOfSegmentError)
        return bytes(segment.data[offset:])

    def _resolve(
        self, segment: PlainSegment, updates: Sequence[AttributeUpdate]
    ) -> dict[UUID, int]:
        values = dict(segment.attributes)
        for update in updates:
            there = values.get(update.id)
            total = (
                update.value + (there or 0)
                if update.type is UpdateType.ACCUMULATE
                else update.value
            )
            refused = {
                UpdateType.NONE: there is not None,
                UpdateType.REPLACE: False,
                UpdateType.REPLACE_IF_GREATER: there is not None and update.value <= there,
                UpdateType.ACCUMULATE: not -(2**63) < total < 2**63,
                UpdateType.REPLACE_IF_EQUALS: there
                != (None if update.expected == -(2**63) else update.expected),
            }[update.type]
            if refused:
                raise RefusedError(BadAttributeUpdateError)
            values.pop(update.id, None)
            if total != -(2**63):
                values[update.id] = total
        return values
