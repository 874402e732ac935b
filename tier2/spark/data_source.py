"""The data source `segmentstore` of Spark: `spark.read.format("segmentstore")` and what belongs to
it.

    from tier2.spark.data_source import register register(spark)
    spark.read.format("segmentstore").option("prefix", "logs/").option("format",
    "lines").load("s3://bucket/store")

Readers and writers are imported when they are asked for, where they run. Options and columns:
docs/spark-source.md.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tier2.spark.source.errors import SourceSchemaError, TableOptionsError
from tier2.spark.source.options import SourceOptions, parse_options
from tier2.spark.source.versions import (
    enable_pushdown,
    has_sources,
    need_filters,
    need_limits,
    need_sources,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
if TYPE_CHECKING or has_sources():
    from pyspark.sql.datasource import DataSource
else:
    DataSource = object  # `register` says so

NAME: Final = "segmentstore"

COLUMNS: Final[dict[str, DataType]] = {
    "container": LongType(),
    "segment": StringType(),
    "segment_id": LongType(),
    "offset": LongType(),
    "length": IntegerType(),
    "payload": BinaryType(),
    "value": StringType(),
    "stored_time": TimestampType(),
    "segment_created": TimestampType(),
    "segment_modified": TimestampType(),
}
"""The columns there are."""
DEFAULT_COLUMNS: Final = ("container", "segment", "offset", "length", "payload")

_TABLE_KEY: Final = "provider"
"""Among the options that Spark hands over for CREATE TABLE, and there alone."""
_FILTER_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""The program Spark plans a read with when it has filters to hand over, and may (see
`_filters_come`).
"""


class SegmentStoreSource(DataSource):
    """Segments in Tier 2, read by their catalog snapshots; and appended to, through the store that
    runs.
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """What option `columns` says; spark.read.schema(...) says it instead.

        Raises TableOptionsError for CREATE TABLE.
        """
        given = self._given
        if _TABLE_KEY in given:
            raise TableOptionsError
        named = given.get("columns")
        names = (
            [name.strip() for name in named.split(",")] if named is not None else DEFAULT_COLUMNS
        )
        unknown = [name for name in names if name not in COLUMNS]
        if unknown:
            raise SourceSchemaError(
                f"there is no column {unknown[0]!r}; there are {', '.join(COLUMNS)}"
            )
        kinds = COLUMNS | (
            {"value": BinaryType()} if given.get("invalidutf8", "").lower() == "binary" else {}
        )
        return StructType([StructField(name, kinds[name], nullable=False) for name in names])

    @property
    def _given(self) -> dict[str, str]:
        return {key.lower(): text for key, text in self.options.items()}

    def reader(self, schema: StructType) -> DataSourceReader:
        if not self.options:
            # A read by load() or a view has given its options; a table has lost them.
            raise TableOptionsError
        options = parse_options(self.options, streaming=False)
        wanted = options.filter_pushdown
        if wanted == "true":
            need_filters()
        if _filters_come() if wanted == "auto" else wanted == "true":
            from tier2.spark.source.pushdown import FilteringBatchReader  # noqa: PLC0415

            return FilteringBatchReader(options, schema)
        from tier2.spark.source.reader import SegmentBatchReader  # noqa: PLC0415

        return SegmentBatchReader(options, schema)

    # Spark's name.
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from tier2.spark.source.stream import SegmentStreamReader  # noqa: PLC0415

        options = parse_options(self.options, streaming=True)
        need_limits(_limits_of(options))
        return SegmentStreamReader(options, schema)

    # Spark's signature.
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        from tier2.spark.sink.writer import SegmentBatchWriter  # noqa: PLC0415

        return SegmentBatchWriter(self.options, schema, overwrite)

    # Spark's name and signature.
    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamWriter:
        from tier2.spark.sink.writer import SegmentStreamWriter  # noqa: PLC0415

        return SegmentStreamWriter(self.options, schema, overwrite)


def register(spark: SparkSession) -> None:
    """Make the source known to a session, classic or Connect, under its name; and have `where`
    handed to it.

    That is setting `spark.sql.python.filterPushdown.enabled`; one that is set already stays, and
    one that cannot be set is reported in the log. Raises SparkVersionError before Spark 4.0.
    """
    need_sources()
    spark.dataSource.register(SegmentStoreSource)
    enable_pushdown(spark)


def _limits_of(options: SourceOptions) -> list[str]:
    limits = {
        "maxBytesPerTrigger": options.max_bytes_per_trigger,
        "maxRowsPerTrigger": options.max_rows_per_trigger,
    }
    return [name for name, limit in limits.items() if limit is not None]


def _filters_come() -> bool:
    """Whether this process is the one that Spark hands filters to.

    With the setting off Spark refuses a reader that would take filters, and no reader is notified
    the setting. But filters come to a process of another program; where that is not so, nothing is
    pushed down, and nothing is wrong.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _FILTER_WORKER in sys.modules or getattr(main, "name", None) == _FILTER_WORKER
