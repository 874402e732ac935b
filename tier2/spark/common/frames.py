"""What jobs ask of DataFrames that Spark's versions and sessions have by different names: 3.5 and
later, classic and Connect.

Rules of this file:

- nothing here hangs on a version's number: it is asked for what it has;
- rows go where they are asked to by what every version has, a repartition by a column: the column
  holds, for each bin, a number that Spark's hash sends there.

No pyspark at the top: what only plans needs none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

import mmh3
import pyarrow as pa

from tier2.spark.common.arrow_rows import ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_Batches = Iterator[pa.RecordBatch]

HASH_SEED: Final = 42
"""Of Spark's Murmur3Hash, by which it repartitions."""


def frame_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    """The table as a DataFrame.

    Its columns are reported: of an empty table Spark Connect wants to know them.
    """
    if _knows_arrow():
        return spark.createDataFrame(table, ddl(table.schema))
    rows: list[Any] = [tuple(row.values()) for row in table.to_pylist()]
    return spark.createDataFrame(rows, ddl(table.schema))


def arrow_of(frame: DataFrame, schema: pa.Schema) -> pa.Table:
    """All rows of a frame, which has this schema: one action."""
    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    return pa.Table.from_pylist([row.asDict() for row in frame.collect()], schema=schema)


def map_bins(
    spark: SparkSession, table: pa.Table, work: Callable[[_Batches], _Batches], schema: pa.Schema
) -> DataFrame:
    """`work` over the rows of each `bin` (int32, from 0 on) of the table: a task a bin."""
    numbers: list[Any] = table["bin"].to_pylist()
    keys = bin_keys(max(numbers) + 1)
    at = table.schema.get_field_index("bin")
    keyed = table.set_column(
        at, table.schema.field(at), pa.array([keys[number] for number in numbers], pa.int32())
    )
    return (
        frame_of(spark, keyed)
        .repartition(len(keys), "bin")
        .mapInArrow(cast("Any", work), ddl(schema))
    )


@lru_cache(maxsize=16)
def bin_keys(count: int) -> tuple[int, ...]:
    """For each of so many partitions a number that Spark's repartition by an int column sends
    there. O(count log count).
    """
    keys: dict[int, int] = {}
    number = 0
    while len(keys) < count:
        keys.setdefault(partition_of(number, count), number)
        number += 1
    return tuple(keys[each] for each in range(count))


def partition_of(number: int, count: int) -> int:
    """Into which of `count` partitions Spark's repartition by a column puts the rows with this
    int.
    """
    return int(mmh3.hash(struct.pack("<i", number), HASH_SEED)) % count


def _knows_arrow() -> bool:
    """Whether frames are made of tables, and tables of frames, by Spark itself: from 4.0 on."""
    from pyspark.sql import DataFrame  # noqa: PLC0415 - what only plans needs none

    return hasattr(DataFrame, "toArrow")
