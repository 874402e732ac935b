"""The manifest of a metadata snapshot: which files, each an object of its own, are one container's
metadata catalog as of one sequence number (docs/formats/metadata-snapshot.md).

- a manifest says by itself what it is: store, containers, container, epoch, sequence number, time;
- a file is named by the epoch and unique id in its object's name, so it is always one of the
  container's own;
- there is one spelling of each manifest: the files are sorted by their local names;
- magic, header length, version and header checksum keep their places in every version.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from segmentstore.contracts.checksum import Buffer, crc32c
from tier2.object_names import (
    is_name_part,
    metadata_file_name,
    metadata_manifest_name,
    parse_metadata_manifest_name,
)
from tier2.unique_ids import UNIQUE_ID_BYTES

MAGIC = b"SSMSNP1\n"
VERSION = 1
HEADER_BYTES = 96
"""Length of the header this version writes; a reader takes longer ones and skips what it does not
know.
"""
HEADER_BYTES_MAX = 4096
CONTAINERS_MAX = 65_536
MANIFEST_BYTES_MAX = 64 * 1024 * 1024
"""Of a whole manifest: more is refused unread."""
LOCAL_NAME_BYTES_MAX = 255

_FIELDS = struct.Struct(">8sII16sIIQQQQI")
_CHECKSUM = struct.Struct(">I")
_COUNT = struct.Struct(">I")
_FILE = struct.Struct(">Q16sQIB")
_PADDING = bytes(HEADER_BYTES - _FIELDS.size - _CHECKSUM.size)
_NO_OBJECT = bytes(UNIQUE_ID_BYTES)

assert _FIELDS.size == 76, "the fields stand at the places the format page gives"


class MetadataManifestFormatError(Exception):
    """Bytes are not the manifest they should be."""


class FileContent(NamedTuple):
    """A file of the catalog, as far as it is compared: two equal ones are taken for the same."""

    local_name: str
    """One part of a path, at most LOCAL_NAME_BYTES_MAX characters of `a-z A-Z 0-9 - _ .`."""
    size: int
    """Bytes, 0 to 2^64 - 1."""
    crc32c: int


class SnapshotFile(NamedTuple):
    """A file of a snapshot, and the object that holds it."""

    content: FileContent
    epoch: int
    """Of the owner that uploaded it; 0 for an empty file, which has no object."""
    unique_id: bytes
    """In the object's name; zeros for an empty file."""

    def object_name(self, container_id: int) -> str | None:
        """The object that holds the file; None for an empty file."""
        if not self.content.size:
            return None
        return metadata_file_name(container_id, self.epoch, self.unique_id)


class MetadataManifest(NamedTuple):
    """One metadata snapshot."""

    store_id: uuid.UUID
    containers: int
    """Of the store: names of segments are mapped to containers by it."""
    container_id: int
    epoch: int
    """Of the owner that wrote it."""
    sequence_number: int
    """Of the last operation in the state."""
    unique_id: bytes
    time_ms: int
    """Wall time of the writing, milliseconds since 1970 UTC; for people alone."""
    files: tuple[SnapshotFile, ...]
    """By local name."""

    @property
    def name(self) -> str:
        """Of its object."""
        return metadata_manifest_name(
            self.container_id, self.epoch, self.sequence_number, self.unique_id
        )

    @property
    def objects(self) -> frozenset[str]:
        """Names of all objects that hold its files."""
        named = (file.object_name(self.container_id) for file in self.files)
        return frozenset(name for name in named if name is not None)


def empty_file(content: FileContent) -> SnapshotFile:
    """A file without bytes, which needs no object."""
    return SnapshotFile(content, 0, _NO_OBJECT)


def encode_metadata_manifest(manifest: MetadataManifest) -> bytes:
    """The object's bytes. ValueError for what `decode_metadata_manifest` would refuse."""
    body = bytearray(_COUNT.pack(len(manifest.files)))
    for (local_name, size, crc), epoch, unique_id in manifest.files:
        name = local_name.encode()
        if len(name) > LOCAL_NAME_BYTES_MAX:
            raise ValueError(f"a local name of {len(name)} bytes")
        body += _FILE.pack(epoch, unique_id, size, crc, len(name)) + name
    fields = _FIELDS.pack(
        MAGIC,
        HEADER_BYTES,
        VERSION,
        manifest.store_id.bytes,
        manifest.containers,
        manifest.container_id,
        manifest.epoch,
        manifest.sequence_number,
        manifest.time_ms,
        len(body),
        crc32c(body),
    )
    checked = fields + _PADDING
    data = checked + _CHECKSUM.pack(crc32c(checked)) + bytes(body)
    try:
        decode_metadata_manifest(data, manifest.name)
    except MetadataManifestFormatError as error:
        raise ValueError(str(error)) from None
    return data


