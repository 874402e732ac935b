"""Extents: payload cut into equal pieces, each stored alone, as it is or compressed.

Rules of this file:

- an extent is compressed alone, so that any of them can be read without the others;
- one that does not get smaller is stored as it is: its stored length is its length then, and says
  so;
- what comes out of a decompressor is believed only if it is exactly as long as it must be.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import zstandard

from segmentstore.contracts.checksum import Buffer
from tier2.block_header import CODEC_NONE, CODEC_ZSTD

CODECS_BY_NAME: Final[Mapping[str, int]] = {"none": CODEC_NONE, "zstd": CODEC_ZSTD}
"""What the setting `compression` means."""
ZSTD_LEVEL = 3
"""200 to 400 MB/s on text, which shrinks to a third or a fifth; noise is given up at 2 GB/s."""


def cut_extents(parts: Sequence[Buffer], extent_bytes: int) -> Iterator[Buffer]:
    """The concatenation of `parts` in pieces of `extent_bytes`, the last perhaps shorter.

    Copies only across borders.
    """
    held: list[Buffer] = []
    room = extent_bytes
    for part in parts:
        view = memoryview(part)
        position = 0
        while len(view) - position >= room:
            piece = view[position : position + room]
            position += room
            yield b"".join((*held, piece)) if held else piece
            held, room = [], extent_bytes
        if position < len(view):
            held.append(view[position:])
            room -= len(view) - position
    if held:
        yield b"".join(held)


def compress_extents(parts: Sequence[Buffer], extent_bytes: int) -> list[Buffer]:
    """Each extent of the concatenation of `parts` as it is to be stored: compressed if that is
    smaller.

    The interpreter lock is free while an extent is compressed. 3 to 5 ms per MiB.
    """
    compressor = zstandard.ZstdCompressor(
        level=ZSTD_LEVEL, write_checksum=False, write_dict_id=False
    )
    stored: list[Buffer] = []
    for extent in cut_extents(parts, extent_bytes):
        compressed = compressor.compress(extent)
        stored.append(compressed if len(compressed) < len(extent) else extent)
    return stored


class ExtentDecompressor:
    """Decompresses extents, one at a time. Not to be shared between threads."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor()

    def payload(self, stored: Buffer, length: int) -> Buffer:
        """The `length` bytes of an extent out of its stored ones.

        Raises ValueError if it does not hold just those.
        """
        if len(stored) == length:
            return stored
        try:
            # Asked before: a frame's own word is how much the decompressor would allocate.
            promised = zstandard.frame_content_size(stored)
            if promised != length:
                raise ValueError(f"a frame of {promised} bytes where {length} are needed")
            payload = self._zstd.decompress(stored, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise ValueError(f"it cannot be decompressed: {error}") from error
        if len(payload) != length:
            raise ValueError(f"{len(payload)} bytes come out where {length} are needed")
        return payload
