"""Past operations as lines: of text for people, of JSON for programs. Pure.

Millions of them are shown in a row, most of them appends: these are formatted without a detour.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from durablelog.operations import (
    AppendOperation,
    CreateOperation,
    MergeOperation,
    Operation,
    segments_of,
)
from recovery.archived_history import PastOperation
from segmentstore.listed_entries import describe, kind_of

_SECOND_MS: Final = 1000

LineOf = Callable[[PastOperation], str]


class SegmentFilter:
    """The operations on the segments of one name, or on one id."""

    def __init__(self, name: str, ids: set[int]) -> None:
        """`ids` are of the segments that have the name when the operations begin."""
        self._name = name
        self._ids = set(ids)

    def wanted(self, operations: Sequence[PastOperation]) -> Iterator[PastOperation]:
        """Those on the segments, in order; their merges into others too."""
        ids = self._ids
        for past in operations:
            operation = past.operation
            if type(operation) is AppendOperation:
                if operation.segment_id in ids:
                    yield past
            elif self._is_wanted(operation):
                yield past

    def _is_wanted(self, operation: Operation) -> bool:
        if isinstance(operation, CreateOperation):
            if operation.name == self._name:
                self._ids.add(operation.sequence_number)
                return True
            return False
        is_wanted = not self._ids.isdisjoint(segments_of(operation))
        if is_wanted and isinstance(operation, MergeOperation):
            self._ids.add(operation.source_id)
        return is_wanted


def json_lines(container_id: int) -> LineOf:
    """What makes a line of JSON, as `log --operations --json` has it, of each operation."""
    dumps = json.dumps
    time_of = _times()

    def line(past: PastOperation) -> str:
        operation, size, address = past
        if type(operation) is AppendOperation:
            kind = "append"
            what = (
                f'"segment {operation.segment_id}, {len(operation.data)} bytes at '
                f"{operation.offset}"
            )
            attributes = operation.attributes
            what += f', {len(attributes)} attributes"' if attributes else '"'
        else:
            kind, what = kind_of(operation), dumps(describe(operation, container_id))
        return (
            f'{{"container": {container_id}, "address": "{address:#x}", '
            f'"sequence": {operation.sequence_number}, "kind": "{kind}", "size": {size}, '
            f'"time": "{time_of(operation.timestamp_ms)}", "what": {what}}}'
        )

    return line


def text_lines(container_id: int) -> LineOf:
    """What makes a line for people of each operation."""
    time_of = _times()

    def line(past: PastOperation) -> str:
        operation = past.operation
        return (
            f"{container_id} {operation.sequence_number} {time_of(operation.timestamp_ms)} "
            f"{kind_of(operation)}: {describe(operation, container_id)}"
        )

    return line


def _times() -> Callable[[int], str]:
    """Times as ISO 8601; those of one second share their beginning."""
    second, beginning = -1, ""

    def time_of(time_ms: int) -> str:
        nonlocal second, beginning
        seconds, ms = divmod(time_ms, _SECOND_MS)
        if seconds != second:
            second = seconds
            beginning = datetime.fromtimestamp(seconds, UTC).isoformat()[:-6]
        return f"{beginning}.{ms:03}+00:00"

    return time_of
