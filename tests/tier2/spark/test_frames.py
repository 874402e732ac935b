"""What hides Spark's versions: every bin is one task, by Spark's own hash; tables go in and come
out as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.support.suites import slow
from tier2.spark.common.frames import arrow_of, bin_keys, frame_of, map_bins, partition_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_IN_FIELDS: list[pa.Field[Any]] = [
    pa.field("bin", pa.int32()),
    pa.field("data", pa.binary()),
    pa.field("number", pa.int64()),
]
_IN = pa.schema(_IN_FIELDS)
_OUT_FIELDS: list[pa.Field[Any]] = [
    pa.field("bins", pa.string()),
    pa.field("rows", pa.int64()),
    pa.field("data", pa.binary()),
]
_OUT = pa.schema(_OUT_FIELDS)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 64, 257, 1000])
def test_every_bin_has_a_number_that_goes_there(count: int) -> None:
    keys = bin_keys(count)
    assert [partition_of(key, count) for key in keys] == list(range(count))
    assert max(keys) < 40 * count + 40


@slow(14)
@pytest.mark.spark_versions("frames")
def test_spark_runs_a_task_for_each_bin_with_its_rows_alone(spark: SparkSession) -> None:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = pa.Table.from_batches(list(batches), _IN)
        said = {
            "bins": str(sorted({int(each or 0) for each in rows["number"].to_pylist()})),
            "rows": rows.num_rows,
            "data": b"".join(bytes(each or b"") for each in rows["data"].to_pylist()),
        }
        yield pa.RecordBatch.from_pylist([said], schema=_OUT)

    bins = [0, 1, 2, 3, 4, 5, 6, 2, 2]
    table = pa.table(
        {"bin": bins, "data": [bytes([each]) for each in bins], "number": bins}, schema=_IN
    )
    results = arrow_of(map_bins(spark, table, work, _OUT), _OUT).to_pylist()
    assert sorted((row["bins"], row["rows"], bytes(row["data"])) for row in results) == [
        (str([each]), 3 if each == 2 else 1, bytes([each]) * (3 if each == 2 else 1))
        for each in range(7)
    ]


@pytest.mark.spark_versions("frames")
def test_an_empty_table_and_nulls_come_back(spark: SparkSession) -> None:
    some = pa.table(
        {"bin": [1, None], "data": [b"\x00\xff", None], "number": [None, 2**40]}, schema=_IN
    )
    for table in (some, _IN.empty_table()):
        assert arrow_of(frame_of(spark, table), _IN).cast(_IN).to_pylist() == table.to_pylist()
