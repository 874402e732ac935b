"""What a store of keys keeps of its own, pure: whose it is, and which state it has.

The format's page: docs/formats/metadata-catalog.md. Their keys begin with 0, and no caller's does.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from durablelog.catalog.catalog_keys import MetadataFormatError
from durablelog.operation_codec import decode_text, encode_text

VERSION: Final = 2
"""Of the catalog: of all keys and values."""
_VERSIONS: Final = range(1, VERSION + 1)
"""Version 1 has neither totals nor the table of unflushed segments."""

OWN_KEYS_END: Final = b"\x01"
"""Keys before it are the store's own."""
IDENTITY_KEY: Final = b"\x00\x01"
SEQUENCE_NUMBER_KEY: Final = b"\x00\x02"

_HEAD = struct.Struct(">HI")
_NUMBER = struct.Struct(">Q")


class KeyStoreIdentity(NamedTuple):
    """Whose keys they are. A restored store has a new id."""

    store_id: str
    container_id: int


def encode_identity(identity: KeyStoreIdentity) -> bytes:
    """The value of IDENTITY_KEY."""
    return _HEAD.pack(VERSION, identity.container_id) + encode_text(identity.store_id)


def decode_identity(value: bytes) -> KeyStoreIdentity:
    """Whose they are. Raises MetadataFormatError, of a newer version too."""
    try:
        version, container_id = _HEAD.unpack_from(value)
        if version not in _VERSIONS:
            words = f"version {version} of the catalog, where {VERSION} is the newest known"
            raise MetadataFormatError(words)
        store_id, position = decode_text(value, _HEAD.size)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise MetadataFormatError(f"malformed identity: {error}") from error
    if position != len(value):
        raise MetadataFormatError(f"malformed identity: {len(value) - position} bytes behind it")
    return KeyStoreIdentity(store_id, container_id)


def encode_sequence_number(sequence_number: int) -> bytes:
    """The value of SEQUENCE_NUMBER_KEY."""
    return _NUMBER.pack(sequence_number)


def decode_sequence_number(value: bytes) -> int:
    """The number of the last operation the store has. Raises MetadataFormatError."""
    try:
        (sequence_number,) = _NUMBER.unpack(value)
    except struct.error as error:
        raise MetadataFormatError(f"malformed sequence number: {error}") from error
    return int(sequence_number)
