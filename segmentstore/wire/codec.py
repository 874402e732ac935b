"""One command to bytes, and back.

The format's page: docs/formats/wire.md.
"""

from __future__ import annotations

import struct
from typing import Final

from segmentstore.contracts.checksum import Buffer
from segmentstore.wire.commands import Command
from segmentstore.wire.errors import WireError
from segmentstore.wire.fields import FRAME_BYTES_MAX
from segmentstore.wire.formats import ALL
from segmentstore.wire.layouts import Layout
from segmentstore.wire.store_formats import STORE_COMMANDS

HEADER: Final = struct.Struct(">ii")
"""Of a frame: the type of its command, and the length of the payload behind it."""
APART_BYTES_MIN: Final = 4096
"""Smaller parts are cheaper to copy than to hand over."""

_PAYLOAD_BYTES_MAX: Final = FRAME_BYTES_MAX - HEADER.size
_STORE_PAYLOAD_BYTES_MAX: Final = 2**31 - 1
"""Of our own commands. The two sides agree on less."""
_LAYOUTS: Final[dict[type, tuple[int, Layout, int]]] = {
    layout.kind: (type_id, layout, bound)
    for table, bound in (
        (ALL, _PAYLOAD_BYTES_MAX),
        (STORE_COMMANDS, _STORE_PAYLOAD_BYTES_MAX),
    )
    for type_id, layout in table.items()
}


def encode(command: Command) -> bytes:
    """The whole frame of a command. Raises WireError if a value has no place in it."""
    return b"".join(_parts(command))


def encode_parts(command: Command) -> list[Buffer]:
    """The same bytes in parts: data of at least APART_BYTES_MIN is one, and not copied.

    So it must not change until the parts are sent. Raises WireError.
    """
    parts = _parts(command)
    if max(map(len, parts)) < APART_BYTES_MIN:
        return [b"".join(parts)]
    result, small = list[Buffer](), list[Buffer]()
    for part in parts:
        if len(part) < APART_BYTES_MIN:
            small.append(part)
            continue
        if small:
            result.append(b"".join(small))
            small.clear()
        result.append(part)
    if small:
        result.append(b"".join(small))
    return result


def decode(type_id: int, payload: Buffer) -> Command:
    """The command of a frame.

    Its data are views of `payload`, which must not change; keys and values of tables are copies.

    Raises WireError.
    """
    layout = ALL.get(type_id) or STORE_COMMANDS.get(type_id)
    if layout is None:
        raise WireError(f"unknown command {type_id}")
    return read_command(layout, payload)


def read_command(layout: Layout, payload: Buffer) -> Command:
    """As `decode`, of a layout that is known."""
    try:
        command: Command = layout.read(payload, 0)[0]
        return command
    except struct.error as error:
        message = f"malformed {layout.kind.__name__}: {len(payload)} bytes are too few"
        raise WireError(message) from error
    except (UnicodeDecodeError, WireError) as error:
        raise WireError(f"malformed {layout.kind.__name__}: {error}") from error


def _parts(command: Command) -> list[Buffer]:
    type_id, layout, length_max = _LAYOUTS[type(command)]
    parts: list[Buffer] = [b""]
    try:
        layout.write(command, parts)
    except (struct.error, WireError) as error:
        raise WireError(f"{type(command).__name__} cannot be written: {error}") from error
    length = sum(map(len, parts))
    if length > length_max:
        raise WireError(f"{type(command).__name__} of {length} bytes is too long for a frame")
    parts[0] = HEADER.pack(type_id, length)
    return parts
