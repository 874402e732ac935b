"""What the suite came to: one table, one JSON. Figures are medians of rounds with their spread.

In all ratios more than 1 means that the engine is better than the peer.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.child import Measured
from bench.peers.measure import CellRounds
from bench.peers.peer import ENGINE
from bench.peers.usage import DISTURBED_CORES
from bench.report import Samples, extras_of, number

MARK: Final = "!"
_COLUMNS: Final = (
    *("cell", "peer", "figure (min .. max)", "unit", "engine ÷ peer", "p50 ms", "p99 ms"),
    *("client µs", "server µs", "foreign"),
)


def to_json(rounds: CellRounds) -> dict[str, Any]:
    """Plain values of a cell: for each peer its figures, and `ratio`, the engine's advantage."""
    cell = rounds.cell
    return {
        "name": cell.name,
        "unit": cell.unit,
        "lower_is_better": cell.lower_is_better,
        "floor": Samples.of(rounds.floor).to_json(),
        "peers": {name: _peer(rounds, name) for name in rounds.peers},
        "errors": dict(rounds.errors),
        "left_out": list(rounds.left_out),
    }


def _peer(rounds: CellRounds, name: str) -> dict[str, Any]:
    measured = rounds.peers[name]
    extras = extras_of(measured)
    return {
        "value": Samples.of(measured).to_json(),
        "ratio": ratio_of(rounds, name),
        **extras,
        "disturbed": extras.get("foreign_cores", 0.0) > DISTURBED_CORES,
        "series": [one["series"] for one in measured if "series" in one],
    }


def ratio_of(rounds: CellRounds, name: str, key: str = "value") -> float | None:
    """The median over the rounds of how much better the engine is; None without both."""
    engine, peer = rounds.peers.get(ENGINE, []), rounds.peers.get(name, [])
    lower = rounds.cell.lower_is_better or key != "value"
    ratios = [
        _ratio(one, other, key, lower=lower) for one, other in zip(engine, peer, strict=False)
    ]
    return statistics.median(ratios) if ratios else None


def _ratio(engine: Measured, peer: Measured, key: str, *, lower: bool) -> float:
    one, other = float(engine[key]), float(peer[key])
    above, below = (other, one) if lower else (one, other)
    return above / below if below else float("inf")


def show(cells: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print the table of cells as `to_json` gives them. A disturbed row has a mark."""
    table = Table(title="the engine beside its peers, equal durability", title_justify="left")
    for heading in _COLUMNS:
        left = heading in {"cell", "peer", "unit"}
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for cell in cells:
        table.add_section()
        title = cell["name"]
        for name, figures in cell["peers"].items():
            table.add_row(title, name, *_row(cell, figures))
            title = ""
        table.add_row(title, "[dim]floor[/dim]", _spread(cell["floor"]), cell["unit"])
    console.print(table)
    for cell in cells:
        for name, error in cell["errors"].items():
            console.print(f"[red]{cell['name']}: {name}: {error}[/red]", highlight=False)
        if cell["left_out"]:
            names = ", ".join(cell["left_out"])
            console.print(f"  [dim]{cell['name']}: not of {names}[/dim]")
    console.print(
        f"  [dim]µs: CPU of an operation. foreign: cores that others used meanwhile; {MARK} marks "
        f"more than {DISTURBED_CORES}[/dim]"
    )


def show_bars(bars: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print which bars are met."""
    for bar in bars:
        verdict = "[green]met[/green]" if bar["met"] else "[red]missed[/red]"
        figure = f"{bar['figure']:.2f}"
        console.print(f"  {bar['cell']}: {bar['text']}: {figure}, {verdict}", highlight=False)


def _row(cell: Mapping[str, Any], figures: Mapping[str, Any]) -> list[str]:
    mark = f" [red]{MARK}[/red]" if figures["disturbed"] else ""
    ratio = figures["ratio"]
    return [
        _spread(figures["value"]),
        cell["unit"],
        "" if ratio is None else f"{ratio:.2f}",
        *(
            f"{figures[key]:.3g}" if key in figures else ""
            for key in ("p50_ms", "p99_ms", "client_us", "server_us")
        ),
        f"{figures['foreign_cores']:.2f}{mark}" if "foreign_cores" in figures else "",
    ]


def _spread(samples: Mapping[str, Any]) -> str:
    if len(samples["rounds"]) == 1:
        return number(samples["median"])
    least, most = number(samples["min"]), number(samples["max"])
    return f"{number(samples['median'])} [dim]({least} .. {most})[/dim]"
