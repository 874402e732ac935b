"""Requests about segments as a whole: create, seal, truncate, merge, delete, attributes.

Each function carries out one request and gives its reply. An error that it raises becomes a reply
by `refusals.refusal`. Outcomes are those of Pravega's PravegaRequestProcessor, release 0.13.0.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final

from segmentstore.contracts.attributes import ATTRIBUTE_UNSET, AttributeUpdate, UpdateType
from segmentstore.contracts.errors import (
    BadAttributeUpdateError,
    BadOffsetError,
    InvalidArgumentError,
    SegmentNotFoundError,
)
from segmentstore.server.server_context import ServerContext
from segmentstore.tables.table_types import TABLE_ATTRIBUTES
from segmentstore.wire.commands import (
    Command,
    ConditionalAttributeUpdate,
    CreateSegment,
    DeleteSegment,
    GetSegmentAttribute,
    GetStreamSegmentInfo,
    MergedSource,
    MergeSegments,
    MergeSegmentsBatch,
    SealSegment,
    SegmentAttribute,
    SegmentAttributeUpdated,
    SegmentCreated,
    SegmentDeleted,
    SegmentIsTruncated,
    SegmentPolicyUpdated,
    SegmentsBatchMerged,
    SegmentSealed,
    SegmentsMerged,
    SegmentTruncated,
    StreamSegmentInfo,
    TruncateSegment,
    UpdateSegmentAttribute,
    UpdateSegmentPolicy,
)
from segmentstore.wire.system_attributes import (
    CREATION_TIME,
    ROLLOVER_SIZE,
    SCALE_POLICY_RATE,
    SCALE_POLICY_TYPE,
)

_UPDATE_TYPES: Final = {
    0: UpdateType.NONE,
    1: UpdateType.REPLACE,
    2: UpdateType.REPLACE_IF_GREATER,
    3: UpdateType.ACCUMULATE,
    4: UpdateType.REPLACE_IF_EQUALS,
}
"""By the number that Pravega's AttributeUpdateType has on the wire."""


async def create(context: ServerContext, request: CreateSegment) -> Command:
    """CreateSegment."""
    values = {
        CREATION_TIME: context.clock.time_ms(),
        SCALE_POLICY_TYPE: request.scale_type,
        SCALE_POLICY_RATE: request.target_rate,
        ROLLOVER_SIZE: max(0, request.rollover_bytes),
    }
    await context.store.create_segment(request.segment, _replacing(values))
    return SegmentCreated(request.request_id, request.segment)


async def update_policy(context: ServerContext, request: UpdateSegmentPolicy) -> Command:
    """UpdateSegmentPolicy."""
    values = {SCALE_POLICY_TYPE: request.scale_type, SCALE_POLICY_RATE: request.target_rate}
    await context.store.update_attributes(request.segment, _replacing(values))
    return SegmentPolicyUpdated(request.request_id, request.segment)


async def seal(context: ServerContext, request: SealSegment) -> Command:
    """SealSegment."""
    await context.store.seal(request.segment)
    return SegmentSealed(request.request_id, request.segment)


async def delete(context: ServerContext, request: DeleteSegment) -> Command:
    """DeleteSegment."""
    await context.store.delete(request.segment)
    return SegmentDeleted(request.request_id, request.segment)


async def truncate(context: ServerContext, request: TruncateSegment) -> Command:
    """TruncateSegment. A refusal has the start offset, whichever bound was missed."""
    try:
        await context.store.truncate(request.segment, request.offset)
    except (BadOffsetError, InvalidArgumentError) as error:
        if isinstance(error, BadOffsetError) and error.actual > request.offset:
            # Also of a truncation that is on its way.
            start = error.actual
        else:
            start = (await context.store.get_info(request.segment)).start_offset
        return SegmentIsTruncated(request.request_id, request.segment, start, "", request.offset)
    return SegmentTruncated(request.request_id, request.segment)


async def info(context: ServerContext, request: GetStreamSegmentInfo) -> Command:
    """GetStreamSegmentInfo."""
    found = await context.store.get_info(request.segment)
    return StreamSegmentInfo(
        request.request_id,
        request.segment,
        exists=True,
        sealed=found.sealed,
        deleted=False,
        last_modified_ms=round(found.last_modified.timestamp() * 1000),
        length=found.length,
        start_offset=found.start_offset,
    )


async def get_attribute(context: ServerContext, request: GetSegmentAttribute) -> Command:
    """GetSegmentAttribute."""
    attribute = uuid.UUID(bytes=request.attribute)
    found = await context.store.get_attributes(request.segment, (attribute,))
    return SegmentAttribute(request.request_id, found.get(attribute, ATTRIBUTE_UNSET))


async def update_attribute(context: ServerContext, request: UpdateSegmentAttribute) -> Command:
    """UpdateSegmentAttribute."""
    update = AttributeUpdate(
        _not_of_tables(request.attribute),
        UpdateType.REPLACE_IF_EQUALS,
        request.value,
        request.expected,
    )
    try:
        await context.store.update_attributes(request.segment, (update,))
    except BadAttributeUpdateError:
        return SegmentAttributeUpdated(request.request_id, success=False)
    return SegmentAttributeUpdated(request.request_id, success=True)


async def merge(context: ServerContext, request: MergeSegments) -> Command:
    """MergeSegments."""
    updates = [_update(each) for each in request.updates]
    try:
        length = (await context.store.merge(request.target, request.source, updates)).length
    except BadAttributeUpdateError:
        return SegmentAttributeUpdated(request.request_id, success=False)
    except SegmentNotFoundError as error:
        merged_length = await _merged_before(context, request.target, updates)
        if error.name != request.source or merged_length is None:
            raise
        length = merged_length
    return SegmentsMerged(request.request_id, request.target, request.source, length)


async def merge_batch(context: ServerContext, request: MergeSegmentsBatch) -> Command:
    """MergeSegmentsBatch."""
    lengths = await context.store.merge_batch(request.target, request.sources)
    merged = tuple(map(MergedSource, request.sources, lengths))
    return SegmentsBatchMerged(request.request_id, request.target, merged)


async def _merged_before(
    context: ServerContext, target: str, updates: Sequence[AttributeUpdate]
) -> int | None:
    """The target's length if its attributes show that a merge with `updates` is done."""
    if not updates:
        return None
    values = await context.store.get_attributes(target, [update.id for update in updates])
    if any(values.get(update.id, ATTRIBUTE_UNSET) != update.value for update in updates):
        return None
    return (await context.store.get_info(target)).length


def _update(update: ConditionalAttributeUpdate) -> AttributeUpdate:
    update_type = _UPDATE_TYPES.get(update.update_type)
    if update_type is None:
        raise InvalidArgumentError("update_type", update.update_type, "it is 0 to 4")
    attribute = _not_of_tables(update.attribute)
    return AttributeUpdate(attribute, update_type, update.value, update.expected)


def _not_of_tables(attribute: bytes) -> uuid.UUID:
    """The id of an attribute that a client may change: no mark of a table."""
    found = uuid.UUID(bytes=attribute)
    if found in TABLE_ATTRIBUTES:
        raise InvalidArgumentError("attribute", found, "it is set at the creation alone")
    return found


def _replacing(values: dict[uuid.UUID, int]) -> list[AttributeUpdate]:
    return [AttributeUpdate(each, UpdateType.REPLACE, value) for each, value in values.items()]
