"""A driver that writes a stream into a running store:
`python -m tests.tier2.spark.stream_program STORE CHECKPOINT ...`.

The stream is Spark's rate-micro-batch source: ROWS numbers a micro-batch, going on where the
checkpoint says, each in the partition of its remainder; a replayed batch has the same rows. See
test_killed_driver.py.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from tier2.spark.common.session import spark_session
from tier2.spark.data_source import register

ROWS = 2000
"""Of each micro-batch."""
PARTITIONS = 4
SEGMENTS = 2
"""So each segment has rows of two partitions in every micro-batch."""


def main(store: str, checkpoint: str, inline_bytes: str, how: str) -> None:
    """What `write` does, by a session of this process."""
    write(spark_session("stream program"), store, checkpoint, inline_bytes, how)


def write(spark: SparkSession, store: str, checkpoint: str, inline_bytes: str, how: str) -> None:
    """Write for ever, or, with `once`, what was begun and one batch more."""
    register(spark)
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS)
        .option("numPartitions", PARTITIONS)
        .load()
    )
    rows = numbers.selectExpr(
        f"concat('s', value % {SEGMENTS}) AS segment", "string(value) AS payload"
    )
    writer = (
        rows.writeStream.format("segmentstore").option("store", store).option("format", "lines")
    )
    writer.option("inlineBytes", inline_bytes).option("checkpointLocation", checkpoint)
    (writer.trigger(availableNow=True) if how == "once" else writer).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
