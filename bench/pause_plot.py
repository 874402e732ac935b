"""The picture of `cluster_moves` and `cluster_takeover`: a bar of one length for each load, divided
by phase, with the sum behind it.

`python -m bench.pause_plot PICTURE RESULTS...` draws what runs wrote with `--json`. The same
figures give the same text. No library draws it; metadata_plot.py says why.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

COLORS: Final = {
    "session": "#999999",
    "decide": "#cccccc",
    "prepare": "#b8d8b8",
    "release": "#1f6fb2",
    "notice": "#7fb3de",
    "open": "#c0392b",
    "replay": "#e67e22",
    "find": "#f1c40f",
}
"""Of phases. In light ones a planned move is no pause yet."""
_NAME: Final = re.compile(r"(.*): (\w+), ")
_LEFT, _TOP, _WIDTH, _HEIGHT, _STEP = 190, 60, 560, 22, 40


def plot(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Draw the medians of the phases as SVG."""
    bars: dict[str, list[tuple[str, float]]] = {}
    for row in rows:
        found = _NAME.match(row["name"])
        if found is not None and found[2] in COLORS:
            title, phase = found.groups()
            bars.setdefault(title, []).append((phase, row["engine"]["median"]))
    height = _TOP + _STEP * len(bars) + 20
    root = Element(
        "svg",
        {"xmlns": "http://www.w3.org/2000/svg", "width": "820", "height": str(height)},
    )
    root.set("style", "font: 12px sans-serif")
    SubElement(root, "rect", {"width": "820", "height": str(height), "fill": "white"})
    phases = dict.fromkeys(phase for bar in bars.values() for phase, _ in bar)
    for place, phase in enumerate(phases):
        x = 20 + 95 * place
        _box(root, x, 16, 14, 14, COLORS[phase])
        _text(root, x + 20, 28, phase)
    for place, (title, bar) in enumerate(bars.items()):
        total = sum(value for _, value in bar)
        top, left = _TOP + _STEP * place, float(_LEFT)
        _text(root, 20, top + 16, title)
        for phase, value in bar:
            width = _WIDTH * value / total
            _box(root, left, top, width, _HEIGHT, COLORS[phase])
            left += width
        _text(root, left + 6, top + 16, f"{total:,.0f} ms")
    indent(root)
    path.write_bytes(tostring(root) + b"\n")


def _box(root: Element, x: float, y: float, width: float, height: float, color: str) -> None:
    where = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}", "height": f"{height:.1f}"}
    SubElement(root, "rect", {**where, "fill": color})


def _text(root: Element, x: float, y: float, text: str) -> None:
    where = {"x": f"{x:.1f}", "y": f"{y:.1f}"}
    SubElement(root, "text", where).text = text


if __name__ == "__main__":
    texts = [Path(name).read_text(encoding="utf-8") for name in sys.argv[2:]]
    results = [result for text in texts for result in json.loads(text)]
    plot([row for result in results for row in result["rows"]], Path(sys.argv[1]))
