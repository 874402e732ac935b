"""Results as tables of a page: `python -m bench.peers.tables RESULTS` prints what a run wrote with
`--json` in Markdown, a line for each cell and a column for each peer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.peers.peer import ENGINE
from bench.peers.results import MARK
from bench.report import number

CellFigures = Mapping[str, Any]
Shown = Callable[[CellFigures, Mapping[str, Any]], str]


def markdown(cells: Sequence[CellFigures]) -> str:
    """Three tables: figures, the engine's advantage, and us of CPU of client and server.

    A figure of a disturbed row has the mark of the table.
    """
    tables = {
        "figures, medians": _figure,
        f"{ENGINE} ÷ peer": _ratio,
        "µs of CPU, client + server": _cpu,
    }
    return "\n".join(_table(title, cells, shown) for title, shown in tables.items())


def _table(title: str, cells: Sequence[CellFigures], shown: Shown) -> str:
    names = list(dict.fromkeys(name for cell in cells for name in cell["peers"]))
    names.sort(key=lambda name: name != ENGINE)
    lines = [f"| {title} | {' | '.join(names)} | floor |", "| --- |" + " --- |" * (len(names) + 1)]
    for cell in cells:
        peers = cell["peers"]
        values = [shown(cell, peers[name]) if name in peers else "" for name in names]
        floor = number(cell["floor"]["median"]) if shown is _figure else ""
        lines.append(f"| {cell['name']}, {cell['unit']} | {' | '.join(values)} | {floor} |")
    return "\n".join([*lines, ""])


def _figure(_: CellFigures, peer: Mapping[str, Any]) -> str:
    return number(peer["value"]["median"]) + (f" {MARK}" if peer["disturbed"] else "")


def _ratio(_: CellFigures, peer: Mapping[str, Any]) -> str:
    return "" if peer["ratio"] is None else f"{peer['ratio']:.2f}"


def _cpu(_: CellFigures, peer: Mapping[str, Any]) -> str:
    if "client_us" not in peer:
        return ""
    client, server = number(peer["client_us"]), number(peer["server_us"])
    return f"{client} + {server}" if peer["server_us"] else client


if __name__ == "__main__":
    content = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.stdout.write(markdown(content["cells"]))
