"""Past operations as lines: of text for people, of JSON for programs. Pure.

Millions of them are shown in a row, most of them appends: these are formatted without a detour.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from durablelog.operations import AppendOperation
from recovery.archived_history import PastOperation
from segmentstore.listed_entries import describe, kind_of

_SECOND_MS: Final = 1000

LineOf = Callable[[PastOperation], str]


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
