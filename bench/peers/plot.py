"""The picture of `make bench-peers`: for each cell, how much better the engine is than each peer,
on a logarithmic axis; right of the line at 1 the engine is ahead. Below, the seconds of W7.

`python -m bench.peers.plot PICTURE RESULTS` draws what a run wrote with `--json`. The same figures
give the same text. No library draws it; bench/metadata_plot.py says why.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from bench.peers.peer import ENGINE

COLORS: Final = {
    "engine": "#000000",
    "skeleton": "#999999",
    "sqlite": "#1f6fb2",
    "lmdb": "#2e8b57",
    "rocksdb": "#8e44ad",
    "redis": "#c0392b",
    "nats": "#16a2b8",
    "kafka": "#e67e22",
    "pravega": "#d4a017",
}
_LOWEST, _HIGHEST = 0.1, 100.0
_LEFT, _TOP, _WIDTH, _STEP = 210, 70, 560, 24
_SERIES_HEIGHT: Final = 180
_RIGHT: Final = _LEFT + _WIDTH
_GREY: Final = "#dddddd"


def plot(cells: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw cells as the JSON has them, as SVG."""
    path.write_bytes(picture(cells))


def picture(cells: Sequence[Mapping[str, Any]]) -> bytes:
    """The file that `plot` writes."""
    bottom = _TOP + _STEP * len(cells)
    series = _series_of(cells)
    height = bottom + 50 + (_SERIES_HEIGHT + 60 if series else 0)
    size = {"width": str(_RIGHT + 40), "height": str(height)}
    root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size})
    root.set("style", "font: 12px sans-serif")
    SubElement(root, "rect", {**size, "fill": "white"})
    names = dict.fromkeys(name for cell in cells for name in cell["peers"] if name != ENGINE)
    for place, name in enumerate([*names, *([ENGINE] if series else [])]):
        x = 20.0 + 84 * place
        _dot(root, x, 20, COLORS[name])
        _text(root, x + 8, 24, name, "start")
    for ratio in (0.1, 0.3, 1, 3, 10, 30, 100):
        x = _x(ratio)
        _line(root, [(x, _TOP - 12), (x, bottom)], "#000000" if ratio == 1 else _GREY)
        _text(root, x, _TOP - 18, f"{ratio:g}")
    _text(root, _LEFT, _TOP - 32, "engine ÷ peer; beyond the axis at its end", "start")
    for place, cell in enumerate(cells):
        y = _TOP + _STEP * place + _STEP / 2
        _text(root, 12, y + 4, cell["name"], "start")
        _line(root, [(_LEFT, y), (_RIGHT, y)], _GREY)
        for name, figures in cell["peers"].items():
            if name != ENGINE and figures["ratio"] is not None:
                _dot(root, _x(figures["ratio"]), y, COLORS[name])
    if series:
        _draw_series(root, bottom + 60, series)
    indent(root)
    return tostring(root) + b"\n"


def _series_of(cells: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[float]]:
    return {
        name: figures["series"][0]
        for cell in cells
        for name, figures in cell["peers"].items()
        if figures["series"]
    }


def _draw_series(root: Element, top: float, series: Mapping[str, Sequence[float]]) -> None:
    most = max(max(values) for values in series.values()) or 1.0
    _text(root, _LEFT, top - 8, f"appends/s in each second; the highest: {most:,.0f}", "start")
    for y in (top, top + _SERIES_HEIGHT):
        _line(root, [(_LEFT, y), (_RIGHT, y)], _GREY)
    for name, values in series.items():
        step = _WIDTH / max(len(values) - 1, 1)
        bottom = top + _SERIES_HEIGHT
        points = [
            (_LEFT + step * place, bottom - _SERIES_HEIGHT * value / most)
            for place, value in enumerate(values)
        ]
        _line(root, points, COLORS[name])


def _x(ratio: float) -> float:
    inside = min(max(ratio, _LOWEST), _HIGHEST)
    share = math.log(inside / _LOWEST) / math.log(_HIGHEST / _LOWEST)
    return _LEFT + _WIDTH * share


def _dot(root: Element, x: float, y: float, color: str) -> None:
    place = {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": "4"}
    SubElement(root, "circle", {**place, "fill": color})


def _line(root: Element, points: Sequence[tuple[float, float]], color: str) -> None:
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    SubElement(root, "polyline", {"points": text, "fill": "none", "stroke": color})


def _text(root: Element, x: float, y: float, text: str, anchor: str = "middle") -> None:
    where = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
    SubElement(root, "text", where).text = text


if __name__ == "__main__":
    plot(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))["cells"], Path(sys.argv[1]))
