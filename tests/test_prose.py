"""The pages are written in plain technical English: short sentences, and the terms of the field."""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WORDS_MAX = 30
COLUMNS_MAX = 100
PACKAGES = ("segmentstore", "durablelog", "readindex", "storagewriter", "tier2", "recovery")
FILES = (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "tests/SCENARIOS.md")
PAGES = sorted(str(page.relative_to(ROOT)) for page in FILES)
"""All pages keep the rules below."""
MODULES = (
    "segmentstore/__init__.py",
    "segmentstore/blocking.py",
    "segmentstore/contracts/errors.py",
    "segmentstore/opening.py",
)
"""Modules of the public API: their docstrings have none of the banned words either."""
BANNED = re.compile(
    r"\b(?:whoever|whomever|somebody|someone|nobody|anybody|everybody|let(?:s|ting)? go"
    r"|look(?:s|ed|ing)?|land(?:s|ed|ing)?|tells?|told|judge[sd]?|gone|faces?|life|lives|heirs?"
    r"|chance|mend(?:s|ed)?|strange|patience|lanes?|pieces?|made|heard|greet(?:s|ed)?)\b",
    re.IGNORECASE,
)
"""Everyday words that stand for a mechanism with a name, and actors without a noun."""
OLD_WORDS = re.compile(
    r"(?<!`)\b(?:look(?:s|ed|ing)?\s(?:at|for|into)|let(?:s|ting)? go|gone(?! round)|heard|hears?"
    r"|judge[sd]?|condemn(?:s|ed)?|taken back|told|tell(?:s|ing)?|whoever|whomever|lanes?"
    r"|nobody|somebody|someone|anybody|everybody)\b(?!`)",
    re.IGNORECASE,
)
"""Words that comments and docstrings no longer use: check, search, inspect, release, missing or
deleted, received, mark for deletion, cancel, report, the process that, and writer thread stand
for them. In the place of the last five is the noun of the actor.
"""
ACTOR = re.compile(
    r"(?:^|[,;:(]\s*|\b(?:and|or|of|by|for|to|from|with|in|on|at|is|but|not|than|asks?|says?"
    r"|names?|knows?)\s)whom?\b",
    re.IGNORECASE,
)
"""`who` without a noun before it."""
UNNAMED = re.compile(rf"{ACTOR.pattern}|\b(?:whoever|whomever|tells?|told)\b", re.IGNORECASE)
"""That, and an everyday word for report, notify, pass, receive and distinguish."""
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")


def paragraphs(page: str) -> Iterator[str]:
    """The prose of a page: no code, no tables, no headings; of a link its text alone."""
    text = re.sub(r"^\s*```.*?^\s*```", "", page, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]+`", "code", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        apart = not line.strip() or line.lstrip().startswith(("|", "#")) or line.startswith("    ")
        if (apart or ITEM.match(line)) and lines:
            yield " ".join(lines)
            lines = []
        if not apart:
            lines.append(ITEM.sub("", line).strip())


def sentences(page: str) -> Iterator[str]:
    for paragraph in paragraphs(page):
        yield from re.split(r"(?<=[.?!])[\])*_\"]*\s+", paragraph)


def long_sentences(page: str) -> list[str]:
    return [each for each in sentences(page) if len(re.findall(r"\w[\w.,'/-]*", each)) > WORDS_MAX]


def banned_words(page: str) -> list[str]:
    return [
        f"{found.group().strip()!r} in: {each}"
        for each in sentences(page)
        for rule in (BANNED, ACTOR)
        for found in rule.finditer(each)
    ]


def anchors(page: str) -> set[str]:
    """Of its headings, as GitHub makes them."""
    page = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def lines_of_prose(page: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers: no tables, no code."""
    in_code = False
    for number, line in enumerate(page.splitlines(), 1):
        in_code ^= line.lstrip().startswith("```")
        if not in_code and not line.startswith(("|", "    ")):
            yield number, line


