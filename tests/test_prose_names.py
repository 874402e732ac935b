"""What docstrings, comments and the pages about the code name in backticks is in the code."""

from __future__ import annotations

import builtins
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "CONTRIBUTING.md",
    "docs/ARCHITECTURE.md",
    "docs/crash-testing.md",
    "docs/findings.md",
    "docs/internals.md",
    "docs/limits.md",
    "docs/restore.md",
    "docs/runtime-reference.md",
    "docs/spark-writing.md",
    "docs/testing-services.md",
    "docs/testing.md",
)
"""Pages that name nothing but what is here."""
ELSEWHERE: Final = {
    "NULL_ATTRIBUTE_VALUE": "a constant of Pravega",
    "jute.maxbuffer": "a property of ZooKeeper",
    "rewrite_data_files": "a procedure of Iceberg",
    "sshfs": "a package for fsspec",
}
"""What modules name of others."""
WORD = re.compile(r"[A-Za-z_]\w*")
NAMED = re.compile(r"`([A-Za-z_][\w.]*)(?:\(\))?`")
PROSE = re.compile(r'^[ ]*"""(.*?)"""$|(?:^[ ]*|  )# ([^\n]*)$', re.DOTALL | re.MULTILINE)
"""A string that stands by itself, or a comment."""
FENCED = re.compile(r"^\s*```.*?^\s*```", re.DOTALL | re.MULTILINE)


def unknown(prose: str, known: set[str]) -> list[str]:
    """Names in backticks that have an unknown word."""
    return [
        name
        for name in NAMED.findall(prose)
        if name not in ELSEWHERE and not known.issuperset(WORD.findall(name))
    ]


def split(source: str) -> tuple[str, list[str]]:
    """The code of a module, and its prose: docstrings and comments."""
    prose = PROSE.findall(source)
    return PROSE.sub("", source), [docstring or comment for docstring, comment in prose]


@cache
def modules() -> dict[str, tuple[str, list[str]]]:
    """Code and prose of the modules of the repository, by path."""
    return {
        name: split((ROOT / name).read_text("utf-8")) for name in files() if name.endswith(".py")
    }


@cache
def files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    return [name for name in listed if (ROOT / name).is_file()]


@cache
def known_names() -> set[str]:
    """Words of modules, of paths, and of every text file that is no module and no page."""
    names = set(dir(builtins))
    for name in files():
        names.update(WORD.findall(name))
        if not name.endswith((".py", ".md")):
            names.update(WORD.findall((ROOT / name).read_text("utf-8", errors="replace")))
    for code, _ in modules().values():
        names.update(WORD.findall(code))
    return names


def test_what_modules_name_is_there() -> None:
    known = known_names()
    wrong = {
        path: found
        for path, (_, prose) in modules().items()
        if (found := unknown("\n".join(prose), known))
    }
    assert wrong == {}


@pytest.mark.parametrize("page", PAGES)
def test_what_pages_name_is_there(page: str) -> None:
    text = FENCED.sub("", (ROOT / page).read_text("utf-8"))
    assert unknown(text, known_names()) == []


def test_tests_that_pages_name_are_there() -> None:
    """By their whole name, or by its beginning and dots."""
    tests = {
        name
        for code, _ in modules().values()
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", code, re.MULTILINE)
    }
    wrong = []
    for page in (ROOT / "docs").glob("*.md"):
        for name, dots in re.findall(r"`(test_\w+)(\.\.\.)?(?:\[[^`]*)?`", page.read_text("utf-8")):
            if name not in tests and not (dots and any(each.startswith(name) for each in tests)):
                wrong.append(f"{page.name}: {name}")
    assert wrong == []


def test_a_name_that_only_prose_has_is_seen() -> None:
    source = (
        '"""Of `here` and `nowhere`."""\nhere = "text"\n"""Not `neither.text`, but `text`.\n"""\n'
        "# `never()`\n\n\ndef f():\n    return here  # `f` and `not_this`\n"
    )
    code, prose = split(source)
    known = {*WORD.findall(code)}
    assert unknown("\n".join(prose), known) == ["nowhere", "neither.text", "never", "not_this"]
