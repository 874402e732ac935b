"""The table of commands: type ids, and fields in the order of the wire.

Source: WireCommandType and WireCommands of Pravega, release 0.13.0. A new command is a class
and a line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from segmentstore.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    AuthTokenCheckFailed,
    ConditionalAppend,
    ConditionalAttributeUpdate,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    CreateSegment,
    CreateTableSegment,
    CreateTransientSegment,
    DataAppended,
    DeleteSegment,
    DeleteTableSegment,
    ErrorMessage,
    FlushToStorage,
    GetSegmentAttribute,
    GetStreamSegmentInfo,
    GetTableSegmentInfo,
    Hello,
    InvalidEventNumber,
    KeepAlive,
    ListStorageChunks,
    LocateOffset,
    MergedSource,
    MergeSegments,
    MergeSegmentsBatch,
    NoSuchSegment,
    OffsetLocated,
    OperationUnsupported,
    Padding,
    PartialEvent,
    ReadSegment,
    ReadTable,
    ReadTableEntries,
    ReadTableEntriesDelta,
    ReadTableKeys,
    RemoveTableKeys,
    SealSegment,
    SegmentAlreadyExists,
    SegmentAttribute,
    SegmentAttributeUpdated,
    SegmentCreated,
    SegmentDeleted,
    SegmentIsSealed,
    SegmentIsTruncated,
    SegmentPolicyUpdated,
    SegmentRead,
    SegmentsBatchMerged,
    SegmentSealed,
    SegmentsMerged,
    SegmentTruncated,
    SetupAppend,
    StorageChunk,
    StorageChunksListed,
    StorageFlushed,
    StreamSegmentInfo,
    TableEntriesDeltaRead,
    TableEntriesRead,
    TableEntriesUpdated,
    TableKeyBadVersion,
    TableKeyDoesNotExist,
    TableKeysRead,
    TableKeysRemoved,
    TableRead,
    TableSegmentInfo,
    TableSegmentNotEmpty,
    TruncateSegment,
    UpdateSegmentAttribute,
    UpdateSegmentPolicy,
    UpdateTableEntries,
    WrongHost,
)
from segmentstore.wire.fields import (
    BOOL,
    COPIED,
    DATA,
    ENTRY,
    EVENT,
    EXTENSION,
    I8,
    I32,
    I64,
    KEY,
    REST,
    TEXT,
    UUID,
    ZEROS,
    ListOf,
)
from segmentstore.wire.layouts import Layout

_UPDATE: Final = Layout(ConditionalAttributeUpdate, UUID, I8, I64, I64)
_MERGED: Final = Layout(MergedSource, TEXT, I64)
_CHUNK: Final = Layout(StorageChunk, I64, I64, I64, TEXT, BOOL)
_ENTRIES: Final = ListOf(ENTRY)
_KEYS: Final = ListOf(KEY)
_PAGE: Final = (COPIED, COPIED, COPIED, COPIED)
"""A continuation, a prefix, and a range of keys."""

_BOTH: Final = {
    -127: Layout(Hello, I32, I32, optional=[EXTENSION]),
    100: Layout(KeepAlive),
    -1: Layout(Padding, ZEROS),
}

REQUESTS: Final[Mapping[int, Layout]] = _BOTH | {
    1: Layout(SetupAppend, I64, UUID, TEXT, TEXT),
    3: Layout(AppendBlock, UUID, REST),
    4: Layout(AppendBlockEnd, UUID, I32, DATA, I32, I64, optional=[I64]),
    5: Layout(ConditionalAppend, UUID, I64, I64, EVENT, optional=[I64]),
    89: Layout(ConditionalBlockEnd, UUID, I64, I64, DATA, I64),
    9: Layout(ReadSegment, TEXT, I64, I32, TEXT, optional=[I64]),
    11: Layout(GetStreamSegmentInfo, I64, TEXT, TEXT),
    20: Layout(CreateSegment, I64, TEXT, I32, I8, TEXT, optional=[I64]),
    28: Layout(SealSegment, I64, TEXT, TEXT),
    30: Layout(DeleteSegment, I64, TEXT, TEXT),
    32: Layout(UpdateSegmentPolicy, I64, TEXT, I32, I8, TEXT),
    34: Layout(GetSegmentAttribute, I64, TEXT, UUID, TEXT),
    36: Layout(UpdateSegmentAttribute, I64, TEXT, UUID, I64, I64, TEXT),
    38: Layout(TruncateSegment, I64, TEXT, I64, TEXT),
    40: Layout(CreateTransientSegment, I64, UUID, TEXT, TEXT),
    41: Layout(LocateOffset, I64, TEXT, I64, TEXT),
    58: Layout(MergeSegments, I64, TEXT, TEXT, TEXT, optional=[ListOf(_UPDATE)]),
    90: Layout(MergeSegmentsBatch, I64, TEXT, ListOf(TEXT), TEXT),
    68: Layout(GetTableSegmentInfo, I64, TEXT, TEXT),
    70: Layout(CreateTableSegment, I64, TEXT, TEXT, optional=[BOOL, I32, I64]),
    71: Layout(DeleteTableSegment, I64, TEXT, BOOL, TEXT),
    74: Layout(UpdateTableEntries, I64, TEXT, TEXT, _ENTRIES, optional=[I64]),
    76: Layout(RemoveTableKeys, I64, TEXT, TEXT, _KEYS, optional=[I64]),
    78: Layout(ReadTable, I64, TEXT, TEXT, _KEYS),
    83: Layout(ReadTableKeys, I64, TEXT, TEXT, I32, optional=_PAGE),
    85: Layout(ReadTableEntries, I64, TEXT, TEXT, I32, optional=_PAGE),
    88: Layout(ReadTableEntriesDelta, I64, TEXT, TEXT, I64, I32),
    -3: Layout(FlushToStorage, I32, TEXT, I64),
    -5: Layout(ListStorageChunks, TEXT, TEXT, I64),
}
"""What a server accepts."""

REPLIES: Final[Mapping[int, Layout]] = _BOTH | {
    2: Layout(AppendSetup, I64, TEXT, UUID, I64),
    7: Layout(DataAppended, UUID, I64, optional=[I64, I64, I64]),
    8: Layout(ConditionalCheckFailed, UUID, I64, optional=[I64]),
    10: Layout(SegmentRead, TEXT, I64, BOOL, BOOL, DATA, optional=[I64]),
    12: Layout(StreamSegmentInfo, I64, TEXT, BOOL, BOOL, BOOL, I64, I64, optional=[I64]),
    21: Layout(SegmentCreated, I64, TEXT),
    29: Layout(SegmentSealed, I64, TEXT),
    31: Layout(SegmentDeleted, I64, TEXT),
    33: Layout(SegmentPolicyUpdated, I64, TEXT),
    35: Layout(SegmentAttribute, I64, I64),
    37: Layout(SegmentAttributeUpdated, I64, BOOL),
    39: Layout(SegmentTruncated, I64, TEXT),
    42: Layout(OffsetLocated, I64, TEXT, I64),
    50: Layout(WrongHost, I64, TEXT, TEXT, optional=[TEXT]),
    51: Layout(SegmentIsSealed, I64, TEXT, optional=[TEXT, I64]),
    52: Layout(SegmentAlreadyExists, I64, TEXT, optional=[TEXT]),
    53: Layout(NoSuchSegment, I64, TEXT, optional=[TEXT, I64]),
    55: Layout(InvalidEventNumber, UUID, I64, optional=[TEXT, I64]),
    56: Layout(SegmentIsTruncated, I64, TEXT, I64, optional=[TEXT, I64]),
    57: Layout(OperationUnsupported, I64, TEXT, optional=[TEXT]),
    59: Layout(SegmentsMerged, I64, TEXT, TEXT, optional=[I64]),
    91: Layout(SegmentsBatchMerged, I64, TEXT, ListOf(_MERGED)),
    60: Layout(AuthTokenCheckFailed, I64, optional=[TEXT, I32]),
    61: Layout(ErrorMessage, I64, TEXT, TEXT, I32),
    69: Layout(TableSegmentInfo, I64, TEXT, I64, I64, I64, I32),
    75: Layout(TableEntriesUpdated, I64, ListOf(I64)),
    77: Layout(TableKeysRemoved, I64, TEXT),
    79: Layout(TableRead, I64, TEXT, _ENTRIES),
    80: Layout(TableSegmentNotEmpty, I64, TEXT, TEXT),
    81: Layout(TableKeyDoesNotExist, I64, TEXT, TEXT),
    82: Layout(TableKeyBadVersion, I64, TEXT, TEXT),
    84: Layout(TableKeysRead, I64, TEXT, _KEYS, COPIED),
    86: Layout(TableEntriesRead, I64, TEXT, _ENTRIES, COPIED),
    87: Layout(TableEntriesDeltaRead, I64, TEXT, _ENTRIES, BOOL, BOOL, I64),
    -4: Layout(StorageFlushed, I64),
    -6: Layout(StorageChunksListed, I64, ListOf(_CHUNK)),
}
"""What a client accepts."""

ALL: Final[Mapping[int, Layout]] = {**REQUESTS, **REPLIES, -2: Layout(PartialEvent, REST)}
"""Everything that has a type id of its own, also inside an append block."""
