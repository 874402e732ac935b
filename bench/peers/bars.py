"""What the engine is to reach beside its peers. The skeleton is a ceiling, and counts as a peer
only where a bar names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.peers.peer import ENGINE

SKELETON: Final = "skeleton"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerBar:
    """A bar of the cells that begin with `cell`."""

    cell: str
    text: str
    key: str = "ratio"
    """`ratio`: the engine's advantage; otherwise a figure, less of which is better."""
    against: str = ""
    """A peer; without, every one but the skeleton."""
    at_least: float = 1.0
    """Of the ratio, or of the peer's figure by the engine's."""


BARS: Final = (
    *(
        bar
        for callers in ("256", "1,000")
        for bar in (
            PeerBar(cell=f"W1 {callers} ", text="≥ 1 x every peer"),
            PeerBar(
                cell=f"W1 {callers} ",
                text="≥ 0.85 x skeleton",
                against=SKELETON,
                at_least=0.85,
            ),
            PeerBar(
                cell=f"W1 {callers} ",
                text="p99 ≤ 2 x skeleton",
                key="p99_ms",
                against=SKELETON,
                at_least=0.5,
            ),
        )
    ),
    PeerBar(cell="W1 1 ", text="≥ 0.85 x skeleton", against=SKELETON, at_least=0.85),
    PeerBar(cell="W2 100 B, single", text="≥ 1 x Kafka", against="kafka"),
    PeerBar(cell="W2 100 B, batch", text="≥ 1 x every peer"),
    PeerBar(cell="W2 64 KiB", text="≥ 1 x every peer"),
    PeerBar(cell="W3", text="p50 best of all", key="p50_ms"),
    PeerBar(cell="W3", text="p99 best of all", key="p99_ms"),
    PeerBar(cell="W4", text="best of all"),
)
READ_SHARE: Final = 0.7
"""W4, of raw sequential reads."""
RESTART_S: Final = 0.3
"""W5. A lost record is an error, and no matter of a bar."""
GROWTH: Final = 2.0
"""W6: CPU of an append over 100,000 logs, by that over one."""
_ONE, _MANY = "W6 1 log", "W6 100,000 logs"
_READ_TEXT, _RESTART_TEXT, _GROWTH_TEXT = "≥ 70 % of raw reads", "≤ 0.3 s", "CPU ≤ 2 x one log"
_ALL: Final = (
    *((bar.cell, bar.text) for bar in BARS),
    *(("W4", _READ_TEXT), ("W5", _RESTART_TEXT), (_MANY, _GROWTH_TEXT)),
)
"""Cell and text of each bar."""


def verdicts(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each bar that was measured: cell, text, `figure` (the worst peer's), `met`."""
    found = [
        verdict
        for cell in cells
        if ENGINE in cell["peers"]
        for bar in BARS
        if cell["name"].startswith(bar.cell)
        for verdict in _of_peers(bar, cell)
    ]
    by_name = {cell["name"]: cell for cell in cells if ENGINE in cell["peers"]}
    for name, cell in by_name.items():
        value = cell["peers"][ENGINE]["value"]["median"]
        if name.startswith("W4"):
            share = value / cell["floor"]["median"]
            found.append(_verdict(name, _READ_TEXT, share, met=share >= READ_SHARE))
        if name.startswith("W5"):
            found.append(_verdict(name, _RESTART_TEXT, value, met=value <= RESTART_S))
    if _ONE in by_name and _MANY in by_name:
        one, many = (by_name[name]["peers"][ENGINE]["client_us"] for name in (_ONE, _MANY))
        figure = many / one
        found.append(_verdict(_MANY, _GROWTH_TEXT, figure, met=figure <= GROWTH))
    return found


def unmeasured(cells: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Cell, by how its name begins, and text of each bar that `verdicts` says nothing of."""
    known = [(verdict["cell"], verdict["text"]) for verdict in verdicts(cells)]
    return [
        (cell.strip(), text)
        for cell, text in _ALL
        if not any(name.startswith(cell) and said.startswith(text) for name, said in known)
    ]


def _of_peers(bar: PeerBar, cell: Mapping[str, Any]) -> list[dict[str, Any]]:
    ratios = {
        name: _advantage(bar, cell, name)
        for name in cell["peers"]
        if name == bar.against or (not bar.against and name not in {ENGINE, SKELETON})
    }
    known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    if not known:
        return []
    worst = min(known, key=lambda name: known[name])
    text = bar.text if bar.against else f"{bar.text} (worst: {worst})"
    return [_verdict(cell["name"], text, known[worst], met=known[worst] >= bar.at_least)]


def _advantage(bar: PeerBar, cell: Mapping[str, Any], name: str) -> float | None:
    peers = cell["peers"]
    if bar.key == "ratio":
        ratio: float | None = peers[name]["ratio"]
        return ratio
    if bar.key not in peers[name] or not peers[ENGINE].get(bar.key):
        return None
    return float(peers[name][bar.key]) / float(peers[ENGINE][bar.key])


def _verdict(cell: str, text: str, figure: float, *, met: bool) -> dict[str, Any]:
    return {"cell": cell, "text": text, "figure": figure, "met": met}
