"""The rounds of the replay's bench on a few operations. No timing."""

from __future__ import annotations

from pathlib import Path

from bench import archive_replay


def test_every_side_reads_what_was_archived(tmp_path: Path) -> None:
    archive_replay.fill(str(tmp_path), 3000)
    for side in (
        archive_replay.floor_round,
        archive_replay.lines_round,
        archive_replay.state_round,
    ):
        assert side(str(tmp_path), 3000)["value"] > 0
