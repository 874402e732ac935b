"""The rounds of the archive's bench on a small ledger. No timing."""

from __future__ import annotations

import json
from pathlib import Path

from bench import archive
from bench.s3_service import MIB, s3_service


def test_each_side_of_a_round_moves_all_bytes(tmp_path: Path) -> None:
    with s3_service(tmp_path) as (endpoint, _):
        sides = (
            archive.upload_floor_round,
            archive.upload_round,
            archive.read_floor_round,
            archive.read_round,
        )
        for side in sides:
            measured = side(endpoint, 7 * MIB)
            assert measured["value"] > 0
            json.dumps(measured)
        assert archive.entries_round(endpoint, 7 * MIB)["value"] <= archive.GETS_MAX
