"""Tokens of iterations over hash tables, pure: of which table, and behind which key to go on.

Opaque to callers. A token is of use as long as the table is there, also after a restart.
"""

from __future__ import annotations

import struct
from typing import Final

from segmentstore.contracts.errors import InvalidArgumentError
from segmentstore.tables.table_types import KEY_BYTES_MAX

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">BIQ")


def encode_token(container_id: int, segment_id: int, key: bytes) -> bytes:
    """The token that goes on behind `key`."""
    return _HEAD.pack(_VERSION, container_id, segment_id) + key


def decode_token(token: object, container_id: int, segment_id: int) -> bytes:
    """The key that a token goes on behind.

    Raises InvalidArgumentError: it is none, or of another table.
    """
    if type(token) is not bytes:
        raise InvalidArgumentError("token", type(token).__name__, "it is bytes")
    shown = token[:40].hex()
    if not _HEAD.size < len(token) <= _HEAD.size + KEY_BYTES_MAX or token[0] != _VERSION:
        raise InvalidArgumentError("token", shown, "it is not one that an iteration gave")
    if _HEAD.unpack_from(token)[1:] != (container_id, segment_id):
        raise InvalidArgumentError("token", shown, "it is of another table")
    return token[_HEAD.size :]
