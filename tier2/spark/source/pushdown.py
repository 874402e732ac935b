"""The batch reader that is handed the filters of a query, from Spark 4.1 on.

Spark refuses a reader that takes filters unless `spark.sql.python.filterPushdown.enabled` is set:
so it is a class of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from tier2.spark.source.filter import Condition, with_condition
from tier2.spark.source.reader import SegmentBatchReader


class FilteringBatchReader(SegmentBatchReader):
    """The same, with the wanted rows known beforehand: filters on container, segment, its id and
    offset are kept here.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take what can be kept exactly, give the rest back."""
        for each in filters:
            condition = _condition(each)
            taken = with_condition(self._filter, condition) if condition is not None else None
            if taken is None:
                yield each
            else:
                self._filter = taken


_KINDS: Final = {
    EqualTo: "=",
    EqualNullSafe: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    In: "in",
    StringStartsWith: "starts with",
    IsNotNull: "is not null",
}


def _condition(each: Filter) -> Condition | None:
    kind = _KINDS.get(type(each))
    attribute: tuple[str, ...] = getattr(each, "attribute", ())
    if kind is None or len(attribute) != 1:
        return None
    value = getattr(each, "value", None)
    return Condition(
        attribute[0], kind, tuple(value) if kind == "in" and value is not None else value
    )
