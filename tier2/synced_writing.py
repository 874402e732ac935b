"""Writes of objects to a disk that the log may share: in pieces, each synced.

One sync of a whole object keeps the disk for as long as the object takes, and every append waits
behind it. Where the room was found before, the pieces together are as fast as one write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.disk import DiskFile

SYNCED_BYTES: Final = 1024 * 1024
"""Never more than this is written and not synced."""


def write_synced(file: DiskFile, parts: Sequence[Buffer], offset: int) -> int:
    """Write `parts` from `offset` on; gives the offset behind them. Raises OSError.

    The file is synced even if there are no bytes.
    """
    for piece in pieces_of(parts, SYNCED_BYTES):
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
