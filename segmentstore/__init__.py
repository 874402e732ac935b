"""segmentstore: small appends durable at once, readable at any time, moved to cheap storage in the
background.

    async with segmentstore.open("var/store") as store:
        await store.create_segment("logs/web-1")
        offset = await store.append("logs/web-1", b"hello")
        assert await store.read("logs/web-1", offset, 100) == b"hello"

`segmentstore.connect` gives the same for a store that another process has open, and
`segmentstore.blocking` has both without `await`. The packages, top to bottom: `segmentstore`
(the API and the container that joins the parts); `recovery`, `storagewriter`, `readindex`;
`durablelog`, `tier2`; `segmentstore.contracts` (errors, records, interfaces). Packages of one row
do not import each other. Importing this module imports none of the engine: it is loaded when a
store is opened. docs/ARCHITECTURE.md has the walks.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from segmentstore.contracts.attributes import ATTRIBUTE_UNSET, AttributeUpdate, UpdateType
from segmentstore.contracts.errors import (
    AccessRefusedError,
    AppendOutcomeUnknownError,
    AppendTooLargeError,
    BadAttributeUpdateError,
    BadOffsetError,
    ConfigError,
    ContainerMismatchError,
    ContainerNotServedError,
    ContainerOwnedError,
    ContainerStoppedError,
    DataCorruptionError,
    DeprecatedSettingWarning,
    EndOfSegmentError,
    ForkedStoreError,
    InvalidArgumentError,
    InvalidNameError,
    MissingExtraError,
    NotAStoreError,
    NotPrimaryError,
    ReadOnlyFileSystemError,
    ReadOnlyViewError,
    SegmentError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStoreError,
    SegmentTruncatedError,
    StoreClosedError,
    StoreDisconnectedError,
    StoreInUseError,
    StoreUnreachableError,
    TasksCancelledError,
    TierUnavailableError,
    TooManyActiveSegmentsError,
    TooManyAttributesError,
    UnknownSettingWarning,
    WriterNotOpenError,
    WrongEventLoopError,
    WrongThreadError,
)
from segmentstore.contracts.segments import Merged, SegmentInfo
from segmentstore.contracts.version import (
    __version__ as __version__,
)  # exported, and no name of the API

if TYPE_CHECKING:
    from segmentstore import blocking
    from segmentstore.client.cluster_store import ClusterStore
    from segmentstore.client.remote_store import RemoteStore
    from segmentstore.connecting import connect
    from segmentstore.contracts.allocator import tune_malloc
    from segmentstore.contracts.collector import tune_gc
    from segmentstore.contracts.events import frame_event, frame_events, split_events
    from segmentstore.contracts.health_tree import StoreHealth
    from segmentstore.contracts.reports import (
        BlockEntry,
        CatalogExport,
        FrameEntry,
        GarbageItem,
        GarbageReport,
        OperationEntry,
    )
    from segmentstore.opening import open  # noqa: A004 - the public name, as in `io.open`
    from segmentstore.options import StoreOptions
    from segmentstore.service import SegmentStore
    from segmentstore.sessions import SegmentReader, SegmentWriter
    from segmentstore.stats_types import StoreStats
    from segmentstore.store_api import StoreApi

_LAZY = {
    "BlockEntry": "segmentstore.contracts.reports",
    "CatalogExport": "segmentstore.contracts.reports",
    "ClusterStore": "segmentstore.client.cluster_store",
    "FrameEntry": "segmentstore.contracts.reports",
    "GarbageItem": "segmentstore.contracts.reports",
    "GarbageReport": "segmentstore.contracts.reports",
    "OperationEntry": "segmentstore.contracts.reports",
    "RemoteStore": "segmentstore.client.remote_store",
    "SegmentReader": "segmentstore.sessions",
    "SegmentStore": "segmentstore.service",
    "SegmentWriter": "segmentstore.sessions",
    "StoreApi": "segmentstore.store_api",
    "StoreOptions": "segmentstore.options",
    "StoreHealth": "segmentstore.contracts.health_tree",
    "StoreStats": "segmentstore.stats_types",
    "blocking": "segmentstore.blocking",
    "connect": "segmentstore.connecting",
    # They load the checksum's package, which takes longer than everything else here.
    "frame_event": "segmentstore.contracts.events",
    "frame_events": "segmentstore.contracts.events",
    "open": "segmentstore.opening",
    "split_events": "segmentstore.contracts.events",
    "tune_gc": "segmentstore.contracts.collector",
    "tune_malloc": "segmentstore.contracts.allocator",
}

# Written out: type checkers read it, and compute nothing.
__all__ = [
    "ATTRIBUTE_UNSET",
    "AccessRefusedError",
    "AppendOutcomeUnknownError",
    "AppendTooLargeError",
    "AttributeUpdate",
    "BadAttributeUpdateError",
    "BadOffsetError",
    "BlockEntry",
    "CatalogExport",
    "ClusterStore",
    "ConfigError",
    "ContainerMismatchError",
    "ContainerNotServedError",
    "ContainerOwnedError",
    "ContainerStoppedError",
    "DataCorruptionError",
    "DeprecatedSettingWarning",
    "EndOfSegmentError",
    "ForkedStoreError",
    "FrameEntry",
    "GarbageItem",
    "GarbageReport",
    "InvalidArgumentError",
    "InvalidNameError",
    "Merged",
    "MissingExtraError",
    "NotAStoreError",
    "NotPrimaryError",
    "OperationEntry",
    "ReadOnlyFileSystemError",
    "ReadOnlyViewError",
    "RemoteStore",
    "SegmentError",
    "SegmentExistsError",
    "SegmentInfo",
    "SegmentNotFoundError",
    "SegmentReader",
    "SegmentSealedError",
    "SegmentStore",
    "SegmentStoreError",
    "SegmentTruncatedError",
    "SegmentWriter",
    "StoreApi",
    "StoreClosedError",
    "StoreDisconnectedError",
    "StoreHealth",
    "StoreInUseError",
    "StoreOptions",
    "StoreStats",
    "StoreUnreachableError",
    "TasksCancelledError",
    "TierUnavailableError",
    "TooManyActiveSegmentsError",
    "TooManyAttributesError",
    "UnknownSettingWarning",
    "UpdateType",
    "WriterNotOpenError",
    "WrongEventLoopError",
    "WrongThreadError",
    "blocking",
    "connect",
    "frame_event",
    "frame_events",
    "open",
    "split_events",
    "tune_gc",
    "tune_malloc",
]

if not TYPE_CHECKING:
    # Hidden from type checkers: with it they would take every misspelled name for an attribute.
    def __getattr__(name: str) -> object:
        """Load the engine at the first use of what needs it."""
        module_name = _LAZY.get(name)
        if module_name is None:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        module = importlib.import_module(module_name)
        value = module if name == "blocking" else getattr(module, name)
        globals()[name] = value
        return value
