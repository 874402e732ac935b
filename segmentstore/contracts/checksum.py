"""The one checksum of the engine: CRC32C (Castagnoli), the polynomial of iSCSI, BookKeeper and
S3.
"""

from __future__ import annotations

from collections.abc import Iterable

from crc32c import crc32c as _crc32c

Buffer = bytes | bytearray | memoryview


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC32C of `data`, continued from `value`. About 40 us per MiB; 0.1 us for a header."""
    return _crc32c(data, value)


def crc32c_parts(parts: Iterable[Buffer]) -> int:
    """CRC32C of the concatenation of `parts`, without making it."""
    value = 0
    for part in parts:
        value = _crc32c(part, value)
    return value
