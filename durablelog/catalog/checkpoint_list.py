"""The list of a checkpoint's files, pure. Format: docs/formats/metadata-catalog-files.md."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from durablelog.catalog.catalog_keys import MetadataFormatError
from durablelog.catalog.key_store import CheckpointFile
from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.operation_codec import decode_text, encode_text
from segmentstore.contracts.checksum import crc32c

MAGIC: Final = b"SSMCPL1\n"
VERSION: Final = 1

_HEAD = struct.Struct(">8sIIQ")
_COUNT = struct.Struct(">I")
_FILE = struct.Struct(">QI")
_CHECKSUM = struct.Struct(">I")


class CheckpointList(NamedTuple):
    """Whose a directory is, and what is in it."""

    identity: KeyStoreIdentity
    sequence_number: int
    files: tuple[CheckpointFile, ...]
    """By name; none of a working directory, whose files change."""


def encode_checkpoint_list(listed: CheckpointList) -> bytes:
    """The whole file."""
    identity, number, files = listed
    parts = [
        _HEAD.pack(MAGIC, VERSION, identity.container_id, number),
        encode_text(identity.store_id),
        _COUNT.pack(len(files)),
    ]
    for name, size, checksum in files:
        parts += (_FILE.pack(size, checksum), encode_text(name))
    content = b"".join(parts)
    return content + _CHECKSUM.pack(crc32c(content))


def decode_checkpoint_list(whole: bytes) -> CheckpointList:
    """What `encode_checkpoint_list` made. Raises MetadataFormatError, of another version too."""
    content = whole[: -_CHECKSUM.size]
    if whole[-_CHECKSUM.size :] != _CHECKSUM.pack(crc32c(content)):
        raise MetadataFormatError("a list of files has another checksum")
    try:
        magic, version, container_id, number = _HEAD.unpack_from(content)
        if magic != MAGIC or version != VERSION:
            raise MetadataFormatError(f"a list of files of version {version}, magic {magic!r}")
        store_id, position = decode_text(content, _HEAD.size)
        (count,) = _COUNT.unpack_from(content, position)
        position += _COUNT.size
        files: list[CheckpointFile] = []
        for _ in range(count):
            size, checksum = _FILE.unpack_from(content, position)
            name, position = decode_text(content, position + _FILE.size)
            files.append(CheckpointFile(_local(name), size, checksum))
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise MetadataFormatError(f"malformed list of files: {error}") from error
    if position != len(content):
        raise MetadataFormatError(f"{len(content) - position} bytes behind a list of files")
    return CheckpointList(KeyStoreIdentity(store_id, container_id), number, tuple(files))


def _local(name: str) -> str:
    if not name or "/" in name or name in (".", ".."):
        raise MetadataFormatError(f"{name!r} is no name of a file")
    return name
