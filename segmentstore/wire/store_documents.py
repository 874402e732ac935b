"""Documents that ManageStore and RequestRefused carry: JSON, and the values it stands for. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, cast

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.error_records import error_from, error_record
from segmentstore.contracts.errors import InvalidArgumentError, SegmentStoreError
from segmentstore.contracts.findings import Finding, Severity
from segmentstore.contracts.health_tree import StoreHealth
from segmentstore.contracts.reports import (
    ArchivedEntry,
    BlockEntry,
    CatalogExport,
    FrameEntry,
    GarbageItem,
    OffloadedPart,
    OffloadReport,
    OperationEntry,
    RemovedParts,
)
from segmentstore.stats_types import BY_CONTAINER
from segmentstore.wire.errors import WireError
from segmentstore.wire.store_commands import RequestRefused

FLUSH_ALL: Final = "flush"
CHECKPOINT: Final = "checkpoint"
EXPORT_CATALOG: Final = "export-catalog"
PROCESS_MAILBOX: Final = "process-mailbox"
WAKE_MAILBOX: Final = "wake-mailbox"
STATS: Final = "stats"
HEALTH: Final = "health"
DRAIN: Final = "drain"
METRICS: Final = "metrics"
"""The actions of ManageStore."""
FRAMES: Final = "frames"
OPERATIONS: Final = "operations"
BLOCKS: Final = "blocks"
GARBAGE: Final = "garbage"
COLLECTED: Final = "collected-garbage"
ARCHIVED: Final = "archived-parts"
OFFLOADED: Final = "offloaded-parts"
REMOVED: Final = "removed-parts"
"""The listings of BeginListing."""


def encode_document(value: Any) -> bytes:
    """A report, statistics, a number or None as JSON."""
    return json.dumps(value, default=_plain).encode()


def decode_number(data: Buffer) -> int:
    """A whole number. This and the others raise WireError for another document."""
    number = _document(data)
    if type(number) is not int:
        raise WireError("a number was expected")
    return number


def decode_numbers(data: Buffer) -> list[int]:
    """Whole numbers."""
    numbers = _document(data)
    if not isinstance(numbers, list) or not all(type(each) is int for each in numbers):
        raise WireError("numbers were expected")
    return numbers


def encode_numbers_or_none(*numbers: int | None) -> str:
    """What a listing is asked for, in the place of a segment: numbers, or nothing."""
    return json.dumps(numbers)


def decode_numbers_or_none(text: str | None) -> tuple[int | None, int | None]:
    """Two numbers, or nothing in their places. Raises InvalidArgumentError."""
    try:
        first, second = json.loads(text or "")
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(
            "segment", text, f"it is no JSON of two numbers: {error}"
        ) from None
    return first, second


def decode_rows(listing: str, data: Buffer) -> list[Any]:
    """A part of a listing: FrameEntry, OperationEntry, BlockEntry, ArchivedEntry, OffloadReport,
    RemovedParts, or GarbageItem and Finding.
    """
    decode = _ROWS[listing]
    try:
        return [decode(row) for row in _document(data)]
    except (TypeError, ValueError) as error:
        raise WireError(f"they are no {listing}: {error}") from error


def _garbage_row(row: list[Any]) -> GarbageItem | Finding:
    # A finding has one field less.
    return _finding(row) if len(row) == len(Finding._fields) else _garbage_item(row)


def _garbage_item(row: list[Any]) -> GarbageItem:
    state, container_id, size, until, name = row
    return GarbageItem(state, container_id, size, _time(until), name)


def _finding(row: list[Any]) -> Finding:
    severity, kind, place, detail = row
    return Finding(Severity(severity), kind, place, detail)


def _offload_report(row: list[Any]) -> OffloadReport:
    container_id, parts, first_not_archived = row
    return OffloadReport(
        container_id, tuple(OffloadedPart(*part) for part in parts), first_not_archived
    )


_ROWS: Final[Mapping[str, Callable[[list[Any]], Any]]] = {
    FRAMES: lambda row: FrameEntry(*row),
    OPERATIONS: lambda row: OperationEntry(*row),
    BLOCKS: lambda row: BlockEntry(*row),
    GARBAGE: _garbage_row,
    COLLECTED: _garbage_row,
    ARCHIVED: lambda row: ArchivedEntry(*row),
    OFFLOADED: _offload_report,
    REMOVED: lambda row: RemovedParts(*row),
}


def decode_exports(data: Buffer) -> list[CatalogExport]:
    """Snapshots that were put."""
    try:
        return [CatalogExport(**each) for each in _document(data)]
    except (TypeError, ValueError) as error:
        raise WireError(f"they are no exports: {error}") from error


def decode_stats(data: Buffer) -> dict[str, Any]:
    """Statistics: containers have numbers as keys, which JSON cannot have."""
    try:
        stats: dict[str, Any] = _document(data)
        for part in ("container_states", "containers"):
            stats[part] = _by_number(stats[part])
        if stats["cluster"] is not None:
            for name in BY_CONTAINER:
                stats["cluster"][name] = _by_number(stats["cluster"][name])
        for operation in stats["tier2"]["operations"].values():
            operation["latency_counts"] = tuple(operation["latency_counts"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WireError(f"they are no statistics: {error}") from error
    return stats


def _by_number(table: Mapping[str, Any]) -> dict[int, Any]:
    return {int(key): value for key, value in table.items()}


def decode_health(data: Buffer) -> StoreHealth:
    """How hosts are."""
    health = _document(data)
    if not isinstance(health, dict) or not health.keys() >= StoreHealth.__annotations__.keys():
        raise WireError("it is no health")
    return cast("StoreHealth", health)


def refused(request_id: int, error: BaseException) -> RequestRefused:
    """The reply to a request that failed."""
    name, record = error_record(error)
    return RequestRefused(request_id, name, json.dumps(record).encode())


def refusal_error(reply: RequestRefused) -> SegmentStoreError:
    """The error that a reply carries. Raises WireError."""
    try:
        return error_from(reply.error, _document(reply.detail))
    except (TypeError, ValueError, AttributeError) as error:
        raise WireError(f"it is no error: {error}") from error


def _document(data: Buffer) -> Any:
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise WireError(f"it is no JSON: {error}") from error


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return str(value)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
