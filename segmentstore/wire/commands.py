"""All commands by one name, and which of them are requests and which replies."""

from __future__ import annotations

from segmentstore.wire.append_commands import (
    EVENT_HEADER_BYTES,
    NO_OFFSET,
    NO_REQUEST_ID,
    NOT_SET,
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    ConditionalAppend,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    DataAppended,
    Hello,
    InvalidEventNumber,
    KeepAlive,
    Padding,
    PartialEvent,
    SetupAppend,
)
from segmentstore.wire.failure_replies import (
    ILLEGAL_ARGUMENT,
    RUNTIME_ERROR,
    TOKEN_EXPIRED,
    TOKEN_REFUSED,
    TOKEN_UNSPECIFIED,
    AuthTokenCheckFailed,
    ErrorMessage,
    NoSuchSegment,
    OperationUnsupported,
    SegmentAlreadyExists,
    SegmentIsSealed,
    SegmentIsTruncated,
    TableKeyBadVersion,
    TableKeyDoesNotExist,
    TableSegmentNotEmpty,
    WrongHost,
)
from segmentstore.wire.segment_commands import (
    ConditionalAttributeUpdate,
    CreateSegment,
    CreateTransientSegment,
    DeleteSegment,
    FlushToStorage,
    GetSegmentAttribute,
    GetStreamSegmentInfo,
    ListStorageChunks,
    LocateOffset,
    MergedSource,
    MergeSegments,
    MergeSegmentsBatch,
    OffsetLocated,
    ReadSegment,
    SealSegment,
    SegmentAttribute,
    SegmentAttributeUpdated,
    SegmentCreated,
    SegmentDeleted,
    SegmentPolicyUpdated,
    SegmentRead,
    SegmentsBatchMerged,
    SegmentSealed,
    SegmentsMerged,
    SegmentTruncated,
    StorageChunk,
    StorageChunksListed,
    StorageFlushed,
    StreamSegmentInfo,
    TruncateSegment,
    UpdateSegmentAttribute,
    UpdateSegmentPolicy,
)
from segmentstore.wire.store_commands import StoreReply, StoreRequest
from segmentstore.wire.table_commands import (
    NO_TABLE_OFFSET,
    NO_VERSION,
    NOT_EXISTS,
    CreateTableSegment,
    DeleteTableSegment,
    GetTableSegmentInfo,
    ReadTable,
    ReadTableEntries,
    ReadTableEntriesDelta,
    ReadTableKeys,
    RemoveTableKeys,
    TableEntriesDeltaRead,
    TableEntriesRead,
    TableEntriesUpdated,
    TableEntry,
    TableKey,
    TableKeysRead,
    TableKeysRemoved,
    TableRead,
    TableSegmentInfo,
    UpdateTableEntries,
)

Request = (
    Hello
    | KeepAlive
    | Padding
    | SetupAppend
    | AppendBlock
    | AppendBlockEnd
    | ConditionalAppend
    | ConditionalBlockEnd
    | ReadSegment
    | GetStreamSegmentInfo
    | CreateSegment
    | CreateTransientSegment
    | SealSegment
    | DeleteSegment
    | UpdateSegmentPolicy
    | GetSegmentAttribute
    | UpdateSegmentAttribute
    | TruncateSegment
    | LocateOffset
    | MergeSegments
    | MergeSegmentsBatch
    | FlushToStorage
    | ListStorageChunks
    | GetTableSegmentInfo
    | CreateTableSegment
    | DeleteTableSegment
    | UpdateTableEntries
    | RemoveTableKeys
    | ReadTable
    | ReadTableKeys
    | ReadTableEntries
    | ReadTableEntriesDelta
    | StoreRequest
)
"""What a server accepts."""
Reply = (
    Hello
    | KeepAlive
    | Padding
    | AppendSetup
    | DataAppended
    | ConditionalCheckFailed
    | InvalidEventNumber
    | SegmentRead
    | StreamSegmentInfo
    | SegmentCreated
    | SegmentSealed
    | SegmentDeleted
    | SegmentPolicyUpdated
    | SegmentAttribute
    | SegmentAttributeUpdated
    | SegmentTruncated
    | OffsetLocated
    | SegmentsMerged
    | SegmentsBatchMerged
    | StorageFlushed
    | StorageChunksListed
    | TableSegmentInfo
    | TableEntriesUpdated
    | TableKeysRemoved
    | TableRead
    | TableKeysRead
    | TableEntriesRead
    | TableEntriesDeltaRead
    | WrongHost
    | SegmentIsSealed
    | SegmentAlreadyExists
    | NoSuchSegment
    | SegmentIsTruncated
    | OperationUnsupported
    | AuthTokenCheckFailed
    | ErrorMessage
    | TableSegmentNotEmpty
    | TableKeyDoesNotExist
    | TableKeyBadVersion
    | StoreReply
)
"""What a client accepts."""
Command = Request | Reply | PartialEvent
"""PartialEvent stands in an append block alone."""

