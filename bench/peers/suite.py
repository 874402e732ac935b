"""`python -m bench.peers`, which is what `make bench-peers` runs."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from bench import machine
from bench.peers import bars, results
from bench.peers.cell import FULL, QUICK, Cell, PeerSizes
from bench.peers.durability import APPENDS, syncs_of_appends
from bench.peers.measure import Measurement
from bench.peers.peer import MODULES, Peer
from bench.peers.plot import plot
from bench.workspace import BenchError, require_free_bytes, subfolder, work_folder

WORKLOADS: Final = {
    "W1": "bench.peers.callers",
    "W2": "bench.peers.producer",
    "W3": "bench.peers.tail",
    "W4": "bench.peers.cold_read",
    "W5": "bench.peers.killed",
    "W6": "bench.peers.growth",
    "W7": "bench.peers.sustained",
}
"""Workload to module, each with `cells(sizes) -> Sequence[Cell]`."""
_COLUMNS: Final = 170
_FREE_BYTES: Final = {True: 6 << 30, False: 40 << 30}


def chosen(cells: Sequence[Cell], names: Sequence[str]) -> list[Cell]:
    """The cells whose name begins with one of `names`; all without names.

    Raises BenchError for a name that no cell begins with.
    """
    for name in names:
        if not any(cell.name.startswith(name) for cell in cells):
            raise BenchError(f"no cell begins with {name!r}: {', '.join(c.name for c in cells)}")
    return [cell for cell in cells if not names or cell.name.startswith(tuple(names))]


def all_cells(sizes: PeerSizes) -> list[Cell]:
    """Of all workloads, in their order."""
    modules = map(importlib.import_module, WORKLOADS.values())
    return [cell for module in modules for cell in module.cells(sizes)]


def run(
    names: Sequence[str],
    cells: Sequence[str],
    *,
    quick: bool,
    console: Console,
    json_path: Path | None = None,
    work_parent: Path | None = None,
    sizes: PeerSizes | None = None,
) -> dict[str, Any]:
    """Measure `cells` (all, if empty) of the peers (all, if empty) and print the table.

    Gives what the JSON has: machine, date (of its begin, UTC), quick, seconds, cells, bars.
    `json_path` gets it after each cell.

    Raises BenchError, before anything is measured, if a peer is unknown or cannot be installed.
    """
    sizes = sizes or (QUICK if quick else FULL)
    wanted = chosen(all_cells(sizes), cells)
    begun = time.perf_counter()
    with work_folder(work_parent) as folder:
        require_free_bytes(folder, _FREE_BYTES[quick])
        result: dict[str, Any] = {
            "machine": machine.facts(folder),
            "date": datetime.now(UTC).date().isoformat(),
            "quick": quick,
            "cells": [],
        }
        say = _progress(console)
        with Measurement(folder, names or list(MODULES), sizes, say) as measurement:
            for cell in wanted:
                result["cells"].append(results.to_json(measurement.measure(cell)))
                result["seconds"] = time.perf_counter() - begun
                if json_path is not None:
                    _write(result, json_path)
    result["bars"] = bars.verdicts(result["cells"])
    if json_path is not None:
        _write(result, json_path)
    results.show(result["cells"], console)
    results.show_bars(result["bars"], console)
    facts = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
    console.print(f"  [dim]{facts}; {result['seconds']:.0f} s[/dim]")
    return result


def _write(result: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _progress(console: Console) -> Any:
    def say(line: str) -> None:
        console.print(f"[dim]{line}[/dim]", highlight=False)

    return say


def failed(result: Mapping[str, Any]) -> bool:
    """True if a peer could not be measured, or a bar is missed."""
    missed = any(not bar["met"] for bar in result["bars"])
    return missed or any(cell["errors"] for cell in result["cells"])


def check_durability(
    names: Sequence[str], console: Console, work_parent: Path | None = None
) -> bool:
    """Count the syncs of each peer (all, if empty) and print them; True if none has too few.

    Raises BenchError as `run` does, and without strace.
    """
    enough = True
    with (
        work_folder(work_parent) as folder,
        Measurement(folder, names or list(MODULES), QUICK, _progress(console)) as measurement,
    ):
        for peer in measurement.peers:
            syncs = _syncs(peer, folder)
            enough &= syncs >= APPENDS
            verdict = "" if syncs >= APPENDS else " [red]too few[/red]"
            console.print(f"{peer.name}: {syncs} syncs of {APPENDS} appends{verdict}")
    return enough


def _syncs(peer: Peer, folder: Path) -> int:
    with subfolder(folder, f"traced-{peer.name}") as traced:
        return syncs_of_appends(peer, traced, QUICK)


def main() -> None:
    """Command line; exits with 1 if a peer could not be measured, or a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=main.__doc__)
    names = ", ".join(MODULES)
    parser.add_argument("--peers", nargs="*", default=[], metavar="PEER", help=f"of {names}")
    parser.add_argument("--cells", nargs="*", default=[], metavar="CELL", help="W1, 'W2 64', ...")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them there, as SVG")
    parser.add_argument(
        "--check-durability", action="store_true", help="count syncs with strace instead"
    )
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else _COLUMNS)
    try:
        if arguments.check_durability:
            raise SystemExit(0 if check_durability(arguments.peers, console) else 1)
        result = run(
            arguments.peers,
            arguments.cells,
            quick=arguments.quick,
            console=console,
            json_path=arguments.json,
        )
    except BenchError as error:
        parser.error(str(error))
    if arguments.plot is not None:
        plot(result["cells"], arguments.plot)
    raise SystemExit(1 if failed(result) else 0)
