"""Frames that have appends alone, each whole: nearly all of a log of small appends. Pure.

What is here says nothing that entry headers and the codec of operations do not say, and is twice as
fast. `DataFrameReader` and `decode_operation` get every other frame, and all that is wrong.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from durablelog.data_frame import ENTRY_HEADER, ENTRY_HEADER_LENGTH, ENTRY_WHOLE
from durablelog.durable_data_log import LogAddress
from durablelog.operation_codec import (
    APPEND_HEAD,
    APPEND_HEAD_LENGTH,
    ATTRIBUTE,
    ATTRIBUTE_LENGTH,
    PREFIX_LENGTH,
    VERSION,
)
from durablelog.operations import AppendOperation

_APPEND_ENTRY: Final = struct.Struct(ENTRY_HEADER.format + APPEND_HEAD.format.lstrip(">"))
_TYPE: Final = AppendOperation.type_id
_BODY_LENGTH: Final = APPEND_HEAD_LENGTH - PREFIX_LENGTH
_pack = _APPEND_ENTRY.pack


class LoggedAppends(NamedTuple):
    """Appends that follow each other in a log, and end in one frame."""

    appends: Sequence[AppendOperation]
    """At least one."""
    length: int
    """Of their records."""
    address: LogAddress
    """Of the frame."""


def plain_entry(append: AppendOperation) -> bytes:
    """The entry of an append without attributes up to its data, whole in a frame: entry header and
    head. About 0.4 us.
    """
    size = len(append.data)
    return _pack(
        APPEND_HEAD_LENGTH + size,
        ENTRY_WHOLE,
        _TYPE,
        VERSION,
        append.sequence_number,
        append.timestamp_ms,
        _BODY_LENGTH + size,
        append.segment_id,
        append.offset,
        0,
    )


def whole_appends(
    payload: memoryview, payload_address: LogAddress | None, placed_min: int
) -> list[AppendOperation] | None:
    """The appends of a frame's payload, whose bytes are views into it; None if it has anything
    else. Those of `placed_min` bytes and more get their places, if the payload has an address.

    About 0.6 us each.
    """
    if payload_address is None:
        payload_address, placed_min = LogAddress(0), sys.maxsize
    appends: list[AppendOperation] = []
    unpack, head = _APPEND_ENTRY.unpack_from, _APPEND_ENTRY.size
    position, size = 0, len(payload)
    while position + head <= size:
        fields = unpack(payload, position)
        length, flags, type_id, version, sequence_number, timestamp_ms, *others = fields
        rest, segment_id, offset, count = others
        begin, end = position + head, position + ENTRY_HEADER_LENGTH + length
        if (
            flags != ENTRY_WHOLE
            or type_id != _TYPE
            or version > VERSION
            or rest != length - PREFIX_LENGTH
            or not begin <= end <= size
        ):
            return None
        attributes = None
        if count:
            attributes_end = begin + ATTRIBUTE_LENGTH * count
            if attributes_end > end:
                return None
            attributes = dict(ATTRIBUTE.iter_unpack(payload[begin:attributes_end]))
            begin = attributes_end
        append = AppendOperation(segment_id, offset, payload[begin:end], attributes)
        append.sequence_number = sequence_number
        append.timestamp_ms = timestamp_ms
        if end - begin >= placed_min:
            append.places = ((LogAddress(payload_address + begin), end - begin),)
        appends.append(append)
        position = end
    return appends if appends and position == size else None
