"""The bench of a log's parts measures what it says. No timing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import log_parts
from bench.floor import MIB


@pytest.mark.parametrize("read_bytes_per_s", [0, 64 * MIB])
def test_the_parts_of_a_log_are_read_beside_appends(
    tmp_path: Path, read_bytes_per_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_parts, "APPENDS_PER_S", 1000)
    log_parts.fill(str(tmp_path), MIB)
    measured = log_parts.append_round(str(tmp_path), 0.05, read_bytes_per_s)
    assert 0 < measured["append_p50_ms"] <= measured["append_p99_ms"]
    replayed = log_parts.replay_round(str(tmp_path))
    assert replayed["operations"] > 16 * 400
    assert json.loads(json.dumps(replayed)) == replayed
