"""What metadata take in memory, about: measured with CPython 3.11."""

from __future__ import annotations

from typing import Final

SEGMENT_BYTES: Final = 1_000
"""An active segment without chunks and attributes."""
CHUNK_BYTES: Final = 160
ATTRIBUTE_BYTES: Final = 130


def metadata_bytes(segments: int, chunks: int, attributes: int) -> int:
    """What so many of them take."""
    return segments * SEGMENT_BYTES + chunks * CHUNK_BYTES + attributes * ATTRIBUTE_BYTES
