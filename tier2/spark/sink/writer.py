"""What Spark calls to write: `df.write.format("segmentstore")` and `writeStream`, over a store that
this machine serves.

    df.write.format("segmentstore").option("store", folder).option("segment",
    "logs/a").mode("append").save()

Rules of this file: it turns Spark's calls into those of sink/epoch_commit.py, which knows how an
epoch lands once, and holds nothing else of it. A writer is pickled to each task and back to the
driver: it carries settings, no connections. Options and what is promised: docs/spark-writing.md.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.folders import checked_folder
from segmentstore.contracts.runtime import Runtime
from tier2.spark.common.store_client import TIMEOUT_S, StoreClient
from tier2.spark.sink.epoch_commit import (
    INLINE_BYTES,
    CommittedEpoch,
    EpochCommitError,
    TaskWritten,
    WriteIdentity,
    commit_epoch,
    give_up,
    write_partition,
    writer_id_of,
)
from tier2.spark.sink.rows import RowLayout, batches_of, row_layout
from tier2.spark.source.versions import has_arrow_streams

if TYPE_CHECKING or has_arrow_streams():
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    from pyspark.sql.datasource import DataSourceStreamWriter as DataSourceStreamArrowWriter

_log = logging.getLogger(__name__)

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties of a task: the query's id, which its checkpoint keeps over restarts, and the
number of the micro-batch.
"""
_OPTIONS: Final = ("store", "segment", "format", "createSegments", "inlineBytes", "timeout")
_BATCH_OPTIONS: Final = ("queryId", "epoch")
_SPARKS: Final = frozenset(("path", "checkpointlocation", "queryname"))
"""What Spark hands over besides, in lower case: what `save` or `start`, and a query, were given."""
_EPOCH_MAX: Final = 2**63 - 1
_ABORT_TIMEOUT_S: Final = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """The options of a write, checked."""

    store: str
    layout: RowLayout
    create: bool
    inline_bytes: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class TaskMessage(WriterCommitMessage):
    """What a task reports to the driver."""

    identity: WriteIdentity
    written: TaskWritten


def write_settings(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> WriteSettings:
    """Of the options as Spark gives them.

    Raises ConfigError naming the option or column that is wrong. An unknown option is: a misspelt
    `format` would join rows, a misspelt `queryId` write them twice.
    """
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower() for name in (*_OPTIONS, *_BATCH_OPTIONS)} | _SPARKS
    for name in given:
        if name not in known:
            raise ConfigError(
                name,
                "no option of a write by this data source; there are "
                f"{', '.join((*_OPTIONS, *_BATCH_OPTIONS))}",
            )
    if overwrite:
        raise ConfigError(
            "mode", "segments are only appended to: mode append, or output mode append"
        )
    if "store" in given and "path" in given:
        raise ConfigError("store", "it and the path say which store: give one")
    store = given.get("store") or given.get("path")
    if not store:
        raise ConfigError(
            "store", "it names the folder of a store that a process of this machine serves"
        )
    checked_folder(store, "store")
    columns = [(column.name, column.dataType.typeName()) for column in schema.fields]
    return WriteSettings(
        # Tasks have working directories of their own.
        store=str(Path(store).absolute()),
        layout=row_layout(columns, given),
        create=_flag(given, "createSegments", default=True),
        inline_bytes=_whole(given, "inlineBytes", INLINE_BYTES),
        timeout_s=_seconds(given, "timeout", TIMEOUT_S),
    )


