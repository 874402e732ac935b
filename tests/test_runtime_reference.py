"""docs/runtime-reference.md says of threads, tasks and bounds what the code does."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from segmentstore.config import StoreConfig
from tier2.s3.s3_location import S3Location

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/runtime-reference.md").read_text(encoding="utf-8")
PACKAGES = ("segmentstore", "durablelog", "storagewriter", "readindex", "tier2", "recovery")
ELSEWHERE = ("segmentstore/cli/", "tier2/spark/", "recovery/harness/")
"""Commands, jobs and the crash tester: not parts of a store."""
TASK_MAKERS = {"own_task", "gather_owned", "gather_outcomes", "OwnedTaskGroup"}
TASK_MODULES = {
    "segmentstore/contracts/owned_tasks.py",
    "segmentstore/contracts/waiting.py",
}
"""Where the makers themselves are, and what waits for another's work to its end."""
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "%": 0.01}
NUMBER = re.compile(r"(?<![\w.,\[/-])(\d[\d,]*(?:\.\d+)?)(?: (KiB|MiB|GiB|%))?(?![\w\]])")


@cache
def modules() -> dict[str, ast.Module]:
    """The parsed modules of a store, by path."""
    files = (file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py")))
    named = {file.relative_to(ROOT).as_posix(): file for file in files}
    return {
        name: ast.parse(file.read_text(encoding="utf-8"))
        for name, file in named.items()
        if not name.startswith(ELSEWHERE)
    }


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Each call with the name of what is called: `a.b.name(...)` or `name(...)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                yield node.func.attr, node
            elif isinstance(node.func, ast.Name):
                yield node.func.id, node


def defined(tree: ast.Module) -> set[str]:
    """Classes and functions, and methods and fields behind their class and a dot."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, kinds)}
            names |= {
                f"{node.name}.{each.target.id}"
                for each in node.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            }
    return names


def section(title: str) -> str:
    (text,) = re.findall(rf"(?ms)^## {title}\n(.*?)(?=^## |\Z)", PAGE)
    assert isinstance(text, str)
    return text


def rows(text: str) -> list[list[str]]:
    """The cells of all tables, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    rules = [number for number, line in enumerate(lines) if line.startswith("| ---")]
    heads = {number - 1 for number in rules} | set(rules)
    return [cell for number, cell in enumerate(cells) if number not in heads]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# --- threads --------------------------------------------------------------------------------------


def text_of(node: ast.expr) -> str | None:
    """A string, with `<id>` for what is put into it."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(each) or "<id>" for each in node.values)
    return None


def executors() -> dict[str, list[tuple[str, ast.expr]]]:
    """By name: where an executor is made, and with how many threads."""
    found: dict[str, list[tuple[str, ast.expr]]] = defaultdict(list)
    for path, tree in modules().items():
        for called, call in calls(tree):
            arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
            if called == "executor" and (name := text_of(call.args[0])) is not None:
                found[name].append((path, call.args[1]))
            elif called == "__init__" and any(each.arg == "threads" for each in call.keywords):
                (threads,) = (each.value for each in call.keywords if each.arg == "threads")
                texts = [text for each in arguments if (text := text_of(each)) is not None]
                names = [text for text in texts if re.fullmatch(r"[a-z0-9-]+", text)]
                assert len(names) == 1, path
                found[names[0]].append((path, threads))
    return found


def value_of(node: ast.expr, path: str) -> object:
    """A literal, or a name of the module; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        return getattr(module, node.id, None)
    return None


def test_the_table_of_threads_has_every_executor_with_its_owner() -> None:
    made, listed = executors(), set()
    for name_cell, threads, owners, _ in rows(section("Time, randomness, threads, disks")):
        for name in quoted(name_cell):
            listed.add(name)
            assert name in made, f"{name}: no executor has this name"
            known = set().union(*(defined(modules()[path]) for path, _ in made[name]))
            makers = [owner for owner in quoted(owners) if owner.rpartition(".")[2] in known]
            assert makers, f"{name}: none of {owners} makes it"
            counts = {value_of(count, path) for path, count in made[name]} - {None}
            said = {int(number) for number in re.findall(r"\d+", threads)}
            assert counts <= said, f"{name}: {counts} threads, and the page says {threads}"
    assert set(made) - listed == set(), "executors that the page does not have"


# --- tasks ----------------------------------------------------------------------------------------


def test_the_tables_of_tasks_have_every_module_that_makes_tasks() -> None:
    text = section("Who owns which task")
    everything = set().union(*map(defined, modules().values()))
    owners = {name for row in rows(text) for name in quoted(row[1])}
    assert {owner for owner in owners if owner not in everything} == set()
    classes = {owner.partition(".")[0] for owner in owners}
    missing = [
        path
        for path, tree in modules().items()
        if path not in TASK_MODULES
        and any(called in TASK_MAKERS for called, _ in calls(tree))
        and not classes & defined(tree)
    ]
    assert missing == [], "they make tasks, and no row has an owner there"


def test_the_tasks_of_a_log_on_bookkeeper_have_their_names() -> None:
    text = section("Who owns which task").partition("Of a log on BookKeeper")[2]
    made: dict[str, set[str]] = defaultdict(set)
    of_logs: set[str] = set()
    """Not of the gateway; those of a store's connections are sentences."""
    for path, tree in modules().items():
        if path.startswith("durablelog/bookkeeper/"):
            for called, call in calls(tree):
                for keyword in call.keywords:
                    name = text_of(keyword.value)
                    if called in TASK_MAKERS and keyword.arg == "name" and name is not None:
                        made[name] |= defined(tree)
                        if path.count("/") == 2 and "-" in name:
                            of_logs.add(name)
    listed = {name for task, _, _ in rows(text) for name in quoted(task)}
    assert of_logs - listed == set(), "tasks of a log that the page does not have"
    for task, owners, _ in rows(text):
        names = [name for name in quoted(task) if name in made]
        assert names, f"no task has a name of these: {task}"
        assert all(owner in made[names[0]] for owner in quoted(owners)), task


# --- bounds ---------------------------------------------------------------------------------------


def numbers_in(path: Path) -> set[float]:
    """Every number that a source file has a name for, or writes down."""
    if path.suffix == ".java":
        text = path.read_text(encoding="utf-8")
        products = re.findall(r"\b\d[\d_]*L?(?: (?:\*|<<) \d[\d_]*L?)*", text)
        # Products and shifts of numbers alone: the pattern lets nothing else through.
        return {
            float(eval(each.replace("L", ""))) for each in products if not re.match(r"0\d", each)
        }
    name = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    module = importlib.import_module(name)
    written = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    constants = [node.value for node in written if isinstance(node, ast.Constant)]
    # Settings of other programs are texts.
    held = {
        float(value)
        for value in constants
        if isinstance(value, (int, float)) or (isinstance(value, str) and value.isdecimal())
    }
    for each in vars(module).values():
        values = [each]
        if isinstance(each, type) and dataclasses.is_dataclass(each):
            values = [field.default for field in dataclasses.fields(each)]
        held |= {float(value) for value in values if isinstance(value, (int, float))}
    return held


def files_named(row: str) -> list[Path]:
    found = []
    for name in re.findall(r"`(?:[\w/]+/)?([\w]+\.(?:py|java))`", row):
        paths = [
            path
            for package in PACKAGES
            for path in (ROOT / package).rglob(name)
            if "harness" not in path.parts
        ]
        wanted = [path for path in paths if re.search(rf"`{path.parent.name}/{name}`", row)]
        assert len(wanted or paths) == 1, f"{name}: {paths}"
        found += wanted or paths
    return found


BOUNDS = rows(section("What is bounded by what"))


@pytest.mark.parametrize("row", BOUNDS, ids=[row[0] for row in BOUNDS])
def test_a_bound_has_the_numbers_of_the_files_it_names(row: list[str]) -> None:
    text = re.sub(r"\[\d{4}\]\([^)]*\)|Tier [12]", "", " | ".join(row))
    known = set().union(*map(numbers_in, files_named(text)))
    said = NUMBER.findall(re.sub(r"`[^`]*`", "", text))
    values = {
        f"{number} {unit}": float(number.replace(",", "")) * UNITS.get(unit, 1)
        for number, unit in said
    }
    assert {
        number
        for number, value in values.items()
        if not any(abs(each - value) <= 1e-9 * value for each in known)
    } == set(), "in none of the files that the row names"


def test_settings_that_bounds_name_are_settings() -> None:
    locations = (BookKeeperLocation, S3Location)
    known = {field.name for kind in locations for field in dataclasses.fields(kind)}
    known |= StoreConfig().settings().keys()
    named = {name for row in BOUNDS for name in quoted(row[1]) if re.fullmatch(r"[a-z_]+", name)}
    assert named - known == set()
