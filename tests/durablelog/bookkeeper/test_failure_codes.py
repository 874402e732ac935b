"""The table of failure codes: whole, and the same as the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from durablelog.bookkeeper.failure_codes import (
    CODE_NAMES,
    NODE_REACTIONS,
    REACTIONS,
    LedgerCall,
    NodeAnswer,
    NodeCall,
    Reaction,
    code_text,
    reaction,
)

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
    calls = (
        LedgerCall.ADD,
        LedgerCall.CREATE,
        LedgerCall.RECOVER,
        LedgerCall.READ,
        LedgerCall.DELETE,
    )
    on_page: dict[LedgerCall, dict[int, str]] = {call: {} for call in calls}
    for code, name, cells in rows:
        assert CODE_NAMES[int(code)] == name
        for call, cell in zip(calls, cells.split(" | "), strict=True):
            if cell.strip():
                on_page[call][int(code)] = cell.strip()
    assert on_page == {
        call: {code: REACTIONS[call][code].value for code in REACTIONS[call]} for call in calls
    }
    answers = "|".join(answer.value for answer in NodeAnswer)
    nodes = re.findall(rf"^\| ({answers}) \([^|]*\) \| (.*) \|$", text, flags=re.MULTILINE)
    assert [
        {
            call: cell.strip()
            for call, cell in zip(NodeCall, cells.split("|"), strict=True)
            if cell.strip()
        }
        for _, cells in nodes
    ] == [
        {
            call: rows[NodeAnswer(answer)].value
            for call, rows in NODE_REACTIONS.items()
            if NodeAnswer(answer) in rows
        }
        for answer, _ in nodes
    ]
    assert [answer for answer, _ in nodes] == [answer.value for answer in NodeAnswer]


def test_a_change_of_the_record_is_never_taken_for_done_or_not_done_without_reading_it() -> None:
    assert set(NODE_REACTIONS) == set(NodeCall)
    for call in (NodeCall.CREATE, NodeCall.WRITE):
        doubts = NodeAnswer.CONFLICT, NodeAnswer.NONE
        assert {NODE_REACTIONS[call][answer] for answer in doubts} == {Reaction.READ_AGAIN}
