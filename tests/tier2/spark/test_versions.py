"""In each release of Spark: the jobs find what is planted, and what a release lacks is refused by
name.

`make spark-versions` runs them in each. What is expected goes by the release's number, for what the
source does goes by what it finds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from tests.tier2.spark.reconcile_dry import found, stopped
from tests.tier2.spark.reconcile_world import World
from tier2.spark.data_source import register
from tier2.spark.source import versions as source_versions
from tier2.spark.source.errors import SparkVersionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCES = int(pyspark.__version__.partition(".")[0]) >= 4

pytestmark = pytest.mark.timeout(300)


@pytest.mark.spark_versions("refusals")
def test_the_source_is_refused_where_there_are_no_sources(spark: SparkSession) -> None:
    if SOURCES:
        register(spark)
    else:
        with pytest.raises(
            SparkVersionError, match=r"needs Spark 4\.0 or newer, and this is 3\."
        ) as refused:
            register(spark)
        assert "\n" not in str(refused.value)


@pytest.mark.spark_versions("reconcile")
def test_a_chunk_that_is_lost_and_an_orphan_are_found(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path / "tier2")
    lost = world.names(1)[0]
    world.lose(lost)
    orphan = world.orphan(0)
    world.snapshot()
    assert found(stopped(spark, world, check="headers").table) == {
        ("missing", lost),
        ("orphan", orphan),
    }


@pytest.mark.spark_versions("refusals")
def test_what_is_lacking_is_named_with_the_release_that_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("has_sources", "has_filters", "has_limits"):
        monkeypatch.setattr(source_versions, name, lambda: False)
    with pytest.raises(SparkVersionError, match=r"Python data sources needs Spark 4\.0"):
        source_versions.need_sources()
    with pytest.raises(SparkVersionError, match=r"filterPushdown=true needs Spark 4\.1"):
        source_versions.need_filters()
    with pytest.raises(SparkVersionError, match=r"maxBytesPerTrigger needs Spark 4\.2"):
        source_versions.need_limits(["maxBytesPerTrigger"])
    source_versions.need_limits([])
