"""The search for frames behind a damaged place: none is passed over, wherever it lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from durablelog.data_frame import FRAME_HEADER_LENGTH, seal_header
from durablelog.file.frame_pieces import PIECE_BYTES, find_frames
from segmentstore.contracts.disk import OsDisk

SMALL_PIECE = 64
PAYLOAD = b"payload"


def found_in(path: Path, data: bytes, piece_bytes: int) -> list[int]:
    path.write_bytes(data)
    file = OsDisk().open(str(path))
    try:
        return [position for position, _ in find_frames(file, 0, piece_bytes=piece_bytes)]
    finally:
        file.close()


@pytest.mark.parametrize("behind", range(2 * FRAME_HEADER_LENGTH + 3))
def test_a_frame_between_zeros_is_found_at_any_place(tmp_path: Path, behind: int) -> None:
    frame = seal_header(0, 1, 7, 6, [PAYLOAD]) + PAYLOAD
    begin = 4 * SMALL_PIECE + behind
    data = bytes(begin) + frame + bytes(3 * SMALL_PIECE)
    assert found_in(tmp_path / "log", data, SMALL_PIECE) == [begin]


@pytest.mark.parametrize("away", [-4, -3, -1, 0, 1])
def test_so_it_is_at_the_edges_of_real_pieces(tmp_path: Path, away: int) -> None:
    frame = seal_header(0, 1, 7, 6, [PAYLOAD]) + PAYLOAD
    begin = 2 * PIECE_BYTES + away
    assert found_in(tmp_path / "log", bytes(begin) + frame, PIECE_BYTES) == [begin]


def test_nothing_is_found_in_zeros(tmp_path: Path) -> None:
    assert found_in(tmp_path / "log", bytes(PIECE_BYTES + 10), PIECE_BYTES) == []
    assert found_in(tmp_path / "log", b"", PIECE_BYTES) == []
