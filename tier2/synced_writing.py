"""Writes of objects to a disk that the log may share: in parts, each synced.

One sync of a whole object keeps the disk for as long as the object takes, and every append waits
behind it. But a disk takes large parts faster. So parts are small while objects come with pauses
between them, and grow while they follow each other: then appends wait for Tier 2 anyway
(docs/decisions/0086).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.disk import DiskFile

SYNCED_BYTES: Final = 1024 * 1024
"""Of the smallest parts."""
GROWTH: Final = 8
"""And so many times as large as those of the object before are the parts of one without a pause."""
SYNCED_BYTES_MAX: Final = GROWTH**2 * SYNCED_BYTES
BUSY_PAUSE: Final = 2
"""A pause shorter than so many times what the object before took is none."""
IDLE_PAUSE: Final = 4
"""From such a pause on the parts are small again."""


class SyncSizes:
    """Of one storage: how large a part may be. Pure: times are milliseconds of one clock.

    A hint: calls of several threads may come in any order.
    """

    def __init__(self) -> None:
        self._ended_ms = self._took_ms = 0
        self._bytes = SYNCED_BYTES

    def begin(self, now_ms: int) -> int:
        """Bytes of the parts of an object whose writing begins."""
        pause_ms = now_ms - self._ended_ms
        if pause_ms < BUSY_PAUSE * self._took_ms:
            self._bytes = min(self._bytes * GROWTH, SYNCED_BYTES_MAX)
        elif pause_ms >= IDLE_PAUSE * self._took_ms:
            self._bytes = SYNCED_BYTES
        return self._bytes

    def end(self, begun_ms: int, now_ms: int) -> None:
        """The writing of it has ended."""
        self._ended_ms, self._took_ms = now_ms, now_ms - begun_ms


def write_synced(
    file: DiskFile, parts: Sequence[Buffer], offset: int, part_bytes: int = SYNCED_BYTES
) -> int:
    """Write `parts` from `offset` on; gives the offset behind them. Raises OSError.

    The file is synced even if there are no bytes.
    """
    for piece in pieces_of(parts, part_bytes):
        file.pwrite(piece, offset)
        file.sync()
        offset += sum(map(len, piece))
    return offset


def pieces_of(parts: Sequence[Buffer], size: int) -> Iterator[list[memoryview]]:
    """The bytes of `parts` in order, `size` in each piece but the last. Nothing is copied.

    There is one piece at least: an empty one where there are no bytes.
    """
    piece: list[memoryview] = []
    room = size
    none = True
    for part in parts:
        rest = memoryview(part)
        while rest:
            taken, rest = rest[:room], rest[room:]
            piece.append(taken)
            room -= len(taken)
            if not room:
                yield piece
                piece, room, none = [], size, False
    if piece or none:
        yield piece
