"""Identifiers use the terms of the field: no new name has one of the words that stood for them."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "segmentstore",
    "durablelog",
    "readindex",
    "storagewriter",
    "tier2",
    "recovery",
    "bench",
    "tests",
)
LEFT = Path(__file__).with_name("old_identifiers.txt")
"""Names that still have such a word, one a line. It only shrinks: a name that is no more is taken
off, and none is added.
"""
TERMS: Final = {
    "aside": "quarantined",
    "chance": "rng",
    "condemn condemned condemns": "mark for deletion",
    "doubtful": "unconfirmed",
    "face faces": "API, local server",
    "flights fly flying": "in flight",
    "gone": "deleted, missing, evicted",
    "greet greeting greets welcome": "handshake",
    "hear heard hears": "received",
    "heir heirs": "next owner, merge target",
    "holdings": "cache manager",
    "hurried hurry": "urgent, request flush",
    "insist": "require",
    "judge judged judgement judges": "check",
    "land landed landing lands": "drain, commit, succeed",
    "lane": "writer thread",
    "life lives": "process run",
    "look looked looking looks": "check, poll, probe, scan",
    "made": "created",
    "patience": "timeout",
    "relieve relieved relieves": "throttle changed",
    "rot rotten": "bit rot",
    "spacing": "interval",
    "strange stranger": "foreign, unexpected",
    "sure": "valid",
    "survey": "scan",
    "tell telling tells told untold": "report, unresponsive",
}
"""What is said instead, by the words."""
WORD: Final = re.compile(r"[A-Za-z_]\w*")
INSTEAD: Final = {word: term for words, term in TERMS.items() for word in words.split()}


CALLED_BY_ASYNCIO = {"connection_made"}
"""Names that are not ours to choose."""


def words_of(identifier: str) -> list[str]:
    """Its words: between underscores, and where a capital begins another."""
    parts = re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", identifier)
    return [part.lower() for part in parts]


@functools.cache
def banned_in(identifier: str) -> list[str]:
    """The banned words of an identifier; `bit_rot` is a term."""
    words = words_of(identifier)
    return [
        word
        for place, word in enumerate(words)
        if word in INSTEAD and not (word == "rot" and place and words[place - 1] == "bit")
    ]


def identifiers(tree: ast.Module) -> Iterator[str]:
    """Names that a module gives: to classes, functions, parameters, attributes and itself."""
    classes = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            classes.append(node)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
    for statement in (*tree.body, *(each for node in classes for each in node.body)):
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def found() -> set[str]:
    names: set[str] = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            names |= {path.stem, path.parent.name}
            source = path.read_text("utf-8")
            if any(map(banned_in, set(WORD.findall(source)))):  # else no need to parse
                names.update(identifiers(ast.parse(source)))
    return {name for name in names - CALLED_BY_ASYNCIO if banned_in(name)}


def test_no_new_identifier_has_a_banned_word_and_the_list_of_what_is_left_only_shrinks() -> None:
    """One test: all modules are parsed for it."""
    lines = LEFT.read_text("utf-8").splitlines()
    assert lines == sorted(set(lines))
    names = found()
    new = sorted(names - set(lines))
    assert [f"{name}: say {INSTEAD[banned_in(name)[0]]}" for name in new] == []
    assert sorted(set(lines) - names) == [], "these are no more: take them off the list"


@pytest.mark.parametrize(
    ("identifier", "banned"),
    [
        ("_has_landed", ["landed"]),
        ("LandingError", ["landing"]),
        ("PATIENCE_S", ["patience"]),
        ("HTTPFace", ["face"]),
        ("bit_rot", []),
        ("plant_bit_rot", []),
        ("rot_file", ["rot"]),
        ("interface", []),
        ("lookup", []),
        ("retold", []),
        ("protocol", []),
    ],
)
def test_words_are_found_at_underscores_and_capitals(identifier: str, banned: list[str]) -> None:
    assert banned_in(identifier) == banned


def test_every_kind_of_name_is_found() -> None:
    source = (
        "FACE = 1\nclass Heir:\n    told: int\n    def judge(self, chance, *, lane=0):\n"
        "        self.gone = chance\n        local_look = 1\n"
    )
    names = {name for name in identifiers(ast.parse(source)) if banned_in(name)}
    assert names == {"FACE", "Heir", "told", "judge", "chance", "lane", "gone"}
