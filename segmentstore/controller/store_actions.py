"""StoreActions: what the Controller does to segments, on the store of its own process."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final

from segmentstore.contracts.attributes import AttributeUpdate, UpdateType
from segmentstore.contracts.errors import (
    BadOffsetError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
)
from segmentstore.contracts.runtime import Clock
from segmentstore.controller.segment_actions import SegmentState
from segmentstore.controller.stream_model import ScalingPolicy
from segmentstore.service import SegmentStore
from segmentstore.tables.table_service import TableService

_SYSTEM_HIGH: Final = 1 << 127
"""Pravega's ids of system attributes have -2^63 as their most significant half."""
CREATION_TIME: Final = uuid.UUID(int=_SYSTEM_HIGH)
SCALE_POLICY_TYPE: Final = uuid.UUID(int=_SYSTEM_HIGH | 2)
SCALE_POLICY_RATE: Final = uuid.UUID(int=_SYSTEM_HIGH | 3)
ROLLOVER_SIZE: Final = uuid.UUID(int=_SYSTEM_HIGH | 4)


class StoreActions:
    """All containers of the Controller's streams are served by this process."""

    def __init__(self, store: SegmentStore, tables: TableService, clock: Clock) -> None:
        self._store = store
        self._tables = tables
        self._clock = clock

    async def create(self, name: str, policy: ScalingPolicy, rollover_bytes: int) -> None:
        attributes = (
            *_policy_attributes(policy),
            _replace(ROLLOVER_SIZE, rollover_bytes),
            _replace(CREATION_TIME, self._clock.time_ms()),
        )
        try:
            await self._store.create_segment(name, attributes)
        except SegmentExistsError:
            pass

    async def create_table(self, name: str, key_length: int) -> None:
        creation_time = _replace(CREATION_TIME, self._clock.time_ms())
        try:
            await self._tables.create(name, key_length, (creation_time,))
        except SegmentExistsError:
            pass

    async def seal(self, name: str) -> None:
        try:
            await self._store.seal(name)
        except (SegmentSealedError, SegmentNotFoundError):
            pass

    async def delete(self, name: str) -> None:
        try:
            await self._store.delete(name)
        except SegmentNotFoundError:
            pass

    async def delete_table(self, name: str) -> None:
        try:
            await self._tables.delete(name)
        except SegmentNotFoundError:
            pass

    async def truncate(self, name: str, offset: int) -> None:
        try:
            await self._store.truncate(name, offset)
        except SegmentNotFoundError:
            pass
        except BadOffsetError:
            # One that begins behind it was truncated further by a client of its own.
            if (await self._store.get_info(name)).start_offset < offset:
                raise

    async def merge_batch(self, target: str, sources: Sequence[str]) -> None:
        await self._store.merge_batch(target, sources)

    async def info(self, name: str) -> SegmentState | None:
        try:
            info = await self._store.get_info(name)
        except SegmentNotFoundError:
            return None
        return SegmentState(info.start_offset, info.length, info.sealed)

    async def update_policy(self, name: str, policy: ScalingPolicy) -> None:
        try:
            await self._store.update_attributes(name, _policy_attributes(policy))
        except (SegmentSealedError, SegmentNotFoundError):
            pass


def _policy_attributes(policy: ScalingPolicy) -> tuple[AttributeUpdate, AttributeUpdate]:
    return (
        _replace(SCALE_POLICY_TYPE, policy.kind),
        _replace(SCALE_POLICY_RATE, policy.rate),
    )


def _replace(attribute: uuid.UUID, value: int) -> AttributeUpdate:
    return AttributeUpdate(attribute, UpdateType.REPLACE, value)
