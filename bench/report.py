"""What a case came to: rows of floor, skeleton and engine with their bar, as a table and as JSON.

How the sides are compared: the floor counts with its *best* round (what the disk can do), skeleton
and engine with their *median* round. Rounds are interleaved, and each one is kept in the JSON.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.loads import percentile

if TYPE_CHECKING:
    from rich.console import Console

_UNITS = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))
"""From which value on, divided by what, with which letter."""


@dataclass(frozen=True, slots=True)
class Samples:
    """One figure measured in several rounds, in the order of the rounds. Never empty."""

    rounds: tuple[float, ...]

    @staticmethod
    def of(measured: Sequence[Mapping[str, Any]], key: str = "value") -> Samples:
        """The figure `key` of each round."""
        return Samples(tuple(float(one[key]) for one in measured))

    @property
    def median(self) -> float:
        """The middle round."""
        return statistics.median(self.rounds)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "min": min(self.rounds),
            "median": self.median,
            "max": max(self.rounds),
            "rounds": list(self.rounds),
        }

    def __str__(self) -> str:
        if len(self.rounds) == 1:
            return number(self.median)
        return (
            f"{number(self.median)} [dim]({number(min(self.rounds))} .. "
            f"{number(max(self.rounds))})[/dim]"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a case: a figure of the three sides, and whether the engine meets its bar."""

    name: str
    unit: str
    engine: Samples
    floor: Samples | None = None
    skeleton: Samples | None = None
    ratio: float | None = None
    """What the bar speaks of: the engine's figure by that of floor, skeleton, or another engine
    run.
    """
    bar: str = ""
    met: bool | None = None
    """None where the row has no bar and is there to be checked."""
    extra: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.name,
            "unit": self.unit,
            "floor": None if self.floor is None else self.floor.to_json(),
            "skeleton": None if self.skeleton is None else self.skeleton.to_json(),
            "engine": self.engine.to_json(),
            "ratio": self.ratio,
            "bar": self.bar,
            "met": self.met,
            "extra": dict(self.extra),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """One case, run once."""

    case: str
    question: str
    rows: Sequence[Row]
    notes: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "case": self.case,
            "question": self.question,
            "rows": [row.to_json() for row in self.rows],
            "notes": list(self.notes),
        }


def number(value: float) -> str:
    """A figure for people: three digits, with k, M or G (powers of 1,000) from 10,000 on."""
    for least, size, letter in _UNITS:
        if abs(value) >= least:
            return f"{value / size:.3g} {letter}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def latency_ms(seconds: Sequence[float]) -> dict[str, float]:
    """p50 and p99 in milliseconds of sorted seconds; nothing of nothing."""
    if not seconds:
        return {}
    return {"p50_ms": percentile(seconds, 0.5) * 1e3, "p99_ms": percentile(seconds, 0.99) * 1e3}


def extras_of(measured: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Median over the rounds of every figure but `value`."""
    return {
        key: statistics.median(float(one[key]) for one in measured)
        for key, value in measured[0].items()
        if key != "value" and isinstance(value, (int, float))
    }


def beside_extras(measured: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The same of the other side, if it was measured, by names that say so."""
    extras = extras_of(measured) if measured else {}
    return {f"beside_{key}": value for key, value in extras.items()}


def show(result: CaseResult, console: Console) -> None:
    """Print a case as a table.

    Figures are the median round (slowest .. fastest, or smallest .. largest).
    """
    # Children that measure memory import this module without rich.
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=f"{result.case}: {result.question}", title_justify="left")
    for heading in ("", "unit", "floor", "skeleton", "engine", "ratio", "bar", "met"):
        table.add_column(
            heading, justify="left" if heading in {"", "unit", "bar"} else "right", no_wrap=True
        )
    verdicts = {None: "", True: "[green]yes[/green]", False: "[red]no[/red]"}
    for row in result.rows:
        table.add_row(
            row.name,
            row.unit,
            "" if row.floor is None else str(row.floor),
            "" if row.skeleton is None else str(row.skeleton),
            str(row.engine),
            "" if row.ratio is None else f"{row.ratio:.2f}",
            row.bar,
            verdicts[row.met],
        )
    console.print(table)
    for row in result.rows:
        if row.extra:
            figures = ", ".join(f"{key} {number(value)}" for key, value in row.extra.items())
            console.print(f"  [dim]{row.name}: {figures}[/dim]")
    for note in result.notes:
        console.print(f"  [dim]{note}[/dim]")
