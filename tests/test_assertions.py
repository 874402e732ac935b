"""Assertions of the engine: what they call changes nothing, for `python -O` leaves them out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENGINE = ("durablelog", "readindex", "recovery", "segmentstore", "storagewriter", "tier2")
ONLY_ASK = {
    *("all", "any", "callable", "hasattr", "isinstance", "len", "map", "set", "sum"),
    *("endswith", "get", "keys", "startswith", "values"),
    *("extents_from", "follow_one_another", "header_length_with", "knows", "may_evict"),
    *("may_forget_chunks", "parts", "with_chunks"),
}
"""Functions and methods that assertions call."""


def test_assertions_change_nothing() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for package in ENGINE
        for path in (ROOT / package).rglob("*.py")
        for line, what in changes_in_assertions(path)
    }
    assert not found


def changes_in_assertions(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Assert):
            for part in ast.walk(node.test):
                if isinstance(part, ast.NamedExpr | ast.Await | ast.Yield):
                    yield node.lineno, type(part).__name__
                elif isinstance(part, ast.Call):
                    name = ast.unparse(part.func).rpartition(".")[2]
                    if name not in ONLY_ASK:
                        yield node.lineno, name
