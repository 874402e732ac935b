"""What of Spark's Python data sources this release has: they came in 4.0 and grew until 4.2.

Rules of this file: nothing here goes by a release's number but what people get to read. It is
asked for what it has, once a process; the planner and the tasks run the same release, so they
answer alike.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyspark
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tier2.spark.source.errors import SparkVersionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
"""The setting without which Spark hands no filter to a Python source; off by default."""
_SOURCES: Final = "4.0"
_FILTERS: Final = "4.1"
_LIMITS: Final = "4.2"


@lru_cache(maxsize=1)
def has_sources() -> bool:
    """Whether there are Python data sources at all."""
    return importlib.util.find_spec("pyspark.sql.datasource") is not None


@lru_cache(maxsize=1)
def has_filters() -> bool:
    """Whether a source is handed the filters of a query."""
    return has_sources() and _source_has("Filter")


@lru_cache(maxsize=1)
def has_limits() -> bool:
    """Whether a stream reader is notified where it begins and how much it may take, and is asked
    what is left.
    """
    return importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None


@lru_cache(maxsize=1)
def has_arrow_streams() -> bool:
    """Whether the sink of a stream is handed Arrow batches."""
    return has_sources() and _source_has("DataSourceStreamArrowWriter")


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema in Arrow's words, times in UTC."""
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # UTC is what it knew before it could be set


def need_sources() -> None:
    """Raise SparkVersionError where there are no Python data sources."""
    if not has_sources():
        raise _lacking(
            "Python data sources", _SOURCES, "the jobs reconcile and compact run on this one"
        )


def need_filters() -> None:
    """Raise SparkVersionError where no filter is handed over."""
    if not has_filters():
        raise _lacking(
            "filterPushdown=true",
            _FILTERS,
            "options segment, prefix, startOffset and endOffset do the same",
        )


def need_limits(options: list[str]) -> None:
    """Raise SparkVersionError where batches of a stream cannot be limited, and these options ask
    for it.
    """
    if options and not has_limits():
        raise _lacking(" and ".join(options), _LIMITS, "without it a batch takes all there is")


def enable_pushdown(spark: SparkSession) -> bool:
    """Have Spark hand filters over, unless the user has set that it shall not; else a line in the
    log says what to do.

    Whether it does.
    """
    if not has_filters():
        _log.warning(
            "Spark %s hands no filter to the source, %s does: a where reads everything; "
            "options segment, prefix,"
            " startOffset and endOffset do not",
            pyspark.__version__,
            _FILTERS,
        )
        return False
    from pyspark.errors import PySparkException  # noqa: PLC0415 - of a session that is there

    try:
        said = spark.conf.get(PUSHDOWN, None)
        if said is None:
            spark.conf.set(PUSHDOWN, "true")
            return True
    except PySparkException as error:
        said = f"not to be set: {error}"
    if said.lower() == "true":
        return True
    _log.warning("a where reads everything: set %s to true, it is %s", PUSHDOWN, said)
    return False


def _source_has(name: str) -> bool:
    from pyspark.sql import datasource  # noqa: PLC0415 - not in every release

    return hasattr(datasource, name)


def _lacking(feature: str, since: str, instead: str) -> SparkVersionError:
    return SparkVersionError(
        f"{feature} needs Spark {since} or newer, and this is {pyspark.__version__}: {instead}"
    )
