"""How things are shown: tables for people, one JSON document (or a line per row of a listing) for
programs.

Results go to stdout, progress and errors to stderr, so that a pipe sees results alone. Everything
that is shown to people goes through `visible` here, for names and messages may hold anything; JSON
is exact.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from pathlib import PurePath
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.table import Table

from segmentstore.contracts.visible import visible

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")
]

TakeOverOption = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="On BookKeeper: take the containers from an owner that is alive, too; it is "
        "fenced by that.",
    ),
]

StoreArgument = Annotated[
    str,
    typer.Argument(
        metavar="STORE",
        help="Folder of the store; of a cluster zookeeper://HOST:PORT,HOST:PORT/PATH, or "
        "HOST:PORT,HOST:PORT of its hosts.",
    ),
]

FolderArgument = Annotated[str, typer.Argument(metavar="STORE", help="Folder of the store.")]

SegmentArgument = Annotated[str, typer.Argument(metavar="SEGMENT", help="Name of the segment.")]


def to_plain(value: Any) -> Any:
    """`value` as JSON can hold it: records become objects, bytes hex, times ISO 8601, ids their
    text.
    """
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, str) else value.name.lower()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: to_plain(item) for name, item in value._asdict().items()}
    if isinstance(value, Mapping):
        return {_key(name): to_plain(item) for name, item in value.items()}
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, Sequence | AbstractSet):
        return [to_plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)


def _key(value: Any) -> str:
    return value if isinstance(value, str) else str(to_plain(value))


def print_json(value: Any) -> None:
    """One JSON document on one line of stdout."""
    text = json.dumps(to_plain(value), ensure_ascii=False)
    if not text.isprintable():
        # Inside strings alone there is anything that does not print: an escape of JSON is the same
        # to a program.
        text = "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
    sys.stdout.write(text + "\n")


def print_json_lines(rows: Iterable[Any]) -> None:
    """A JSON document a line, for listings."""
    for row in rows:
        print_json(row)


_PIPE_COLUMNS = 200
"""A pipe has no width of its own, and 80 columns would break the tables."""


class _PlainConsole(Console):
    """Shows text as it is: neither markup, nor names of emoji, nor what a terminal would obey."""

    def __init__(self, file: TextIO) -> None:
        width = None if file.isatty() else _PIPE_COLUMNS
        super().__init__(file=file, markup=False, emoji=False, highlight=False, width=width)

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(
            *(visible(each) if isinstance(each, str) else each for each in objects), **options
        )


def out() -> Console:
    """A console on stdout as it is now; a string is one line of text, whatever is in it."""
    return _PlainConsole(sys.stdout)


def err() -> Console:
    """A console on stderr as it is now."""
    return _PlainConsole(sys.stderr)


def print_error(message: str) -> None:
    """One sentence on stderr."""
    sys.stderr.write(error_line(message))


def error_line(message: str) -> str:
    """The same as text, with its newline."""
    return f"segmentstore: {visible(message)}\n"


def table(title: str | None, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table; a column whose cells are all numbers is set to the right."""
    kept = [tuple(row) for row in rows]
    result = Table(title=title and visible(title), title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(kept) and all(isinstance(row[index], int | float) for row in kept)
        result.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in kept:
        result.add_row(*(cell(item) for item in row))
    return result


def pairs(title: str | None, values: Mapping[str, object]) -> Table:
    """Names and values, one below the other, without a header."""
    result = Table(title=title and visible(title), title_justify="left", show_header=False)
    result.add_column("name")
    result.add_column("value", overflow="fold")
    for name, value in values.items():
        result.add_row(visible(name), cell(value))
    return result


def cell(value: object) -> str:
    """One value for a person: thousands separated, times to the second, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and not isinstance(value, enum.Enum):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 100 else f"{value:,.0f}"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, str | uuid.UUID | PurePath):
        return visible(str(value))
    return visible(str(to_plain(value)))


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Nested objects as one level with dotted names, for tables of numbers."""
    flat: dict[str, object] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, path + "."))
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for index, item in enumerate(value):
                flat.update(flatten(item, f"{path}.{index}."))
        else:
            flat[path] = value
    return flat


def abandon_stdout() -> None:
    """After a broken pipe: let the interpreter flush into nothing at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