__all__ = [
    "EVENT_HEADER_BYTES",
    "ILLEGAL_ARGUMENT",
    "NOT_EXISTS",
    "NOT_SET",
    "NO_OFFSET",
    "NO_REQUEST_ID",
    "NO_TABLE_OFFSET",
    "NO_VERSION",
    "RUNTIME_ERROR",
    "TOKEN_EXPIRED",
    "TOKEN_REFUSED",
    "TOKEN_UNSPECIFIED",
    "AppendBlock",
    "AppendBlockEnd",
    "AppendSetup",
    "AuthTokenCheckFailed",
    "Command",
    "ConditionalAppend",
    "ConditionalAttributeUpdate",
    "ConditionalBlockEnd",
    "ConditionalCheckFailed",
    "CreateSegment",
    "CreateTableSegment",
    "CreateTransientSegment",
    "DataAppended",
    "DeleteSegment",
    "DeleteTableSegment",
    "ErrorMessage",
    "FlushToStorage",
    "GetSegmentAttribute",
    "GetStreamSegmentInfo",
    "GetTableSegmentInfo",
    "Hello",
    "InvalidEventNumber",
    "KeepAlive",
    "ListStorageChunks",
    "LocateOffset",
    "MergeSegments",
    "MergeSegmentsBatch",
    "MergedSource",
    "NoSuchSegment",
    "OffsetLocated",
    "OperationUnsupported",
    "Padding",
    "PartialEvent",
    "ReadSegment",
    "ReadTable",
    "ReadTableEntries",
    "ReadTableEntriesDelta",
    "ReadTableKeys",
    "RemoveTableKeys",
    "Reply",
    "Request",
    "SealSegment",
    "SegmentAlreadyExists",
    "SegmentAttribute",
    "SegmentAttributeUpdated",
    "SegmentCreated",
    "SegmentDeleted",
    "SegmentIsSealed",
    "SegmentIsTruncated",
    "SegmentPolicyUpdated",
    "SegmentRead",
    "SegmentSealed",
    "SegmentTruncated",
    "SegmentsBatchMerged",
    "SegmentsMerged",
    "SetupAppend",
    "StorageChunk",
    "StorageChunksListed",
    "StorageFlushed",
    "StreamSegmentInfo",
    "TableEntriesDeltaRead",
    "TableEntriesRead",
    "TableEntriesUpdated",
    "TableEntry",
    "TableKey",
    "TableKeyBadVersion",
    "TableKeyDoesNotExist",
    "TableKeysRead",
    "TableKeysRemoved",
    "TableRead",
    "TableSegmentInfo",
    "TableSegmentNotEmpty",
    "TruncateSegment",
    "UpdateSegmentAttribute",
    "UpdateSegmentPolicy",
    "UpdateTableEntries",
    "WrongHost",
]
