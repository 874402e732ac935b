"""The state of a scrub and its file: what comes back, what is refused, what is bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.kept_file import save_text
from recovery.scrub_state import (
    FILE_NAME,
    FINDINGS_MAX,
    ScrubPass,
    ScrubPosition,
    ScrubState,
    load_state,
    parse_state,
    render_state,
)
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.findings import Finding, Severity
from segmentstore.contracts.runtime import Runtime

STORE = "000102030405060708090a0b0c0d0e0f"


def finding(number: int, severity: Severity = Severity.NOTE) -> Finding:
    return Finding(severity, "block", f"object {number} block at 0 extent 1", "checksum")


def test_the_state_comes_back() -> None:
    state = ScrubState(current=ScrubPass(started_at_ms=5))
    assert parse_state(render_state(state, STORE), STORE) == state
    state.current.add([finding(1, Severity.HARMFUL), finding(2)])
    state.current.position = ScrubPosition(3, "a/name")
    state.current.finished_at_ms = 9
    state.begin(10)
    state.current.objects = 4
    assert parse_state(render_state(state, STORE), STORE) == state
    assert state.previous is not None
    assert (state.harmful, state.first_harmful) == (1, finding(1, Severity.HARMFUL))
    state.current.finished_at_ms = 11
    assert state.harmful == 0


def test_the_golden_file() -> None:
    golden = Path(__file__).parent / "golden" / "scrub-state-1.json"
    state = parse_state(golden.read_text(encoding="utf-8"), STORE)
    assert state.current.position == ScrubPosition(
        0, "2b/00000000/0000000000000001/flush-000102030405060708090a0b0c0d0e0f"
    )
    assert render_state(state, STORE) == golden.read_text(encoding="utf-8")


def test_no_changed_digit_moves_a_position_unseen() -> None:
    state = ScrubState(current=ScrubPass(started_at_ms=5))
    state.current.position = ScrubPosition(1, "2b/name")
    text = render_state(state, STORE)
    for changed in (
        text.replace('"container_id": 1', '"container_id": 9'),
        text.replace("2b/name", "fb/name"),
    ):
        assert changed != text
        with pytest.raises(ConfigError):
            parse_state(changed, STORE)


def test_findings_are_bounded_and_the_harmful_ones_stay() -> None:
    current = ScrubPass(started_at_ms=0)
    current.add([finding(number) for number in range(FINDINGS_MAX)])
    current.add([finding(-1, Severity.HARMFUL)])
    assert len(current.findings) == FINDINGS_MAX
    assert (current.harmful, current.notes) == (1, FINDINGS_MAX)
    assert current.findings[0] == finding(-1, Severity.HARMFUL)


FRESH = render_state(ScrubState(current=ScrubPass(started_at_ms=5)), STORE)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not the state of a scrub"),
        ("[]", "not the state of a scrub"),
        ('{"version": 2}', "version 2; this program knows version 1"),
        ('{"version": 1}', "checksum"),
        (FRESH.replace('"started_at_ms": 5', '"started_at_ms": "x"'), "it was changed: checksum"),
        (FRESH.replace('"objects": 0', '"objects": 1e999'), "it was changed: checksum"),
        (
            render_state(ScrubState(current=ScrubPass(started_at_ms=5)), "f" * 32),
            "it is of store 'ffff",
        ),
    ],
)
def test_a_file_that_is_no_state_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        parse_state(text, STORE)
    assert caught.value.setting == FILE_NAME


def test_a_text_that_is_no_utf8_is_kept_all_the_same(tmp_path: Path) -> None:
    """Of a name whose bytes are none: half a surrogate pair stands for each of them."""
    state = ScrubState(current=ScrubPass(started_at_ms=5))
    state.current.add([Finding(Severity.NOTE, "block", "segment 'b\udcff\\'", "ä")])
    path, disk = str(tmp_path / FILE_NAME), Runtime().disk
    save_text(path, render_state(state, STORE), disk)
    assert load_state(path, disk, STORE) == state
