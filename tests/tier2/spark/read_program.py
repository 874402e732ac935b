"""A driver that reads a store and writes what it read into another segment:
`python -m tests.tier2.spark.read_program URL STORE`.

Its session is whatever the environment says. See test_ways_to_run.py.
"""

from __future__ import annotations

import json
import sys
from hashlib import sha256

from tier2.spark.common.session import spark_session
from tier2.spark.data_source import register

COPY = "copy"


def main(url: str, store: str) -> None:
    """Print the digest of each segment's bytes by its name; append all of them to COPY, by name,
    through the store at `store`.
    """
    # Where tasks run elsewhere it sends the sources along.
    spark = spark_session("read program")
    register(spark)
    source = spark.read.format("segmentstore").option("prefix", "logs/").option("minPartitions", 2)
    # In one partition: to sort over several, Spark would read everything twice.
    rows = source.load(url).coalesce(1).sortWithinPartitions("segment", "offset")
    contents: dict[str, bytes] = {}
    for row in rows.collect():
        contents[row["segment"]] = contents.get(row["segment"], b"") + row["payload"]
    print(json.dumps({name: sha256(data).hexdigest() for name, data in contents.items()}))
    copy = (
        rows.select("payload")
        .write.format("segmentstore")
        .option("store", store)
        .option("segment", COPY)
    )
    copy.mode("append").save()


if __name__ == "__main__":
    main(*sys.argv[1:])