class SegmentBatchWriter(DataSourceArrowWriter):
    """One batch write.

    Without `queryId` it lands once; with `queryId` and `epoch` once however often it is run.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's
    ) -> None:
        self._settings = write_settings(options, schema, overwrite=overwrite)
        given = {name.lower(): value for name, value in options.items()}
        query_id = given.get("queryid")
        epoch = _whole(given, "epoch", 0)
        if query_id is None and "epoch" in given:
            raise ConfigError("epoch", "it numbers the batches of a query: give queryId too")
        drawn = uuid.UUID(int=Runtime().random.getrandbits(128), version=4)
        writer_id = writer_id_of(query_id) if query_id is not None else drawn
        self._identity = WriteIdentity(writer_id, epoch, lasting=query_id is not None)

    # An Arrow writer's.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:  # type: ignore[override]
        return _write_task(self._settings, self._identity, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit_epoch(self._settings, self._identity, _all_reports(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _abort(self._settings, _reports(messages))


class SegmentStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a streaming query: each micro-batch lands once, over failures and restarts from
    its checkpoint.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's
    ) -> None:
        self._settings = write_settings(options, schema, overwrite=overwrite)
        given = {name.lower() for name in options}
        for option in _BATCH_OPTIONS:
            if option.lower() in given:
                # With another checkpoint the numbers begin anew: whole batches would be taken for
                # repetitions.
                raise ConfigError(
                    option,
                    "a stream has the id that its checkpoint keeps, and Spark's number "
                    "of each batch",
                )

    # An Arrow writer's.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:  # type: ignore[override]
        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(BATCH_ID) if context is not None else None
        if not query_id or not batch:
            raise ConfigError(
                "checkpointLocation",
                f"the task knows neither {QUERY_ID} nor {BATCH_ID}: not a micro-batch",
            )
        identity = WriteIdentity(writer_id_of(query_id), int(batch), lasting=True)
        if not has_arrow_streams():
            iterator = batches_of(self._settings.layout, cast("Iterator[Any]", iterator))
        return _write_task(self._settings, identity, iterator)

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        reports = _all_reports(messages)
        if not reports:
            return
        identity = reports[0].identity
        if any(report.identity != identity for report in reports) or identity.epoch != batchId:
            raise ConfigError(
                "epoch",
                f"tasks of batch {batchId} reported {sorted({r.identity.epoch for r in reports})}",
            )
        _commit_epoch(self._settings, identity, reports)

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: ARG002, N803 - Spark's name
    ) -> None:
        _abort(self._settings, _reports(messages))


def _write_task(
    settings: WriteSettings, identity: WriteIdentity, batches: Iterator[pa.RecordBatch]
) -> TaskMessage:
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    attempt = context.attemptNumber() if context is not None else 0

    async def work(client: StoreClient) -> TaskWritten:
        return await write_partition(
            client,
            identity,
            settings.layout,
            batches,
            runtime=Runtime(),
            partition=partition,
            attempt=attempt,
            inline_bytes=settings.inline_bytes,
        )

    return TaskMessage(identity, _with_client(settings, settings.timeout_s, work))


def _commit_epoch(
    settings: WriteSettings, identity: WriteIdentity, reports: Sequence[TaskMessage]
) -> None:
    tasks = [report.written for report in reports]

    async def work(client: StoreClient) -> CommittedEpoch:
        return await commit_epoch(
            client, identity, tasks, runtime=Runtime(), create=settings.create
        )

    committed = _with_client(settings, settings.timeout_s, work)
    _log.info(
        "epoch %d: %d bytes appended to %d segments",
        identity.epoch,
        committed.bytes,
        len(committed.offsets),
    )


def _abort(settings: WriteSettings, reports: Sequence[TaskMessage]) -> None:
    """Tidy up; what cannot be is found later by its name.

    A failed job has its own error to report.
    """
    staged = [
        part.staged for report in reports for part in report.written.parts.values() if part.staged
    ]
    if not staged:
        return

    async def work(client: StoreClient) -> None:
        await give_up(client, [report.written for report in reports])

    try:
        _with_client(settings, _ABORT_TIMEOUT_S, work)
    except Exception:  # noqa: BLE001
        _log.warning("what tasks staged is left behind: %s", staged)


def _with_client(
    settings: WriteSettings, timeout_s: float, work: Callable[[StoreClient], Awaitable[T]]
) -> T:
    async def connected() -> T:
        async with StoreClient(settings.store, timeout_s=timeout_s) as client:
            return await work(client)

    return asyncio.run(connected())


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[TaskMessage]:
    return [message for message in messages if isinstance(message, TaskMessage)]


def _all_reports(messages: Sequence[WriterCommitMessage | None]) -> list[TaskMessage]:
    """Of a job that Spark says has succeeded.

    Raises EpochCommitError if a task's is missing: its rows would be.
    """
    reports = _reports(messages)
    if len(reports) != len(messages):
        raise EpochCommitError(
            f"{len(messages) - len(reports)} of {len(messages)} tasks did not report "
            "what they prepared"
        )
    return reports


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).lower()
    if text not in {"true", "false"}:
        raise ConfigError(name, f"{text!r} is not true or false")
    return text == "true"


def _whole(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name.lower(), str(default))
    if not (text.isascii() and text.isdigit()) or int(text) > _EPOCH_MAX:
        raise ConfigError(name, f"{text!r} is not a whole number from 0 to {_EPOCH_MAX}")
    return int(text)


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name.lower(), str(default))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e9:
        raise ConfigError(name, f"{text!r} is not a number of seconds")
    return seconds
