"""The results of `make bench-peers` in docs/performance.md, which is what `make bench-report` runs.

`python -m bench.peers.page [RESULTS]` replaces what stands between two comments of the page:
machine and sizes, the tables, the picture, and whether each bar was met. It writes the picture
beside it. Nothing is written unless all of it could be made. It ends with 2 if something is
missing, and says what to do about it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.peers import bars
from bench.peers.peer import MODULES
from bench.peers.plot import picture
from bench.peers.results import MARK
from bench.peers.tables import markdown
from bench.peers.usage import DISTURBED_CORES
from bench.report import number
from bench.workspace import BenchError

BEGIN: Final = "<!-- bench-report: begin -->"
END: Final = "<!-- bench-report: end -->"
RESULTS: Final = Path("var/bench-peers.json")
PAGE: Final = Path("docs/performance.md")
PICTURE: Final = "images/peers.svg"
"""Beside the page."""
_COLUMNS: Final = 100
_RUN_FIRST: Final = (
    "run make bench-peers first, or name another file: make bench-report RESULTS=FILE"
)
_FROM_THE_ROOT: Final = "run make bench-report in the folder of the repository"
_OF_A_CELL: Final = ("name", "unit", "floor", "peers", "errors", "left_out")
_OF_A_PEER: Final = ("value", "ratio", "disturbed", "series")


class PeersPageError(BenchError):
    """The page cannot be written; the message says what is missing, and how to get it."""


def report(results: Mapping[str, Any], date: str) -> str:
    """What stands between the comments of the page; `date` is of a run that did not note its own.

    `results` are as `bench.peers.suite.run` gives them. Pure: the same results, the same text.
    """
    cells = results["cells"]
    parts = [
        _paragraph(_sentences(results, date)),
        markdown(cells).rstrip(),
        f"![By how much the engine is ahead of each peer, for each cell]({PICTURE})",
        _bars(cells),
    ]
    return "\n\n".join(parts)


def with_report(page: str, text: str, name: str) -> str:
    """The page `name` with `text` between its two comments, in place of what is there.

    Raises PeersPageError if it does not have each of them once, in their order.
    """
    lines = page.splitlines()
    if (lines.count(BEGIN), lines.count(END)) != (1, 1) or lines.index(BEGIN) > lines.index(END):
        raise PeersPageError(
            f"{name} needs one line {BEGIN} and behind it one line {END}: put them where the "
            "tables belong, then run make bench-report again"
        )
    before, after = lines[: lines.index(BEGIN) + 1], lines[lines.index(END) :]
    return "\n".join([*before, "", *text.splitlines(), "", *after, ""])


def parsed_results(content: str, name: str) -> dict[str, Any]:
    """The results that a file `name` has. Raises PeersPageError if they are no results of peers."""
    try:
        results = json.loads(content)
    except ValueError as error:
        raise _no_results(name, f"it is no JSON ({error})") from None
    if not isinstance(results, dict):
        raise _no_results(name, "it has no object")
    _require(results, ("machine", "quick", "cells"), name, "the run")
    cells = results["cells"]
    if not isinstance(cells, list) or not cells:
        raise _no_results(name, "it has no cells")
    for cell in cells:
        _require(cell, _OF_A_CELL, name, "a cell")
        _require(cell["floor"], ("median",), name, "a floor")
        _require(cell["peers"], (), name, "a cell")
        for peer, figures in cell["peers"].items():
            _require(figures, _OF_A_PEER, name, f"{cell['name']}: {peer}")
            _require(figures["value"], ("median",), name, f"{cell['name']}: {peer}")
            if peer not in MODULES:
                raise _no_results(name, f"no peer is called {peer!r}: {', '.join(MODULES)}")
    return results


def _require(part: object, keys: Sequence[str], name: str, what: str) -> None:
    if not isinstance(part, dict):
        raise _no_results(name, f"{what} is no object")
    missing = [key for key in keys if key not in part]
    if missing:
        raise _no_results(name, f"{what} has no {', '.join(missing)}")


def _no_results(name: str, cause: str) -> PeersPageError:
    return PeersPageError(
        f"{name} has no results of peers: {cause}; write it anew by make bench-peers, or name "
        "another file: make bench-report RESULTS=FILE"
    )


def _sentences(results: Mapping[str, Any], date: str) -> list[str]:
    cells = results["cells"]
    rows = [figures for cell in cells for figures in cell["peers"].values()]
    sizes = "quick" if results["quick"] else "full"
    facts = ", ".join(
        f"{key.replace('_', ' ')} {value}" for key, value in results["machine"].items()
    )
    said = [f"A run of {results.get('date', date)} with {sizes} sizes.", f"Machine: {facts}."]
    foreign = [figures["foreign_cores"] for figures in rows if "foreign_cores" in figures]
    if foreign:
        middle, most = number(statistics.median(foreign)), number(max(foreign))
        said.append(f"Foreign load: {middle} cores in the median of the rows, {most} at most.")
    marked = sum(map(bool, (figures["disturbed"] for figures in rows)))
    said.append(
        f"{marked} of {len(rows)} rows have the mark (`{MARK}`) of more than {DISTURBED_CORES}."
    )
    if "bars" not in results:
        said.append("The run was cut off: cells behind these were not measured.")
    said += [
        f"Not measured of {cell['name']}: {', '.join(missing)}."
        for cell in cells
        if (missing := [*cell["errors"], *cell["left_out"]])
    ]
    return said


def _paragraph(said: Sequence[str]) -> str:
    return textwrap.fill(" ".join(said), _COLUMNS, break_long_words=False, break_on_hyphens=False)


def _bars(cells: Sequence[Mapping[str, Any]]) -> str:
    verdicts, others = bars.verdicts(cells), bars.unmeasured(cells)
    met = sum(verdict["met"] for verdict in verdicts)
    missed = len(verdicts) - met
    lines = [f"Bars: {met} met, {missed} missed, {len(others)} not measured.", ""]
    lines += ["| cell | bar | figure | met |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {each['cell']} | {each['text']} | {each['figure']:.2f} | "
        f"{'yes' if each['met'] else '**no**'} |"
        for each in verdicts
    ]
    lines += [f"| {cell} | {text} | | not measured |" for cell, text in others]
    return "\n".join(lines)


def write(results: Path, page: Path) -> list[Path]:
    """Replace the report of `page` by that of `results`, and draw the picture beside it.

    Gives the files that were written. Raises PeersPageError; unless a file could not be written,
    nothing is.
    """
    content, before = _text_of(results, _RUN_FIRST), _text_of(page, _FROM_THE_ROOT)
    parsed = parsed_results(content, str(results))
    date = datetime.fromtimestamp(results.stat().st_mtime, UTC).date().isoformat()
    text = with_report(before, report(parsed, date), str(page))
    drawn, target = picture(parsed["cells"]), page.parent / PICTURE
    try:
        target.parent.mkdir(exist_ok=True)
        _replace(target, drawn)
        _replace(page, text.encode())
    except OSError as error:
        raise PeersPageError(f"cannot write ({error}): free the place, then run again") from None
    return [page, target]


def _text_of(path: Path, advice: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PeersPageError(f"{path} cannot be read ({error}): {advice}") from None


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(f"{path.name}.new")
    beside.write_bytes(content)
    os.replace(beside, path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; exits with 2 if the page cannot be written."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers.page", description=main.__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS, metavar="RESULTS")
    parser.add_argument("--page", type=Path, default=PAGE, help=f"{PAGE} by default")
    parsed = parser.parse_args(arguments)
    try:
        written = write(parsed.results, parsed.page)
    except PeersPageError as error:
        print(f"bench-report: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    print("written:", *written)


if __name__ == "__main__":
    main()
