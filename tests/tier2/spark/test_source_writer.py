"""Writing through Spark itself: batches and streams, with tasks that fail, batches that are
replayed, a store that restarts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

import segmentstore.blocking
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.events import split_events
from tests.support.folders import files_below
from tests.support.suites import share, size, sized, slow
from tier2.spark.data_source import register
from tier2.spark.sink.epoch_commit import EpochCommitError
from tier2.spark.sink.writer import SegmentBatchWriter, SegmentStreamWriter

# The first test waits for the session, and for the JVM to load what a write needs.
pytestmark = pytest.mark.timeout(300)

TURNS = size("HARNESS_WRITER_TURNS", 2, 3)
SCHEMA = StructType([StructField("payload", BinaryType()), StructField("segment", StringType())])


class Served:
    """A store of this process, that can be closed and opened again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = self._open()

    def _open(self) -> segmentstore.blocking.SegmentStore:
        return segmentstore.blocking.open(self.folder, append_bytes_max=5000)

    def restart(self) -> None:
        self.store.close()
        self.store = self._open()

    def read(self, segment: str = "x") -> bytes:
        return b"".join(self.store.reader(segment))

    def lines(self, segment: str = "x") -> list[str]:
        return self.read(segment).decode().splitlines()

    def names(self) -> list[str]:
        return [info.name for info in self.store.list_segments()]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "store")
    yield made
    made.store.close()


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def write(frame: DataFrame, served: Served, mode: str = "append", **options: object) -> None:
    writer = (
        frame.write.format("segmentstore")
        .option("store", str(served.folder))
        .options(segment="x", format="lines")
    )
    writer.options(**{name: str(value) for name, value in options.items()}).mode(mode).save()


def numbers(session: SparkSession, count: int, partitions: int, mark: str = "row") -> DataFrame:
    return session.range(0, count, 1, partitions).selectExpr(
        f"concat('{mark}-', lpad(string(id), 6, '0')) AS value"
    )


def rows(count: int, mark: str = "row") -> list[str]:
    return [f"{mark}-{number:06}" for number in range(count)]


