"""Every kind of finding is known, and says whose move is next; the page says the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from segmentstore.contracts.findings import (
    MOVES,
    Finding,
    Move,
    Severity,
    harmful,
    harmful_lines,
    note,
)
from tier2.spark.reconcile.findings import (
    FINDINGS,
    FindingKind,
    FindingRow,
    finding_of,
    findings_table,
)

ROOT = Path(__file__).resolve().parents[2]
MAKERS = {"harmful": 0, "note": 0, "Finding": 1}
"""What makes a finding, and which of its arguments is the kind."""


def kinds_in_use() -> Iterator[str]:
    for package in ("segmentstore", "recovery"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    place = MAKERS.get(node.func.id)
                    if place is not None and len(node.args) > place:
                        yield from literals(node.args[place])


def literals(node: ast.expr) -> Iterator[str]:
    """The texts that an expression may be."""
    if isinstance(node, ast.IfExp):
        yield from literals(node.body)
        yield from literals(node.orelse)
    elif isinstance(node, ast.Constant):
        yield str(node.value)


def test_every_kind_in_use_has_a_move_and_no_other_has() -> None:
    assert set(kinds_in_use()) | set(FindingKind) == set(MOVES)


def test_the_page_has_every_kind_with_its_move() -> None:
    page = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_-]+)` \| [^|]+ \| [^|]+ \| ([a-z]+) \|$", page, re.MULTILINE)
    assert rows == [(kind, str(move)) for kind, move in sorted_as_on_the_page(rows)]
    assert len(rows) == len(MOVES)


def sorted_as_on_the_page(rows: list[tuple[str, str]]) -> list[tuple[str, Move]]:
    return sorted(MOVES.items(), key=lambda item: [kind for kind, _ in rows].index(item[0]))


def test_a_finding_says_whose_move_it_is_and_shows_itself_in_a_line() -> None:
    found = [harmful("log", "file 1", "cut"), note("orphans", "container 0", "two")]
    assert [each.move for each in found] == [Move.PERSON, Move.OWNER]
    assert harmful_lines(found) == ("log file 1: cut",)
    with pytest.raises(KeyError):
        _ = note("of another version", "", "").move


@pytest.mark.parametrize(
    ("row", "place"),
    [
        (FindingRow(FindingKind.ORPHAN, "why", 1, "ab/x"), "ab/x"),
        (
            FindingRow(FindingKind.GAP, "why", 1, "ab/x", segment_id=3, start_offset=5, length=7),
            "container 1 segment 3 at 5, 7 bytes",
        ),
        (FindingRow(FindingKind.UNREADABLE, "why", 1, segment_id=3), "segment 3"),
        (FindingRow(FindingKind.IN_FLIGHT, "why", severity=Severity.UNKNOWN), ""),
    ],
)
def test_a_row_of_reconciliation_is_a_finding(row: FindingRow, place: str) -> None:
    (found,) = map(finding_of, findings_table([row]).to_pylist())
    assert found[1:] == (row.kind, place, "why")
    assert found.severity is (row.severity or Severity(found.severity))
    assert isinstance(found, Finding)
    assert found.move in Move
    assert set(row._fields) < set(FINDINGS.names)
