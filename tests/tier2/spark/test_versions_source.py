"""The source in each release of Spark that has Python data sources: `make spark-versions` runs
them.

What is expected goes by the release's number, for what the source does goes by what it finds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from pyspark.errors import PySparkException

from tests.support.suites import slow
from tests.tier2.spark.source_world import SourceWorld, payloads, read_stream, stream_of
from tier2.spark.data_source import register
from tier2.spark.source import stream as source_stream
from tier2.spark.source.offsets import OffsetOrderError
from tier2.spark.source.versions import PUSHDOWN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RELEASE = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
FILTERS, LIMITS = RELEASE >= (4, 1), RELEASE >= (4, 2)

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.unset(PUSHDOWN)
    register(spark)
    yield spark
    spark.conf.unset(PUSHDOWN)


@pytest.fixture
def world(tmp_path: Path) -> SourceWorld:
    return SourceWorld(f"file://{tmp_path}/tier2", containers=2)


def read(session: SparkSession, world: SourceWorld, **options: object) -> DataFrame:
    chosen = {name: str(value) for name, value in options.items()}
    return session.read.format("segmentstore").options(**chosen).load(world.url)


@slow(3)
@pytest.mark.spark_versions("where")
def test_where_reads_only_what_it_lets_through_without_a_setting(
    session: SparkSession, world: SourceWorld, caplog: pytest.LogCaptureFixture
) -> None:
    for name, container_id in (("a", 0), ("b", 1)):
        world.append(
            name,
            b"".join(b"%02d\n" % number for number in range(50)),
            range(0, 150, 20),
            container_id,
        )
        world.export(container_id)

    def chosen() -> list[str]:
        frame = read(session, world, prefix="", format="lines", columns="segment,offset,value")
        return sorted(
            row["value"]
            for row in frame.where("segment = 'a' AND offset >= 60 AND offset < 90").collect()
        )

    rows = [f"{number:02d}" for number in range(20, 30)]
    assert chosen() == rows
    for chunk in world.segment("b", 1).chunks:
        world.delete_object(chunk.object_name)
    if FILTERS:
        assert chosen() == rows
        session.conf.set(PUSHDOWN, "false")
    with pytest.raises(PySparkException, match="MissingObjectError"):
        chosen()
    with caplog.at_level(logging.WARNING):
        register(session)
    said = PUSHDOWN if FILTERS else "hands no filter to the source, 4.1 does"
    assert said in caplog.text
    if FILTERS:
        assert session.conf.get(PUSHDOWN) == "false", "what the user has set stays"
    else:
        with pytest.raises(
            PySparkException, match=r"SparkVersionError: filterPushdown=true needs Spark 4\.1"
        ):
            read(session, world, prefix="", filterPushdown="true").count()


@pytest.mark.spark_versions("streams")
@slow(15)
@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_stream_over_restarts_gives_each_row_once(
    session: SparkSession, world: SourceWorld, tmp_path: Path, starting: str
) -> None:
    written: list[str] = []

    def write(count: int) -> None:
        for name, container_id in (("s0", 0), ("s1", 1)):
            lines = [f"{name} {len(written) + number}" for number in range(count)]
            written.extend(lines)
            # The last line is whole by the next piece alone.
            world.append(
                name, "".join(f"{line}\n" for line in lines).encode(), [7, 30], container_id
            )
            world.export(container_id)

    def run() -> None:
        stream = (
            session.readStream.format("segmentstore")
            .option("prefix", "s")
            .option("format", "lines")
        )
        frame = (
            stream.option("startingOffsets", starting).option("columns", "value").load(world.url)
        )
        writer = (
            frame.writeStream.format("parquet")
            .option("path", str(tmp_path / "rows"))
            .trigger(availableNow=True)
        )
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            assert query.awaitTermination(200)
        finally:
            query.stop()

    write(10)
    first = list(written) if starting == "latest" else []
    for _ in range(3):
        run()
        write(5)
    run()
    run()
    rows = [
        row["value"]
        for row in session.read.schema("value string").parquet(str(tmp_path / "rows")).collect()
    ]
    assert sorted(rows) == sorted(set(written) - set(first))


@slow(3)
@pytest.mark.spark_versions("limits")
def test_limits_of_a_stream_are_refused_where_there_are_none(
    session: SparkSession, world: SourceWorld, tmp_path: Path
) -> None:
    world.append("s", b"one\ntwo\n")
    world.export()
    stream = (
        session.readStream.format("segmentstore")
        .option("prefix", "s")
        .option("maxRowsPerTrigger", "1")
    )
    writer = (
        stream.option("format", "lines")
        .load(world.url)
        .writeStream.format("noop")
        .trigger(availableNow=True)
    )
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        if LIMITS:
            assert query.awaitTermination(200)
        else:
            with pytest.raises(
                PySparkException,
                match=r"maxRowsPerTrigger needs Spark 4\.2 or newer, and this is 4\.",
            ):
                query.awaitTermination(200)
    finally:
        query.stop()


@pytest.mark.spark_versions("streams")
def test_a_reader_that_gets_no_start_goes_on_where_it_was(
    world: SourceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Spark 4.0 and 4.1 ask, whatever this release is."""
    monkeypatch.setattr(source_stream, "has_limits", lambda: False)

    def grow(data: bytes) -> None:
        world.append("s", data)
        world.export()

    grow(b"old\n")
    options = {"segment": "s", "format": "lines", "startingOffsets": "latest"}
    reader = stream_of(world, **options)
    first = reader.latestOffset()
    grow(b"one\n")
    assert reader.initialOffset() == first, "rows between the two would be left out"
    second = reader.latestOffset()
    assert payloads(read_stream(reader, first, second)) == [b"one"]
    assert reader.latestOffset() == second, "nothing new, no batch"
    again = stream_of(world, **options)
    assert again.partitions(second, second) == []
    grow(b"two\n")
    third = again.latestOffset()
    assert payloads(read_stream(again, second, third)) == [b"two"]
    with pytest.raises(OffsetOrderError, match="older catalog"):
        again.partitions(third, second)
