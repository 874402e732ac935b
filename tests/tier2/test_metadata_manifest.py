"""The manifest of a metadata snapshot: its bytes, its names, and what is refused."""

from __future__ import annotations

import struct
import uuid
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.contracts.checksum import crc32c
from tier2.metadata_manifest import (
    HEADER_BYTES,
    FileContent,
    MetadataManifest,
    MetadataManifestFormatError,
    SnapshotFile,
    decode_metadata_manifest,
    empty_file,
    encode_metadata_manifest,
)
from tier2.object_names import metadata_file_name, metadata_manifest_name, metadata_prefix

GOLDEN = Path(__file__).parent / "golden" / "metadata-snapshot-1.bin"
STORE = uuid.UUID("0b4f6c1e-6f0a-4c8e-9d7b-2f5f4f9f6d10")
IDS = [bytes.fromhex("d838b2c71fbb5da0") + bytes([number] * 8) for number in range(4)]
EXAMPLE = MetadataManifest(
    STORE,
    4,
    3,
    5,
    0x102,
    IDS[0],
    1_700_000_000_000,
    (
        SnapshotFile(FileContent("000012.sst", 4096, 0x01020304), 4, IDS[1]),
        empty_file(FileContent("000013.log", 0, 0)),
        SnapshotFile(FileContent("CURRENT", 16, 0x0A0B0C0D), 5, IDS[2]),
    ),
)
U64 = st.integers(0, 2**64 - 1)
UNIQUE = st.binary(min_size=16, max_size=16)


@st.composite
def manifests(draw: st.DrawFn) -> MetadataManifest:
    epoch, containers = draw(U64), draw(st.integers(1, 65_536))
    names = draw(
        st.lists(st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,20}", fullmatch=True), unique=True)
    )
    ids = draw(st.lists(UNIQUE, unique=True, min_size=len(names), max_size=len(names)))
    files = []
    for name, unique_id in zip(sorted(names), ids, strict=True):
        content = FileContent(name, draw(U64), draw(st.integers(0, 2**32 - 1)))
        files.append(
            SnapshotFile(content, draw(st.integers(0, epoch)), unique_id)
            if content.size
            else empty_file(FileContent(name, 0, 0))
        )
    return MetadataManifest(
        draw(st.uuids()),
        containers,
        draw(st.integers(0, containers - 1)),
        epoch,
        draw(U64),
        draw(UNIQUE),
        draw(U64),
        tuple(files),
    )


def test_the_bytes_and_names_of_the_format_page() -> None:
    assert encode_metadata_manifest(EXAMPLE) == GOLDEN.read_bytes()
    assert EXAMPLE.name == (
        "metadata/00000003/0000000000000005-0000000000000102-d838b2c71fbb5da00000000000000000"
    )
    assert EXAMPLE.objects == {
        "metadata/00000003/files/0000000000000004-d838b2c71fbb5da00101010101010101",
        "metadata/00000003/files/0000000000000005-d838b2c71fbb5da00202020202020202",
    }
    assert decode_metadata_manifest(GOLDEN.read_bytes(), EXAMPLE.name) == EXAMPLE


@settings(deadline=None)
@given(manifests())
def test_manifests_are_read_back(manifest: MetadataManifest) -> None:
    data = encode_metadata_manifest(manifest)
    assert decode_metadata_manifest(data, manifest.name) == manifest
    assert all(name.startswith(metadata_prefix(manifest.container_id)) for name in manifest.objects)


@settings(deadline=None)
@given(U64, U64, UNIQUE)
def test_manifests_sort_before_files_and_by_what_they_contain(
    epoch: int, number: int, unique_id: bytes
) -> None:
    later = metadata_manifest_name(3, min(epoch + 1, 2**64 - 1), 0, unique_id)
    assert metadata_manifest_name(3, epoch, number, unique_id) <= later or epoch == 2**64 - 1
    assert metadata_manifest_name(3, epoch, number, unique_id) < metadata_file_name(3, 0, unique_id)


def test_no_byte_can_change_unnoticed_and_none_is_missed_or_added() -> None:
    whole = encode_metadata_manifest(EXAMPLE)
    for place in range(len(whole)):
        spoiled = bytearray(whole)
        spoiled[place] ^= 0x40
        for wrong in (bytes(spoiled), whole[:place]):
            with pytest.raises(MetadataManifestFormatError):
                decode_metadata_manifest(wrong, EXAMPLE.name)
    with pytest.raises(MetadataManifestFormatError):
        decode_metadata_manifest(whole + b"x", EXAMPLE.name)


def test_a_manifest_under_the_name_of_another_is_refused() -> None:
    whole = encode_metadata_manifest(EXAMPLE)
    for name in (
        EXAMPLE._replace(container_id=2).name,
        EXAMPLE._replace(epoch=6).name,
        EXAMPLE._replace(sequence_number=1).name,
        metadata_file_name(3, 5, IDS[0]),
        "x",
    ):
        with pytest.raises(MetadataManifestFormatError, match="another one"):
            decode_metadata_manifest(whole, name)


def resealed(data: bytearray) -> bytes:
    """With the checksums of the header and the list made right."""
    struct.pack_into(">I", data, 72, crc32c(data[HEADER_BYTES:]))
    struct.pack_into(">I", data, HEADER_BYTES - 4, crc32c(data[: HEADER_BYTES - 4]))
    return bytes(data)


def test_a_newer_version_and_a_container_beyond_the_store_are_refused() -> None:
    for place, value, why in ((12, 2, "version 2"), (12, 0, "version 0"), (32, 3, "container 3")):
        data = bytearray(encode_metadata_manifest(EXAMPLE))
        struct.pack_into(">I", data, place, value)
        with pytest.raises(MetadataManifestFormatError, match=why):
            decode_metadata_manifest(resealed(data), EXAMPLE.name)


def test_a_longer_header_of_a_later_program_is_skipped() -> None:
    data = encode_metadata_manifest(EXAMPLE)
    longer = bytearray(data[: HEADER_BYTES - 4] + bytes(8) + bytes(4))
    struct.pack_into(">I", longer, 8, HEADER_BYTES + 8)
    struct.pack_into(">I", longer, len(longer) - 4, crc32c(longer[:-4]))
    assert decode_metadata_manifest(longer + data[HEADER_BYTES:], EXAMPLE.name) == EXAMPLE


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ((EXAMPLE.files[0], EXAMPLE.files[0]), "twice"),
        ((EXAMPLE.files[2], EXAMPLE.files[0]), "out of order"),
        (
            (EXAMPLE.files[0], EXAMPLE.files[2]._replace(unique_id=IDS[1])),
            "object of another one",
        ),
        ((EXAMPLE.files[0]._replace(epoch=6),), "behind the manifest"),
        ((SnapshotFile(FileContent("a", 0, 1), 0, bytes(16)),), "empty"),
        ((SnapshotFile(FileContent("a", 0, 0), 0, IDS[1]),), "empty"),
        ((SnapshotFile(FileContent("..", 1, 0), 0, IDS[1]),), "local name"),
        ((SnapshotFile(FileContent("a/b", 1, 0), 0, IDS[1]),), "local name"),
        ((SnapshotFile(FileContent("é", 1, 0), 0, IDS[1]),), "broken"),
        ((SnapshotFile(FileContent("a" * 256, 1, 0), 0, IDS[1]),), "256"),
    ],
)
def test_a_list_of_files_that_makes_no_sense_is_not_written(
    files: tuple[SnapshotFile, ...], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        encode_metadata_manifest(EXAMPLE._replace(files=files))
