"""Which rows a query wants, as far as the source can know without reading: by container, segment
and offset.

Rules of this file:

- a filter is taken only if it is kept exactly; every other one stays with Spark, which checks
  each row;
- no column of the source is ever null.

Pure, and free of pyspark: filters come as a name, a column and a value (`source.reader`
translates).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from tier2.spark.source.options import INT64_MAX

COLUMN_KINDS: Final = {
    "container": int,
    "segment": str,
    "segment_id": int,
    "offset": int,
    "length": int,
}
"""Columns one can ask about, and of which kind their values are."""
COLUMNS: Final = (
    "container",
    "segment",
    "segment_id",
    "offset",
    "length",
    "payload",
    "value",
    "stored_time",
    "segment_created",
    "segment_modified",
)


class Condition(NamedTuple):
    """`column <kind> value`; kinds are `=`, `<`, `<=`, `>`, `>=`, `in`, `starts with`,
    `is not null`.
    """

    column: str
    kind: str
    value: object = None


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Conditions that all hold. Rows begin in [offset_low, offset_high)."""

    offset_low: int = 0
    offset_high: int = INT64_MAX
    conditions: tuple[Condition, ...] = ()
    """On container, segment and its id."""

    def wants(self, container_id: int, segment_id: int, name: str) -> bool:
        """Whether rows of this segment can pass."""
        values: dict[str, int | str] = {
            "container": container_id,
            "segment": name,
            "segment_id": segment_id,
        }
        return all(_holds(values[each.column], each) for each in self.conditions)

    def wants_container(self, container_id: int) -> bool:
        """Whether rows of this container can pass."""
        return all(
            _holds(container_id, each) for each in self.conditions if each.column == "container"
        )


EVERYTHING: Final = RowFilter()


def with_condition(rows: RowFilter, condition: Condition) -> RowFilter | None:
    """`rows` with one condition more; None: it cannot be kept exactly."""
    if condition.column not in COLUMNS:
        return None
    if condition.kind == "is not null":
        return rows
    kind = COLUMN_KINDS.get(condition.column)
    values = condition.value if condition.kind == "in" else (condition.value,)
    if not isinstance(values, tuple):
        return None
    if kind is None or not all(type(value) is kind for value in values):
        return None
    if condition.column == "offset":
        return _with_offset(rows, condition)
    if condition.column == "length" or condition.kind not in _HOLDS:
        return None
    if condition.kind == "starts with" and kind is not str:
        return None
    if kind is str and condition.kind in {"<", "<=", ">", ">="}:
        return None  # Spark compares bytes, Python code points
    return replace(rows, conditions=(*rows.conditions, condition))


def _with_offset(rows: RowFilter, condition: Condition) -> RowFilter | None:
    value = condition.value
    if not isinstance(value, int):
        return None
    low, high = rows.offset_low, rows.offset_high
    match condition.kind:
        case "=":
            low, high = max(low, value), min(high, value + 1)
        case ">":
            low = max(low, value + 1)
        case ">=":
            low = max(low, value)
        case "<":
            high = min(high, value)
        case "<=":
            high = min(high, value + 1)
        case _:
            return None
    return replace(rows, offset_low=low, offset_high=high)


def _holds(actual: int | str, condition: Condition) -> bool:
    return _HOLDS[condition.kind](actual, condition.value)


_HOLDS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": lambda actual, value: actual == value,
    "<": lambda actual, value: actual < value,
    "<=": lambda actual, value: actual <= value,
    ">": lambda actual, value: actual > value,
    ">=": lambda actual, value: actual >= value,
    "in": lambda actual, value: actual in value,
    "starts with": lambda actual, value: actual.startswith(value),
}
