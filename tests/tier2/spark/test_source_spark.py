"""The data source through Spark itself: a real small store, filters, columns, damage, SQL, and
streams that fail and go on.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from segmentstore.contracts.events import frame_events
from tests.store.harness import open_tiny
from tests.support.suites import share, size, slow
from tests.tier2.spark.source_world import SourceWorld
from tier2.spark.data_source import register
from tier2.spark.source.versions import PUSHDOWN

# A query costs a second or two, and ten times as much on a machine that does other things too.
pytestmark = pytest.mark.timeout(400)

STOPS = size("HARNESS_STREAM_STOPS", 1, 4)
WRITES_A_BATCH = 15
"""Some 400 bytes, of which a batch takes 200."""


@pytest.fixture
def world(tmp_path: Path) -> SourceWorld:
    return SourceWorld(f"file://{tmp_path}/tier2", containers=2)


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    register(spark)
    yield spark
    spark.conf.unset(PUSHDOWN)


def read(
    session: SparkSession, world: SourceWorld, schema: str | None = None, **options: object
) -> DataFrame:
    reader = session.read.format("segmentstore").options(
        **{name: str(value) for name, value in options.items()}
    )
    return (reader if schema is None else reader.schema(schema)).load(world.url)


def values(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.spark_versions("read")
def test_a_real_store_is_read_as_it_was_written(session: SparkSession, tmp_path: Path) -> None:
    texts = {f"logs/{name}": [f"{name} {number}" for number in range(60)] for name in "abc"}
    events = [bytes([number]) * number for number in range(50)]

    async def fill() -> str:
        async with open_tiny(tmp_path / "store", containers=2) as store:
            for name, written in texts.items():
                await store.create_segment(name)
                for line in written:
                    await store.append(name, line.encode() + b"\n")
            await store.create_segment("events")
            for first in range(0, len(events), 5):
                await store.append("events", frame_events(events[first : first + 5]))
            await store.truncate("logs/b", len(b"b 0\n") * 3)
            await store.seal("logs/c")
            await store.flush()
            exported = await store.export_catalog()
            assert len(exported) == 2
            return f"file://{tmp_path}/store/tier2"

    url = asyncio.run(fill())
    source = session.read.format("segmentstore")
    lines = (
        source.option("prefix", "logs/")
        .option("format", "lines")
        .option("partitionBytes", "150")
        .load(url)
    )
    assert lines.columns == ["container", "segment", "offset", "length", "payload"]
    texts["logs/b"] = texts["logs/b"][3:]
    found: dict[str, list[tuple[int, str]]] = {}
    for row in lines.collect():
        assert row["length"] == len(row["payload"])
        found.setdefault(row["segment"], []).append((row["offset"], bytes(row["payload"]).decode()))
    assert {name: [text for _, text in sorted(rows)] for name, rows in found.items()} == texts
    framed = (
        session.read.format("segmentstore")
        .option("segment", "events")
        .option("format", "events")
        .load(url)
    )
    assert [bytes(payload) for *_, payload in values(framed)] == events


def test_filters_with_spark_s_setting_on_and_off(session: SparkSession, world: SourceWorld) -> None:
    for name, container_id in (("a", 0), ("b", 1)):
        world.append(
            name,
            b"".join(b"%02d\n" % number for number in range(50)),
            range(0, 150, 20),
            container_id,
        )
    world.export(0)
    world.export(1)

    def chosen(where: str, **options: Any) -> DataFrame:
        # A new one each time: a query keeps the plan it was run with.
        columns = "container,segment,offset,value"
        return read(session, world, prefix="", format="lines", columns=columns, **options).where(
            where
        )

    session.conf.set(PUSHDOWN, "false")
    where = (
        "segment = 'a' AND offset >= 60 AND offset < 90 AND value <> '25' AND container IN (0, 5)"
    )
    rows = [(0, "a", 3 * number, f"{number:02d}") for number in range(20, 30) if number != 25]
    assert values(chosen(where)) == rows
    assert chosen("segment = 'b' OR offset = 3").count() == 51
    with pytest.raises(PySparkException, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        chosen("offset > 5", filterPushdown="true").count()
    # With the other segment's objects deleted, only a read that does not touch them succeeds.
    for chunk in world.segment("b", 1).chunks:
        world.delete_object(chunk.object_name)
    session.conf.set(PUSHDOWN, "true")
    assert values(chosen(where)) == rows
    assert values(chosen("segment LIKE 'a%' AND offset > 141")) == [
        (0, "a", 144, "48"),
        (0, "a", 147, "49"),
    ]
    with pytest.raises(PySparkException, match="MissingObjectError"):
        values(chosen("offset > 3"))


@pytest.mark.spark_versions("read")
def test_columns_that_need_no_bytes_read_none(session: SparkSession, world: SourceWorld) -> None:
    world.append("s", bytes(1000), [100, 900])
    world.export(0)
    for chunk in world.segment("s").chunks:
        world.delete_object(chunk.object_name)
    frame = read(session, world, "offset long, length int", segment="s", pieceBytes=300)
    assert values(frame) == [(0, 300), (300, 300), (600, 300), (900, 100)]
    with pytest.raises(PySparkException, match="MissingObjectError"):
        read(session, world, "offset long, payload binary", segment="s").collect()
    with pytest.raises(PySparkException, match="column offset is of type int64, not int32"):
        read(session, world, "offset int", segment="s").collect()
    with pytest.raises(PySparkException, match="there is no column 'colour'"):
        read(session, world, "colour string", segment="s").collect()


@pytest.mark.spark_versions("read")
def test_damage_is_named_and_nothing_is_given_for_it(
    session: SparkSession, world: SourceWorld, tmp_path: Path
) -> None:
    world.append("s", b"some text\n" * 100, [])
    world.export(0)
    name = world.segment("s").chunks.first.object_name
    path = tmp_path / "tier2" / name
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with pytest.raises(PySparkException, match=f"corrupt data at object {name} block at .* extent"):
        read(session, world, segment="s", format="lines").count()
    with pytest.raises(PySparkException, match="setting segmnt: no option of this data source"):
        read(session, world, segmnt="s").count()


@pytest.mark.spark_versions("read")
def test_nothing_to_read_is_an_empty_table(session: SparkSession, world: SourceWorld) -> None:
    world.segment("s")
    world.export(0)
    world.export(1)
    assert read(session, world, prefix="s").count() == 0
    assert read(session, world, prefix="nobody").collect() == []


@pytest.mark.spark_versions("read")
def test_sql_and_a_limit(session: SparkSession, world: SourceWorld) -> None:
    world.append(
        "s", b"".join(b"%d\n" % number for number in range(20000)), range(0, 100_000, 5000)
    )
    world.export(0)
    session.sql(
        "CREATE OR REPLACE TEMPORARY VIEW numbers USING segmentstore OPTIONS"
        f" (path '{world.url}', segment 's', format 'lines', columns 'value', partitionBytes '10k')"
    )
    assert session.sql("SELECT sum(CAST(value AS INT)), count(*) FROM numbers").collect()[0][:] == (
        199990000,
        20000,
    )
    assert session.sql("SELECT value FROM numbers LIMIT 5").count() == 5
    session.catalog.dropTempView("numbers")


@pytest.mark.spark_versions("read")
def test_a_table_is_refused_and_one_without_options_too(
    session: SparkSession, world: SourceWorld
) -> None:
    world.append("s", b"one\ntwo\n")
    world.export()
    said = f"OPTIONS (path '{world.url}', segment 's', format 'lines', columns 'value')"
    with pytest.raises(PySparkException, match=r"TableOptionsError: CREATE TABLE .* cannot be"):
        session.sql(f"CREATE TABLE lines USING segmentstore {said}")
    session.sql("CREATE TABLE bare (value STRING) USING segmentstore")
    try:
        with pytest.raises(PySparkException, match=r"TableOptionsError: .* WITH"):
            session.sql("SELECT * FROM bare").collect()
        chosen = f"SELECT * FROM bare WITH (path = '{world.url}', segment = 's', format = 'lines')"
        assert values(session.sql(chosen)) == [("one",), ("two",)]
    finally:
        session.sql("DROP TABLE bare")


@pytest.mark.spark_versions("read")
def test_text_that_is_none_and_times_of_rows(session: SparkSession, world: SourceWorld) -> None:
    world.now_ms = 1_700_000_000_123
    world.append("s", b"one\nb\xff\n")
    world.export()
    with pytest.raises(
        PySparkException, match="SegmentEncodingError: segment 's': the row at offset 4 is no UTF-8"
    ):
        read(session, world, "value string", segment="s", format="lines").collect()
    chosen = {"segment": "s", "format": "lines", "columns": "value,stored_time"}
    replaced = read(session, world, invalidUtf8="replace", **chosen).where(
        "stored_time > '2023-11-14'"
    )
    assert {row["value"] for row in replaced.toArrow().to_pylist()} == {"one", "b�"}
    (time,) = {row["stored_time"].timestamp() for row in replaced.collect()}
    assert time == 1_700_000_000.123
    raw = read(session, world, invalidUtf8="binary", **chosen)
    assert sorted(bytes(row["value"]) for row in raw.collect()) == [b"b\xff", b"one"]


@slow(8)
def test_a_stream_of_so_many_rows_says_what_is_left(
    session: SparkSession, world: SourceWorld, tmp_path: Path
) -> None:
    world.append("s", b"".join(b"%d\n" % number for number in range(10)))
    world.append("t", b"old\nnew\n")
    world.export()
    stream = (
        session.readStream.format("segmentstore").option("prefix", "").option("format", "lines")
    )
    stream = stream.option("maxRowsPerTrigger", "6").option("startingOffsets", '{"t": 4}')
    writer = stream.load(world.url).writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        assert query.awaitTermination(300)
        batches = [each for each in query.recentProgress if each["numInputRows"]]
    finally:
        query.stop()
    assert [each["numInputRows"] for each in batches] == [6, 5]
    left = [json.loads(each["sources"][0]["latestOffset"]) for each in batches]
    assert [each["bytesBehind"] for each in left][-1] == 0
    assert left[0]["bytesBehind"] > 0


@slow(10)
@pytest.mark.parametrize("form", share(["lines", "events"], 2, 15))
def test_a_stream_that_fails_and_goes_on_gives_each_row_once(
    session: SparkSession, world: SourceWorld, tmp_path: Path, form: str
) -> None:
    rng = random.Random(form)
    written: dict[str, list[bytes]] = {}
    committed: dict[int, list[tuple[str, int, bytes]]] = {}

    def write(name: str) -> None:
        records = [
            b"%s %d" % (name.encode(), len(written.get(name, ())) + number) for number in range(30)
        ]
        data = (
            frame_events(records)
            if form == "events"
            else b"".join(record + b"\n" for record in records)
        )
        world.append(name, data, [rng.randrange(len(data)) for _ in range(4)], int(name[1:]) % 2)
        written[name] = [*written.get(name, []), *records]

    def sink(failing: Callable[[], bool]) -> Callable[[DataFrame, int], None]:
        def commit_epoch(frame: DataFrame, batch: int) -> None:
            rows = [
                (row["segment"], row["offset"], bytes(row["payload"])) for row in frame.collect()
            ]
            if failing():
                raise RuntimeError("the sink fails")
            committed[batch] = (
                rows  # A batch that comes again takes its own place, as an idempotent sink has it.
            )
            if failing():
                raise RuntimeError("the sink fails behind its work")

        return commit_epoch

    def query(failing: Callable[[], bool]) -> None:
        stream = (
            session.readStream.format("segmentstore").option("prefix", "s").option("format", form)
        )
        frame = (
            stream.option("maxBytesPerTrigger", "200")
            .option("partitionBytes", "100")
            .load(world.url)
        )
        writer = frame.writeStream.foreachBatch(sink(failing)).trigger(availableNow=True)
        running = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            running.awaitTermination()
        finally:
            running.stop()

    failures = []
    for part in range(3):
        write("s0")
        write(f"s{part}")
        world.export(0)
        world.export(1)
        try:
            query(lambda: rng.random() < 0.2)
        except PySparkException as error:
            failures.append(str(error))
    query(lambda: False)
    assert failures
    assert all("the sink fails" in failure for failure in failures)
    rows = [row for batch in sorted(committed) for row in committed[batch]]
    assert len({(name, offset) for name, offset, _ in rows}) == len(rows)
    for name, records in written.items():
        assert [
            payload
            for _, payload in sorted((place, data) for each, place, data in rows if each == name)
        ] == records
    assert len(committed) > 5


@slow(25)
@pytest.mark.parametrize("form", ["lines", "raw"])
def test_a_stream_stopped_at_random_and_started_again_gives_each_row_once(
    session: SparkSession, world: SourceWorld, tmp_path: Path, form: str
) -> None:
    # The same seed stops at the same places of a run, as far as machines are alike.
    seed = os.environ.get("HARNESS_STREAM_SEED", f"{random.SystemRandom().getrandbits(32):x}")
    print(f"HARNESS_STREAM_SEED={seed}")
    rng = random.Random(f"{seed} {form}")
    lines: dict[str, list[str]] = {"s0": [], "s1": []}

    def flush(name: str, left: int = 0) -> None:
        """Comes to Tier 2 and is shown, but for the last bytes: flushes cut lines anywhere."""
        data = "".join(line + "\n" for line in lines[name]).encode()
        more = data[world.segment(name, int(name[1:])).storage_length : len(data) - left]
        world.append(name, more, [rng.randrange(1 + len(more))], int(name[1:]))
        world.export(int(name[1:]))

    def write() -> None:
        name = rng.choice(sorted(lines))
        lines[name] += [
            f"{name} {len(lines[name]) + number}" for number in range(rng.randrange(1, 9))
        ]
        flush(name, rng.randrange(4))

    def start(**trigger: Any) -> StreamingQuery:
        stream = (
            session.readStream.format("segmentstore").option("prefix", "s").option("format", form)
        )
        stream = stream.option("maxBytesPerTrigger", "200").option("pieceBytes", "64")
        writer = (
            stream.load(world.url)
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "rows"))
        )
        return (
            writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(**trigger)
            .start()
        )

    def wait(running: StreamingQuery, seconds: float) -> None:
        # Raises what the query died of.
        # It takes milliseconds, whatever its type says.
        assert not running.awaitTermination(seconds)  # type: ignore[arg-type]

    def batches(what: str) -> int:
        return len(list((tmp_path / "checkpoint" / what).glob("[0-9]*")))

    cut_off = []
    for _ in range(STOPS):
        running = start(processingTime="0 seconds")
        try:
            before, writes = batches("offsets"), 0
            wanted = before + rng.randrange(1, 3)
            while (now := batches("offsets")) < wanted:
                # Or the slower a machine is, the more batches are there to be read.
                if writes < WRITES_A_BATCH * (1 + now - before):
                    write()
                    writes += 1
                wait(running, 0.1)
            wait(running, rng.choice([0.001, rng.uniform(0.01, 0.6)]))
        finally:
            running.stop()
        cut_off.append(batches("offsets") - batches("commits"))
    print(f"batches: {batches('commits')}; cut off at each stop: {cut_off}")
    for name in lines:
        flush(name)
    last = start(availableNow=True)
    try:
        assert last.awaitTermination(300)
    finally:
        last.stop()
    assert batches("commits") == batches("offsets") >= len(cut_off)
    committed = session.read.parquet(str(tmp_path / "rows")).collect()
    rows = sorted(
        (row["segment"], row["offset"], bytes(row["payload"]).decode()) for row in committed
    )
    assert len({(name, offset) for name, offset, _ in rows}) == len(rows)
    for name, written in lines.items():
        found = [
            payload + ("" if form == "raw" else "\n") for each, _, payload in rows if each == name
        ]
        assert "".join(found) == "".join(line + "\n" for line in written)
