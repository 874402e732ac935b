"""The picture of `metadata_growth`: four plots in one SVG, with logarithmic axes.

`python -m bench.metadata_plot PICTURE RESULTS...` draws what runs wrote with `--json`. The same
figures give the same text. No library draws it: matplotlib would bring eight pinned packages of
85 MB to `make setup`, for one picture of straight lines.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

PLOTS = {
    "checkpoint": "a checkpoint, ms",
    "bytes": "bytes of a checkpoint, to log and Tier 2",
    "block": "longest block of the event loop in a checkpoint, ms of CPU",
    "restart": "restart to the first append, ms",
}
COLORS = {"inline": "#c0392b", "catalog": "#1f6fb2"}
LEGEND = (("inline", "all metadata in each checkpoint"), ("catalog", "catalog and idle segments"))
_GREY = "#dddddd"
_WIDTH, _HEIGHT, _LEFT, _TOP = 350, 200, 60, 64
_ACROSS, _DOWN = 450, 284
_NAME = re.compile(r"([\d,]+) segments, (\w+): (\w+)")

Line = list[tuple[int, Mapping[str, float]]]
"""Numbers of segments, each with `min`, `median` and `max` of a figure."""
Points = Sequence[tuple[float, float]]


def plot(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Draw rows of results as SVG: medians with their ranges, and best rounds of floors, dashed."""
    lines: dict[str, dict[tuple[str, str], Line]] = {figure: {} for figure in PLOTS}
    for row in rows:
        (found,) = _NAME.findall(row["name"])
        segments, way, figure = found
        for side in ("engine", "floor"):
            if row[side] is not None:
                line = lines[figure].setdefault((way, side), [])
                line.append((int(segments.replace(",", "")), row[side]))
    size = {"width": str(2 * _ACROSS), "height": str(_TOP + 2 * _DOWN - 24)}
    root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size})
    root.set("style", "font: 12px sans-serif")
    SubElement(root, "rect", {**size, "fill": "white"})
    for x, (way, label) in zip((_LEFT, _LEFT + 280), LEGEND, strict=True):
        _line(root, [(x, 20), (x + 30, 20)], COLORS[way], "2")
        _text(root, x + 36, 24, label, "start")
    _text(root, _LEFT + 540, 24, "dashed: floor, the same bytes", "start")
    for number, (figure, title) in enumerate(PLOTS.items()):
        left, top = _LEFT + _ACROSS * (number % 2), _TOP + _DOWN * (number // 2)
        _text(root, left, top - 10, title, "start")
        _draw(root, left, top, {key: sorted(line) for key, line in lines[figure].items()})
    indent(root)
    path.write_bytes(tostring(root) + b"\n")


def _draw(root: Element, left: int, top: int, lines: Mapping[tuple[str, str], Line]) -> None:
    points = [point for line in lines.values() for point in line]
    first, last = _decades(count for count, _ in points)
    low, high = _decades(value[key] for _, value in points for key in ("min", "max"))

    def at(count: float, value: float) -> tuple[float, float]:
        x = left + _WIDTH * (math.log10(count) - first) / (last - first)
        return x, top + _HEIGHT * (high - math.log10(value)) / (high - low)

    for decade in range(first, last + 1):
        x, bottom = at(10.0**decade, 10.0**low)
        _line(root, [(x, top), (x, bottom)], _GREY, "1")
        _text(root, x, bottom + 18, _number(decade))
    _text(root, left + _WIDTH / 2, top + _HEIGHT + 34, "segments")
    for decade in range(low, high + 1):
        x, y = at(10.0**first, 10.0**decade)
        _line(root, [(x, y), (x + _WIDTH, y)], _GREY, "1")
        _text(root, x - 6, y + 4, _number(decade), "end")
    for (way, side), line in lines.items():
        color = COLORS[way]
        if side == "floor":
            _line(root, [at(count, value["min"]) for count, value in line], color, "1", "4 3")
            continue
        medians = [at(count, value["median"]) for count, value in line]
        _line(root, medians, color, "2")
        for (count, value), (x, y) in zip(line, medians, strict=True):
            _line(root, [at(count, value["min"]), at(count, value["max"])], color, "1")
            place = {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": "3"}
            SubElement(root, "circle", {**place, "fill": color})


def _decades(values: Iterable[float]) -> tuple[int, int]:
    logs = [math.log10(value) for value in values]
    lowest = math.floor(min(logs))
    return lowest, max(math.ceil(max(logs)), lowest + 1)


def _number(decade: int) -> str:
    thousands = max(decade, 0) // 3
    return f"{10.0 ** (decade - 3 * thousands):g}{('', ' k', ' M', ' G')[thousands]}"


def _line(root: Element, points: Points, color: str, width: str, dashes: str = "none") -> None:
    style = {"fill": "none", "stroke": color, "stroke-width": width, "stroke-dasharray": dashes}
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    SubElement(root, "polyline", {"points": text, **style})


def _text(root: Element, x: float, y: float, text: str, anchor: str = "middle") -> None:
    where = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
    SubElement(root, "text", where).text = text


if __name__ == "__main__":
    texts = [Path(name).read_text(encoding="utf-8") for name in sys.argv[2:]]
    results = [result for text in texts for result in json.loads(text)]
    plot([row for result in results for row in result["rows"]], Path(sys.argv[1]))
