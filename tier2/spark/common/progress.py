"""Progress of a job on standard error: tasks done of tasks known, by classic sessions and by
Connect, or the owner that is waited for.

Rules of this file:

- only tasks are counted, for that is all that both kinds of session report; a job says its own
  numbers at its end;
- on a terminal it is one line that is drawn anew; elsewhere a line at most every LINE_EVERY_S, and
  none for what was quicker;
- what cannot be known is not shown: no error of a check ever reaches the job.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self, TextIO, cast

from pyspark.sql import SparkSession

from tier2.spark.common.session import is_connect
from tier2.spark.common.waiting import waited_for

if TYPE_CHECKING:
    # Needs grpc, which classic sessions do not.
    from pyspark.sql.connect.shell.progress import ProgressHandler

CHECK_S: Final = 0.5
LINE_EVERY_S: Final = 10.0


class _Stage(Protocol):
    """A stage as the progress handlers of Connect are notified of it."""

    stage_id: int
    num_tasks: int
    num_completed_tasks: int


class TaskCount(NamedTuple):
    """Tasks of the queries of a session, over all its stages that were seen."""

    done: int
    known: int
    running: int


class StageCounts:
    """Adds up what is seen of stages, one after another: a stage that is over is reported no
    more.
    """

    def __init__(self) -> None:
        self._stages: dict[tuple[str, int], tuple[int, int]] = {}

    def see(self, query: str, stage: int, done: int, known: int) -> None:
        """A check of a stage; numbers of stages are those of one query."""
        self._stages[query, stage] = (done, known)

    def finish_others(self, query: str, active: Iterable[int]) -> None:
        """Stages of a query that are not active any more have ended: all that was known of them is
        done.
        """
        still = set(active)
        for key, (_, known) in self._stages.items():
            if key[0] == query and key[1] not in still:
                self._stages[key] = (known, known)

    def count(self, running: int) -> TaskCount:
        """All together."""
        return TaskCount(
            sum(done for done, _ in self._stages.values()),
            sum(known for _, known in self._stages.values()),
            running,
        )


class Progress:
    """Shows the progress of a session's queries while it is entered.

    `show`: None for whether a person may be watching.

        with Progress(spark, "reconcile"):
            findings = frame.collect()

    Not for two at once.
    """

    def __init__(
        self,
        spark: SparkSession,
        title: str,
        *,
        show: bool | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self._spark = spark
        self._title = title
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._show = self._terminal if show is None else show
        self._counts = StageCounts()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._count = TaskCount(0, 0, 0)
        self._shown = ""
        self._drawn = 0
        self._reported_at = time.monotonic()

    def __enter__(self) -> Self:
        if not self._show:
            return self
        poll = self._poll_stages
        if is_connect(self._spark):
            self._spark.registerProgressHandler(cast("ProgressHandler", self._progress_line))
            poll = self._draw
        self._thread = threading.Thread(
            target=self._again_and_again, args=(poll,), name="spark-progress", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._show:
            return
        self._ended.set()
        if self._thread is not None:
            self._thread.join(2 * CHECK_S)
        if is_connect(self._spark):
            self._spark.removeProgressHandler(cast("ProgressHandler", self._progress_line))
        self._erase()

    def _progress_line(
        self,
        stages: Iterable[_Stage] | None,
        inflight_tasks: int,
        operation_id: str | None,
        done: bool,  # noqa: FBT001 - Connect's
    ) -> None:
        """Connect's handler: called by keyword, with all stages of the query so far."""
        for stage in stages or ():
            self._counts.see(
                operation_id or "", stage.stage_id, stage.num_completed_tasks, stage.num_tasks
            )
        self._count = self._counts.count(0 if done else inflight_tasks)
        self._draw()

    def _again_and_again(self, poll: Callable[[], None]) -> None:
        while not self._ended.wait(CHECK_S):
            try:
                poll()
            except Exception:  # noqa: BLE001
                # A session that is stopped meanwhile, however py4j says so.
                return

    def _poll_stages(self) -> None:
        # One of the two uses of a SparkContext (the other: `session`): classic sessions report
        # their tasks nowhere else, and nothing depends on it.
        tracker = self._spark.sparkContext.statusTracker()
        active = tracker.getActiveStageIds()
        running = 0
        for number in active:
            stage = tracker.getStageInfo(number)
            if stage is not None:
                self._counts.see("", number, stage.numCompletedTasks, stage.numTasks)
                running += stage.numActiveTasks
        self._counts.finish_others("", active)
        self._count = self._counts.count(running)
        self._draw()

    def _line(self) -> str:
        count, waits = self._count, waited_for()
        if waits and not count.running:
            return f"{self._title}: {waits}"
        if not count.known:
            return ""
        running = f", {count.running} running" if count.running else ""
        return f"{self._title}: {count.done:,} of {count.known:,} tasks{running}"

    def _draw(self) -> None:
        line = self._line()
        if self._ended.is_set() or not line or line == self._shown:
            return
        self._shown = line
        if self._terminal:
            self._write("\r" + line.ljust(self._drawn))
            self._drawn = len(line)
        elif time.monotonic() >= self._reported_at + LINE_EVERY_S:
            self._reported_at = time.monotonic()
            self._write(line + "\n")

    def _erase(self) -> None:
        if self._drawn:
            self._write("\r" + " " * self._drawn + "\r")
            self._drawn = 0

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._show = False  # its reader has closed it