def test_no_line_of_a_page_is_too_long() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("*.md")]
    long = [
        f"{page.relative_to(ROOT)}:{number}"
        for page in pages
        for number, line in lines_of_prose(page.read_text(encoding="utf-8"))
        if len(line) > COLUMNS_MAX and not re.search(r"https?://\S+$", line)
    ]
    assert long == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_short_sentences_and_none_of_the_banned_words(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert long_sentences(text) == []
    assert banned_words(text) == []


def docstrings(node: ast.Module | ast.stmt) -> Iterator[str]:
    """Of modules, classes and functions, and the texts below constants and fields."""
    for each in node.body if isinstance(node, (ast.Module, *DEFINITIONS)) else ():
        match each:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield inspect.cleandoc(text)
        yield from docstrings(each)


@pytest.mark.parametrize("module", MODULES)
def test_the_docstrings_of_the_public_api_keep_the_same_rules(module: str) -> None:
    for text in docstrings(ast.parse((ROOT / module).read_bytes())):
        assert long_sentences(text) == []
        assert banned_words(text) == []


@pytest.mark.parametrize("folder", [*PACKAGES, "bench", "tests"])
def test_docstrings_have_short_sentences_and_name_actors(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {sentence}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for text in docstrings(ast.parse(path.read_bytes()))
        if len(text.split()) > WORDS_MAX or re.search(r"(?i)\b(?:who|tell|told)", text)
        for sentence in [*long_sentences(text), *filter(UNNAMED.search, sentences(text))]
    ]
    assert found == []


def test_no_line_of_code_is_too_long_whatever_ends_it() -> None:
    """Ruff does not count a pragma at the end of a line; this does."""
    folders = (*PACKAGES, "bench", "tests")
    files = [
        *(path for folder in folders for path in (ROOT / folder).rglob("*.py")),
        *(ROOT / "durablelog").rglob("*.java"),
        ROOT / "Makefile",
        ROOT / "pyproject.toml",
    ]
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > COLUMNS_MAX and not re.search(r"https?://\S+$", line)
    ]
    assert long == []


def comments_and_docstrings(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or token.string.startswith('"""'):
            yield token.string


@pytest.mark.parametrize("package", [*PACKAGES, "bench", "tests"])
def test_comments_and_docstrings_name_mechanisms_by_their_terms(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {word.group()!r}"
        for path in (ROOT / package).rglob("*.py")
        if OLD_WORDS.search(source := path.read_text(encoding="utf-8"))  # else no need to parse
        for text in comments_and_docstrings(source)
        for word in OLD_WORDS.finditer(text)
    ]
    assert found == []


def test_the_architecture_is_an_overview() -> None:
    lines = (ROOT / "docs/ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 165


def test_what_a_newcomer_reads_is_an_hours_reading() -> None:
    page = (ROOT / "docs/ARCHITECTURE.md").read_text(encoding="utf-8")
    _, _, section = page.partition("## Where to begin reading\n")
    files = re.findall(r"`([\w/]+\.py)`", section)
    lines = {name: len((ROOT / name).read_text("utf-8").splitlines()) for name in files}
    assert len(lines) >= 5
    assert sum(lines.values()) <= 1800, lines


def test_the_rules_see_a_long_sentence_a_banned_word_and_an_actor_without_a_noun() -> None:
    long = " ".join(["word"] * (WORDS_MAX + 1)) + "."
    assert long_sentences(f"Short one.\n\n- {long}\n") == [long]
    assert long_sentences(f"```\n{long}\n```\n| {long} |\n    {long}\n") == []
    assert banned_words("The owner looks. A caller who asks; `look` it up. For who asks.\n") == [
        "'looks' in: The owner looks.",
        "'For who' in: For who asks.",
    ]


def test_links_to_headings_lead_to_headings() -> None:
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    broken = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^)\s#:]*)#([^)\s]+)\)", text):
            page = (file.parent / target).resolve() if target else file
            if anchor not in anchors(page.read_text(encoding="utf-8")):
                broken.append(f"{file.relative_to(ROOT)}: {target}#{anchor}")
    assert broken == []


def test_headings_that_the_code_names_are_there() -> None:
    broken = []
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            for target, anchor in re.findall(
                r"(docs/[\w/.-]+\.md)#([\w-]+)", file.read_text(encoding="utf-8")
            ):
                if anchor not in anchors((ROOT / target).read_text(encoding="utf-8")):
                    broken.append(f"{file.relative_to(ROOT)}: {target}#{anchor}")
    assert broken == []
