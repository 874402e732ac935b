"""The rounds of the bench of a moment on a short history. No timing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import archived_moment
from bench.s3_service import MIB, s3_service, tier2_url
from bench.workspace import BenchError


def test_a_moment_of_a_history_is_restored_and_checked(tmp_path: Path) -> None:
    with s3_service(tmp_path) as (endpoint, _):
        place = (str(tmp_path), tier2_url(endpoint, "archive"))
        history = archived_moment.fill(*place, mib=384)
        moment = history["half"]
        assert (moment["length"], history["parts"]) == (192 * MIB, 3)
        measured = archived_moment.restore_round(*place, **moment)
        assert 0 < measured["mib"] < 2 * history["archived_mib"]
        assert measured["value"] > 0
        with pytest.raises(BenchError, match="the segment restored"):
            archived_moment.restore_round(*place, **{**moment, "length": moment["length"] - 1})