def failing_first(after: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A step whose first attempt in each task ends after some batches."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            if context.attemptNumber() == 0 and number == after:
                raise RuntimeError("the first attempt fails")
            yield batch
        if context.attemptNumber() == 0 and after < 0:
            raise RuntimeError("the first attempt fails at its end")

    return step


@pytest.mark.spark_versions("write")
class TestBatch:
    def test_rows_are_in_the_segment_in_their_order(
        self, session: SparkSession, served: Served
    ) -> None:
        write(numbers(session, 1000, 4), served)
        write(numbers(session, 10, 2, "more"), served)
        assert served.lines() == rows(1000) + rows(10, "more")
        assert served.names() == ["x"]

    def test_a_large_batch_is_committed_by_a_merge_whose_pieces_go(
        self, session: SparkSession, served: Served
    ) -> None:
        write(numbers(session, 30_000, 3), served, inlineBytes=1000)
        assert served.lines() == rows(30_000)
        assert served.names() == ["x"]

    def test_rows_go_to_the_segments_they_name(self, session: SparkSession, served: Served) -> None:
        frame = session.range(0, 300, 1, 3).selectExpr(
            "if(id % 3 = 0, null, concat('s', id % 3)) AS segment",
            "encode(string(id), 'utf-8') AS payload",
        )
        write(frame, served, format="events", inlineBytes=200)
        for segment, rest in (("x", 0), ("s1", 1), ("s2", 2)):
            assert [int(event) for event in split_events(served.read(segment))] == list(
                range(rest, 300, 3)
            )
        assert served.names() == ["s1", "s2", "x"]

    @pytest.mark.parametrize(
        ("after", "inline"), share([(0, 1000), (1, 1000), (-1, 1000), (-1, 100_000)], 3, 4)
    )
    def test_tasks_that_fail_leave_no_trace(
        self, session: SparkSession, served: Served, after: int, inline: int
    ) -> None:
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
        try:
            frame = numbers(session, 3000, 2).mapInArrow(failing_first(after), "value string")
            write(frame, served, inlineBytes=inline)
        finally:
            session.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
        assert served.lines() == rows(3000)
        assert served.names() == ["x"]

    def test_a_job_that_fails_appends_nothing(self, session: SparkSession, served: Served) -> None:
        def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            yield from batches
            if context.partitionId() == 1:
                raise RuntimeError("this task never succeeds")

        frame = numbers(session, 3000, 2).mapInArrow(failing, "value string")
        with pytest.raises(PySparkException, match="never succeeds"):
            write(frame, served, inlineBytes=1000)
        assert "x" not in served.names() or served.read() == b""

    @slow(2)
    def test_with_a_query_id_is_committed_once_however_often_it_is_run(
        self, session: SparkSession, served: Served
    ) -> None:
        for partitions, inline in ((3, 1000), (2, 100_000), (5, 1000)):
            write(
                numbers(session, 2000, partitions),
                served,
                queryId="nightly",
                epoch=7,
                inlineBytes=inline,
            )
        write(numbers(session, 5, 1, "old"), served, queryId="nightly", epoch=6)
        write(numbers(session, 5, 1, "new"), served, queryId="nightly", epoch=8)
        write(numbers(session, 5, 1, "other"), served, queryId="another")
        assert served.lines() == rows(2000) + rows(5, "new") + rows(5, "other")
        assert served.names() == ["x"]

    def test_what_was_written_is_read_and_can_be_written_again(
        self, session: SparkSession, served: Served
    ) -> None:
        write(numbers(session, 500, 2), served, format="events")
        served.store.flush()
        served.store.export_catalog()
        url = (served.folder / "tier2").absolute().as_uri()
        read = (
            session.read.format("segmentstore")
            .option("segment", "x")
            .option("format", "events")
            .load(url)
        )
        write(read.withColumn("segment", lit("copy")), served, format="lines")
        assert served.lines("copy") == rows(500)

    def test_what_cannot_be_written_is_refused_by_name(
        self, session: SparkSession, served: Served
    ) -> None:
        frame = numbers(session, 5, 1)
        with pytest.raises(PySparkException, match="segments are only appended to"):
            write(frame, served, mode="overwrite")
        with pytest.raises(PySparkException, match="'csv' is not one of"):
            write(frame, served, format="csv")
        with pytest.raises(PySparkException, match="does not exist"):
            write(frame, served, createSegments="false")
        served.store.create_segment("x")
        served.store.seal("x")
        with pytest.raises(PySparkException, match="'x' is sealed"):
            write(frame, served)
        assert served.read() == b""

    def test_a_store_without_a_server_is_named(
        self, session: SparkSession, served: Served, tmp_path: Path
    ) -> None:
        served.folder = tmp_path / "nobody"
        with pytest.raises(PySparkException, match="nobody does not answer"):
            write(numbers(session, 5, 1), served, timeout=0.2)


class Stream:
    """A streaming query over files of lines, one file a micro-batch."""

    def __init__(self, session: SparkSession, served: Served, folder: Path) -> None:
        self.session = session
        self.served = served
        self.input = folder / "input"
        self.input.mkdir()
        self.checkpoint = folder / "checkpoint"
        self.expected: list[list[str]] = []
        """The rows of each micro-batch."""

    def add(self, mark: str, count: int) -> None:
        lines = rows(count, mark)
        # Under another name first: a file is seen whole.
        new = self.input / f"_{mark}"
        new.write_text("".join(f"{line}\n" for line in lines))
        # Spark takes files in the order of their times, and two of one millisecond in any.
        moment = 1_700_000_000 + len(self.expected)
        os.utime(new, (moment, moment))
        new.rename(self.input / mark)
        self.expected.append(lines)

    def committed(self) -> list[list[str]]:
        """What is in the segment, cut as the micro-batches were; the rows of each in the order of
        their names.
        """
        lines, batches = self.served.lines(), []
        for batch in self.expected:
            batches.append(sorted(lines[: len(batch)]))
            del lines[: len(batch)]
        return [*batches, lines] if lines else batches

    def run(self, partitions: int = 2, step: Any = None, **options: object) -> None:
        """Everything that is there, to the end."""
        frame = (
            self.session.readStream.format("text")
            .option("maxFilesPerTrigger", 1)
            .load(str(self.input))
        )
        frame = frame.repartition(partitions)
        if step is not None:
            frame = frame.mapInArrow(step, "value string")
        query = (
            frame.writeStream.format("segmentstore")
            .option("store", str(self.served.folder))
            .option("segment", "x")
            .option("format", "lines")
            .options(**{name: str(value) for name, value in options.items()})
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def steps(self) -> int:
        """How often a micro-batch was begun, or noted to have landed."""
        paths = files_below(self.checkpoint / "offsets") + files_below(self.checkpoint / "commits")
        return sum(path.name.isdigit() for path in paths)

    def forget_the_last_commit(self) -> Path:
        """As if the driver had died when the batch had landed and Spark had not noted it; what
        Spark notes when it has again.
        """
        commits = sorted(
            (path for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()),
            key=_number,
        )
        last = commits[-1]
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
        return last


def _number(path: Path) -> int:
    return int(path.name)


@pytest.fixture
def stream(session: SparkSession, served: Served, tmp_path: Path) -> Stream:
    return Stream(session, served, tmp_path)


class TestStream:
    @sized(12)
    @pytest.mark.spark_versions("write streams")
    def test_rows_are_committed_once_over_restarts_and_replays_with_other_partitions(
        self, stream: Stream
    ) -> None:
        partitions = [2, 3, 1][-TURNS:]
        for turn, count in enumerate(partitions):
            stream.add(f"{turn}a", 50)
            stream.add(f"{turn}b", 3000)
            stream.run(count, inlineBytes=2000)
            assert stream.committed() == stream.expected
            noted = stream.forget_the_last_commit()
            stream.run(partitions[turn - 1], inlineBytes=2000)
            assert noted.exists()
            assert stream.committed() == stream.expected
        assert stream.served.names() == ["x"]

    @slow(4)
    def test_tasks_that_fail_leave_no_trace(self, stream: Stream) -> None:
        stream.add("a", 2000)
        stream.add("b", 20)
        stream.run(2, failing_first(-1), inlineBytes=2000)
        assert stream.committed() == stream.expected
        assert stream.served.names() == ["x"]

    @slow(12)
    @pytest.mark.spark_versions("write streams")
    def test_a_query_that_fails_goes_on_where_it_was(self, stream: Stream, tmp_path: Path) -> None:
        flag = tmp_path / "fail"
        flag.touch()
        path = str(flag)

        def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pathlib

            for batch in batches:
                if "b-000100" in batch.column(0).to_pylist() and pathlib.Path(path).exists():
                    raise RuntimeError("it fails in one partition")
                yield batch

        stream.add("a", 300)
        stream.add("b", 3000)
        with pytest.raises(PySparkException, match="it fails in one partition"):
            stream.run(3, failing, inlineBytes=500)
        assert sorted(stream.served.lines()) == rows(300, "a")
        flag.unlink()
        stream.run(2, failing, inlineBytes=500)
        assert stream.committed() == stream.expected
        assert stream.served.names() == ["x"]

    @slow(12)
    def test_goes_on_over_restarts_of_the_store(self, stream: Stream) -> None:
        for number in range(6):
            stream.add(f"{number}", 1500)
        ended = threading.Event()
        restarts = 0

        def restart() -> None:
            nonlocal restarts
            while not ended.wait(0.5):
                stream.served.restart()
                restarts += 1
                # Where an opening takes longer than the time between two, nothing would ever end.
                before = stream.steps()
                while stream.steps() == before and not ended.wait(0.05):
                    pass

        restarting = threading.Thread(target=restart)
        restarting.start()
        try:
            stream.run(2, inlineBytes=500)
        finally:
            ended.set()
            restarting.join()
        assert restarts
        assert stream.committed() == stream.expected
        assert stream.served.names() == ["x"]

    @slow(2)
    def test_another_checkpoint_is_another_query(self, stream: Stream, tmp_path: Path) -> None:
        stream.add("a", 10)
        stream.run()
        stream.checkpoint = tmp_path / "another"
        stream.run()
        stream.expected *= 2
        assert stream.committed() == stream.expected


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "store"),
        ({"store": "s", "segment": "x", "epoch": "3"}, "give queryId too"),
        ({"store": "s", "segment": "x", "epoch": "-3", "queryId": "q"}, "not a whole number"),
        ({"store": "s", "segment": "x", "createSegments": "maybe"}, "not true or false"),
        ({"store": "s", "segment": "x", "timeout": "soon"}, "not a number of seconds"),
        ({"store": "s", "segment": "x", "formatt": "lines"}, "formatt: no option of a write"),
        ({"store": "s", "segment": "x", "query_id": "q"}, "query_id: no option.* queryId"),
        ({"store": "s", "path": "another", "segment": "x"}, "give one"),
    ],
)
def test_options_that_are_wrong_are_named(options: dict[str, str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        SegmentBatchWriter(options, SCHEMA, overwrite=False)


@pytest.mark.parametrize("option", ["queryId", "epoch"])
def test_a_stream_has_no_id_but_its_checkpoints(option: str) -> None:
    with pytest.raises(ConfigError, match="its checkpoint keeps"):
        SegmentStreamWriter({"store": "s", "segment": "x", option: "1"}, SCHEMA, overwrite=False)


def test_options_that_spark_adds_are_none_of_ours() -> None:
    added = {"path": "s", "checkpointLocation": "c", "queryName": "n"}
    SegmentStreamWriter({"segment": "x", **added}, SCHEMA, overwrite=False)


def test_options_have_any_case(tmp_path: Path) -> None:
    writer = SegmentBatchWriter(
        {"STORE": str(tmp_path), "Segment": "x", "QUERYID": "q"}, SCHEMA, overwrite=False
    )
    assert writer._settings.store == str(tmp_path)
    assert writer._identity.lasting


def test_a_job_that_succeeded_without_the_report_of_a_task_is_not_committed() -> None:
    options = {"store": "s", "segment": "x"}
    with pytest.raises(EpochCommitError, match="1 of 1 tasks did not report"):
        SegmentBatchWriter(options, SCHEMA, overwrite=False).commit([None])
    with pytest.raises(EpochCommitError, match="1 of 1 tasks did not report"):
        SegmentStreamWriter(options, SCHEMA, overwrite=False).commit([None], 0)
