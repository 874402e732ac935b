"""The table of failure codes: whole, and the same as the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from durablelog.bookkeeper.failure_codes import CODE_NAMES, REACTIONS, LedgerCall, Reaction, code_text, reaction

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "bookkeeper-log.md"


def test_every_code_of_the_table_has_a_name() -> None:
    codes = {code for rows in REACTIONS.values() for code in rows}
    assert codes <= set(CODE_NAMES)
    assert 0 not in codes


def test_every_call_has_its_rows_and_settling_is_for_appends() -> None:
    assert set(REACTIONS) == set(LedgerCall)
    for call, rows in REACTIONS.items():
        assert (Reaction.SETTLE in rows.values()) is (call is LedgerCall.ADD)
        assert Reaction.FATAL not in rows.values()


@pytest.mark.parametrize("call", list(LedgerCall))
def test_what_is_not_in_the_table_is_fatal(call: LedgerCall) -> None:
    for code in (-999, -22, -4711, 1):
        assert reaction(call, code) is Reaction.FATAL


def test_codes_are_said_with_their_names() -> None:
    assert code_text(-101) == "-101 LedgerFenced"
    assert code_text(-4711) == "-4711 unknown"


def test_the_page_has_the_same_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (-\d+) (\w+) \| (.*) \|$", text, flags=re.MULTILINE)
    calls = (LedgerCall.ADD, LedgerCall.CREATE, LedgerCall.RECOVER, LedgerCall.READ, LedgerCall.DELETE)
    on_page: dict[LedgerCall, dict[int, str]] = {call: {} for call in calls}
    for code, name, cells in rows:
        assert CODE_NAMES[int(code)] == name
        for call, cell in zip(calls, cells.split(" | "), strict=True):
            if cell.strip():
                on_page[call][int(code)] = cell.strip()
    assert on_page == {call: {code: REACTIONS[call][code].value for code in REACTIONS[call]} for call in calls}