def decode_metadata_manifest(data: Buffer, name: str) -> MetadataManifest:
    """The manifest that is the whole object `name`. Raises MetadataManifestFormatError."""
    view = memoryview(data)
    header_length = _check_header(view)
    _, _, _, store_id, containers, container_id, *rest = _FIELDS.unpack_from(view)
    epoch, sequence_number, time_ms, body_length, body_crc = rest
    if not 1 <= containers <= CONTAINERS_MAX or container_id >= containers:
        raise MetadataManifestFormatError(f"container {container_id} of {containers}")
    named = parse_metadata_manifest_name(name)
    if named is None or named[:3] != (container_id, epoch, sequence_number):
        raise MetadataManifestFormatError(
            "its header says that it is another one than its name does"
        )
    body = view[header_length:]
    if len(body) != body_length:
        raise MetadataManifestFormatError(
            f"a list of {len(body)} bytes where {body_length} are recorded"
        )
    if (actual := crc32c(body)) != body_crc:
        raise MetadataManifestFormatError(
            f"list checksum {actual:08x} where {body_crc:08x} is recorded"
        )
    files = _decode_files(bytes(body))
    _check_files(files, epoch)
    return MetadataManifest(
        uuid.UUID(bytes=store_id),
        containers,
        container_id,
        epoch,
        sequence_number,
        named.unique_id,
        time_ms,
        files,
    )


def _check_header(view: memoryview) -> int:
    """The header's length, when it is whole and of a version that this program reads."""
    if len(view) < HEADER_BYTES:
        raise MetadataManifestFormatError(f"{len(view)} bytes where a header has {HEADER_BYTES}")
    magic, header_length, version = _FIELDS.unpack_from(view)[:3]
    if magic != MAGIC:
        raise MetadataManifestFormatError(
            f"it begins with {magic.hex(' ')}, not with a metadata manifest's magic"
        )
    if not HEADER_BYTES <= header_length <= min(HEADER_BYTES_MAX, len(view)):
        raise MetadataManifestFormatError(f"header length {header_length} in {len(view)} bytes")
    checked_length = int(header_length) - _CHECKSUM.size
    (expected,) = _CHECKSUM.unpack_from(view, checked_length)
    if (actual := crc32c(view[:checked_length])) != expected:
        raise MetadataManifestFormatError(
            f"header checksum {actual:08x} where {expected:08x} is recorded"
        )
    if not 1 <= version <= VERSION:
        raise MetadataManifestFormatError(f"version {version}; this program reads 1 to {VERSION}")
    return int(header_length)


def _decode_files(body: bytes) -> tuple[SnapshotFile, ...]:
    files: list[SnapshotFile] = []
    try:
        (count,) = _COUNT.unpack_from(body)
        place = _COUNT.size
        for _ in range(count):
            epoch, unique_id, size, crc, length = _FILE.unpack_from(body, place)
            place += _FILE.size
            local_name = body[place : place + length].decode("ascii")
            place += length
            files.append(SnapshotFile(FileContent(local_name, size, crc), epoch, unique_id))
    except (struct.error, UnicodeDecodeError) as error:
        raise MetadataManifestFormatError(f"the list of files is cut or broken: {error}") from None
    if place != len(body):
        raise MetadataManifestFormatError(f"the list of files ends at {place} of {len(body)} bytes")
    return tuple(files)


def _check_files(files: Sequence[SnapshotFile], epoch: int) -> None:
    before, seen = "", set[bytes]()
    for file in files:
        name = file.content.local_name
        if not is_name_part(name):
            raise MetadataManifestFormatError(f"{name!r} cannot be a file's local name")
        if name <= before:
            raise MetadataManifestFormatError(f"file {name} is there twice, or out of order")
        before = name
        if not file.content.size:
            if file != SnapshotFile(FileContent(name, 0, 0), 0, _NO_OBJECT):
                raise MetadataManifestFormatError(f"file {name} is empty, and names an object")
            continue
        if file.unique_id in seen:
            raise MetadataManifestFormatError(f"file {name} has the object of another one")
        seen.add(file.unique_id)
        if file.epoch > epoch:
            raise MetadataManifestFormatError(
                f"file {name} is of epoch {file.epoch}, behind the manifest's {epoch}"
            )
