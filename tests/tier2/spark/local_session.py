"""As much of a Spark session as compaction asks for, in this process: partitions, retries and
speculation without a JVM.

It imitates what Spark does. A partition whose attempt is lost is run again from the beginning,
whatever the lost one did. A speculative attempt runs at the same time, and the first to end counts.
Nothing runs before an action, and each action runs everything again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.compute as pc

from tier2.spark.common.frames import partition_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Batches = Iterator[pa.RecordBatch]
Function = Callable[[Batches], Batches]


class LocalSession:
    """`lost` partitions of each action lose their first attempt at its end; `twice`: each is run
    twice at once.
    """

    def __init__(self, *, lost: int = 0, twice: bool = False) -> None:
        self.lost = lost
        self.twice = twice
        self.actions = 0
        self.conf = LocalConf()

    def as_spark(self) -> SparkSession:
        return cast("SparkSession", self)

    def createDataFrame(self, table: pa.Table, schema: str = "") -> LocalFrame:  # noqa: N802
        return LocalFrame(self, [table], None)


class LocalConf:
    """Says what Spark says of a session of two cores."""

    def get(self, name: str, default: str) -> str:
        return {"spark.master": "local[2]"}.get(name, default)


class LocalFrame:
    """Partitions, and what is to be run over them."""

    def __init__(
        self, session: LocalSession, partitions: list[pa.Table], function: Function | None
    ) -> None:
        self._session = session
        self._partitions = partitions
        self._function = function

    def repartition(self, number: int, column: str) -> LocalFrame:
        [table] = self._partitions
        assert table.schema.field(column).type == pa.int32(), "the hash is of another integer"
        places = pa.array(
            [partition_of(int(each or 0), number) for each in table[column].to_pylist()], pa.int32()
        )
        return LocalFrame(
            self._session,
            [table.filter(pc.equal(places, pa.scalar(each, pa.int32()))) for each in range(number)],
            None,
        )

    def mapInArrow(self, function: Function, schema: str) -> LocalFrame:  # noqa: N802
        assert "`group_id` string" in schema
        return LocalFrame(self._session, self._partitions, function)

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's
        if self._function is None:
            return pa.concat_tables(self._partitions)
        self._session.actions += 1
        with ThreadPoolExecutor(2) as pool:
            return pa.concat_tables(
                [
                    self._run(pool, number, partition)
                    for number, partition in enumerate(self._partitions)
                ]
            )

    def _run(self, pool: ThreadPoolExecutor, number: int, partition: pa.Table) -> pa.Table:
        assert self._function is not None
        function = self._function

        def attempt() -> pa.Table:
            return pa.Table.from_batches(list(function(iter(partition.to_batches()))))

        if number < self._session.lost:
            pool.submit(attempt).result()
        attempts = [pool.submit(attempt) for _ in range(2 if self._session.twice else 1)]
        done, others = wait(attempts, return_when=FIRST_COMPLETED)
        wait(others)
        return done.pop().result()
