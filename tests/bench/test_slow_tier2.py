"""The bench of a slow Tier 2 measures what it says. No timing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import slow_tier2
from segmentstore.contracts.byte_sizes import KIB, MIB


@pytest.mark.parametrize("link_bytes_per_s", [0, 4 * MIB])
def test_a_round_counts_whole_seconds_and_the_waits_in_them(
    tmp_path: Path, link_bytes_per_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {
        "unflushed_bytes_max": 4 * MIB,
        "flush_bytes": 128 * KIB,
        "object_bytes": 256 * KIB,
        "upload_bytes_max": MIB,
        "unflushed_target_bytes": 512 * KIB,
    }
    monkeypatch.setattr(slow_tier2, "OPTIONS", {**slow_tier2.OPTIONS, **sizes})
    monkeypatch.setattr(slow_tier2, "SETTLE_S", 0.0)
    monkeypatch.setattr(slow_tier2, "FULL_SHARE", 0.1)
    measured = slow_tier2.round_of(str(tmp_path), 1.0, link_bytes_per_s)
    assert 0 <= measured["slowest_second"] <= measured["value"] <= measured["fastest_second"]
    assert 0 < measured["p50_ms"] <= measured["p99_ms"]
    # The bound, and one append of each caller that was on its way.
    assert measured["unflushed_mib"] <= 4 + slow_tier2.CALLERS * slow_tier2.APPEND_BYTES / MIB
    rows = slow_tier2._rows({"limited": [measured], "free": [measured]})
    assert [row.name for row in rows if row.bar] == ["slowest second", "fastest second", "p99"]
