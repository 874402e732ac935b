"""A read goes one way: caller, index, residence, source.

The contract "read-index-one-way" in pyproject.toml holds that for imports. Here for calls: no part
of the read index hands a method of its own to another, but for the callbacks that are named. And
none sets a field of another.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "readindex"

CALLBACKS = {
    "FetchedExtents gives SequentialReaders self._reader_ended",
    "Prefetcher gives Fetches self._feed",
    "ReadIndex gives FairDelivery lambda: self._tail.position",
}
"""All ways back up. Each says something has ended, or asks for a number, and is given when the
part is created.
"""


def classes(sources: Iterable[str]) -> dict[str, ast.ClassDef]:
    """By name."""
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def callbacks(parts: dict[str, ast.ClassDef]) -> Iterator[str]:
    """What each part hands of itself to another, be it when that is created or later."""
    for name, part in parts.items():
        own = {
            node.name
            for node in part.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list
        }
        for call in [node for node in ast.walk(part) if isinstance(node, ast.Call)]:
            if not _calls_a_part(call.func, parts):
                continue
            for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
                if _is_way_back(argument, own):
                    yield f"{name} gives {ast.unparse(call.func)} {ast.unparse(argument)}"


def _calls_a_part(called: ast.expr, parts: dict[str, ast.ClassDef]) -> bool:
    """`Part(...)` or `self.part.method(...)`."""
    if isinstance(called, ast.Name):
        return called.id in parts
    return ast.unparse(called).startswith("self.") and ast.unparse(called).count(".") > 1


def _is_way_back(argument: ast.expr, own: set[str]) -> bool:
    if isinstance(argument, ast.Lambda):
        return any(
            isinstance(node, ast.Name) and node.id == "self" for node in ast.walk(argument.body)
        )
    if isinstance(argument, ast.Attribute) and argument.attr in own:
        return isinstance(argument.value, ast.Name) and argument.value.id == "self"
    return isinstance(argument, ast.Name) and argument.id == "self"


def set_elsewhere(parts: dict[str, ast.ClassDef]) -> Iterator[str]:
    """Fields of a part that another part sets."""
    for name, part in parts.items():
        for node in ast.walk(part):
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AugAssign)
                else []
            )
            for target in targets:
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Attribute):
                    yield f"{name} sets {ast.unparse(target)}"


@pytest.fixture(scope="module")
def parts() -> dict[str, ast.ClassDef]:
    return classes(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py"))


def test_the_ways_back_are_those_that_are_named(parts: dict[str, ast.ClassDef]) -> None:
    assert {"ReadIndex", "CachedBlocks", "SequentialReaders"} <= parts.keys()
    inside = {name: part for name, part in parts.items() if name != "RocksDbCache"}
    assert set(callbacks(inside)) == CALLBACKS


def test_no_part_sets_a_field_of_another(parts: dict[str, ast.ClassDef]) -> None:
    assert list(set_elsewhere(parts)) == []


def test_a_way_back_is_found_however_it_is_given() -> None:
    upper = (
        "class Upper:\n"
        "    def __init__(self):\n"
        "        self.lower = Lower(1, on_end=self.ended)\n"
        "        self.lower.add(self)\n"
        "        self.lower.watch(lambda: self.count)\n"
        "        self.lower.bound = 2\n"
        "        self.lower.count += 1\n"
        "        self.count = self.lower.length(self.count)\n"
        "    def ended(self): ...\n"
        "class Lower:\n"
        "    def add(self, upper): ...\n"
    )
    found = classes([upper])
    assert list(callbacks(found)) == [
        "Upper gives Lower self.ended",
        "Upper gives self.lower.add self",
        "Upper gives self.lower.watch lambda: self.count",
    ]
    assert list(set_elsewhere(found)) == [
        "Upper sets self.lower.bound",
        "Upper sets self.lower.count",
    ]
