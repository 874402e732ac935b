"""`make spark-demo`: a small store, and everything that the Spark jobs do with one, on this
machine.

    real text in many small chunks -> catalog -> reconcile: nothing found -> read by the data source
    -> compact, as a plan, then really -> reconcile: nothing found -> read again: the same -> a
    copy, spoiled -> reconcile finds just that

Each step runs the command that a person would type, in this process: one Spark session serves them
all.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import typer

import segmentstore
from segmentstore.cli import output, spark_command
from segmentstore.cli.exit_codes import CommandError, exit_code_for, sentence
from segmentstore.cli.ingest_plan import PlannedFile, plan_files
from segmentstore.cli.main_job import default_input
from segmentstore.contracts.byte_sizes import format_size
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.extras import require_extra
from segmentstore.contracts.runtime import Runtime
from tier2.object_names import object_name, parse_object_name
from tier2.unique_ids import STORE_TAG_BYTES, new_tagged_id

T = TypeVar("T")

FOLDER = Path("var/spark-demo")
FILES_MAX = 600
"""Of the default input; what is named is taken whole."""
ROUNDS = 8
"""Each file is appended in so many pieces, and all is flushed after each: so many small chunks of a
segment.
"""
CONTAINERS = 4
"""A group of a compaction is of one container: so many tasks have something to do."""
ORPHAN_AGE_S = 4 * 24 * 3600
"""Older than reconciliation's three days, or it would be taken for an upload under way."""


class Counted(NamedTuple):
    """What came out of the data source."""

    lines: int
    bytes: int
    """Of the lines, without what ends them."""

    def __str__(self) -> str:
        return f"{self.lines:,} lines of {format_size(self.bytes)}"


class DemoStep(NamedTuple):
    """One step as the table shows it."""

    what: str
    seconds: float
    result: str


class DemoFailedError(CommandError):
    """A step of the demo did not come out as it must."""


class SparkDemo:
    """One run, step by step."""

    def __init__(self, planned: list[PlannedFile], folder: Path) -> None:
        self._planned = planned
        self._store = folder / "store"
        self._spoiled = folder / "spoiled"
        self._source = Counted(0, 0)
        """What was put in."""
        self.steps: list[DemoStep] = []

    def run(self) -> None:
        """All steps; what does not come out as it must raises DemoFailedError."""
        for folder in (self._store, self._spoiled):
            shutil.rmtree(folder, ignore_errors=True)
        self._store.parent.mkdir(parents=True, exist_ok=True)
        self._step("make a store", self._make)
        self._step("export the catalog", lambda: self._command(0, "catalog", "export", self._store))
        self._step("reconcile", lambda: self._command(0, "spark", "reconcile", self._store))
        before = self._step("read all lines by the data source", self._count)
        shutil.copytree(self._store, self._spoiled)
        compact = ("spark", "compact", self._store, "--older-than", "0")
        self._step("compact: the plan", lambda: self._command(0, *compact, "--dry-run"))
        self._step("compact", lambda: self._command(0, *compact))
        self._step("reconcile again", lambda: self._command(0, "spark", "reconcile", self._store))
        after = self._step("read all lines again", self._count)
        if after != before:
            raise DemoFailedError(f"{before} were read before the compaction, {after} after it")
        self._step("spoil a copy", self._spoil)
        self._step(
            "reconcile the copy: 1 is findings",
            lambda: self._command(1, "spark", "reconcile", self._spoiled),
        )

    def _step(self, what: str, work: Callable[[], T]) -> T:
        began = time.monotonic()
        result = work()
        self.steps.append(DemoStep(what, time.monotonic() - began, str(result)))
        return result

    def _command(self, expected: int, *words: object) -> str:
        """Run a command of `segmentstore`; how it ended.

        Raises DemoFailedError unless as expected.
        """
        told = [str(word) for word in words]
        output.out().print(f"\n$ segmentstore {shlex.join(told)}", highlight=False)
        code = spark_command.run_verb(told[1:]) if told[0] == "spark" else _run(told)
        if code != expected:
            raise DemoFailedError(
                f"`segmentstore {shlex.join(told)}` ended with {code}, not {expected}"
            )
        return f"exit code {code}"

    def _make(self) -> str:
        self._source = asyncio.run(self._ingest())
        return (
            f"{len(self._planned):,} segments, {self._source.lines:,} lines, in {ROUNDS} "
            "pieces each"
        )

    async def _ingest(self) -> Counted:
        # What is shown here is another's work: the engine's own consolidation would leave it
        # nothing to do.
        async with segmentstore.open(
            str(self._store), containers=CONTAINERS, consolidation=False
        ) as store:
            contents = [(item.segment, item.path.read_bytes()) for item in self._planned]
            for name, _ in contents:
                await store.create_segment(name)
            for number in range(ROUNDS):
                await asyncio.gather(
                    *(store.append(name, _piece(data, number)) for name, data in contents)
                )
                await store.flush()
            # A last line without newline is one once nothing can follow it.
            await asyncio.gather(*(store.seal(name) for name, _ in contents))
        return Counted(
            lines=sum(_lines(data) for _, data in contents),
            bytes=sum(len(data) - data.count(b"\n") for _, data in contents),
        )

    def _count(self) -> Counted:
        """All lines of all segments, by the data source of the jobs' own session."""
        from tier2.spark.commands import choose_master  # noqa: PLC0415
        from tier2.spark.common.session import spark_session  # noqa: PLC0415
        from tier2.spark.data_source import register  # noqa: PLC0415

        choose_master(None)
        spark = spark_session("segmentstore demo")
        register(spark)
        options = {"tier2": _tier2(self._store), "pattern": "*", "format": "lines"}
        output.out().print(
            f'\n>>> spark.read.format("segmentstore").options(**{options!r}).load()',
            highlight=False,
        )
        frame = spark.read.format("segmentstore").options(**options).load()
        [row] = frame.selectExpr("count(*) as lines", "sum(length) as bytes").collect()
        counted = Counted(row["lines"], row["bytes"])
        if counted != self._source:
            raise DemoFailedError(f"the source has {self._source}, the data source gave {counted}")
        return counted

    def _spoil(self) -> str:
        """Remove one object from the copy, and put an orphan there."""
        root = self._spoiled / "tier2"
        names = sorted(
            name
            for path in root.rglob("*")
            if path.is_file()
            and parse_object_name(name := path.relative_to(root).as_posix()) is not None
        )
        first = parse_object_name(names[0])
        assert first is not None, names[0]
        unique_id = new_tagged_id(first.unique_id[:STORE_TAG_BYTES], Runtime().random)
        orphan = root / object_name(first.container_id, first.epoch, "flush", unique_id)
        orphan.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / names[0], orphan)
        old = time.time() - ORPHAN_AGE_S
        os.utime(orphan, (old, old))
        (root / names[-1]).unlink()
        return "one object removed, one planted"


def _piece(data: bytes, number: int) -> bytes:
    return data[len(data) * number // ROUNDS : len(data) * (number + 1) // ROUNDS]


def _lines(data: bytes) -> int:
    return data.count(b"\n") + (bool(data) and not data.endswith(b"\n"))


def _tier2(store: Path) -> str:
    return (store / "tier2").absolute().as_uri()


def _run(words: list[str]) -> int:
    # The whole command line, which no other step needs.
    from segmentstore.cli.app import run  # noqa: PLC0415

    try:
        run(words)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    return 0


def main(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files and directories; the standard library if none."),
    ] = None,
    folder: Annotated[
        Path, typer.Option(help="Where the stores are made; what is there is removed.")
    ] = FOLDER,
) -> None:
    """Show the Spark jobs on a small store; ends with 1 if anything does not come out as it
    must.
    """
    began = time.monotonic()
    try:
        require_extra("spark", "the demonstration")
        demo = SparkDemo(plan_files(files) if files else default_input()[:FILES_MAX], folder)
        try:
            demo.run()
        finally:
            spark_command.end_session()
            rows = [(step.what, f"{step.seconds:.1f} s", step.result) for step in demo.steps]
            output.out().print(output.table("Spark demo", ("step", "took", "result"), rows))
    except SegmentStoreError as error:
        output.print_error(sentence(error))
        raise typer.Exit(exit_code_for(error)) from None
    output.out().print(
        f"all of it held, in {time.monotonic() - began:.0f} s; the stores are in {folder}"
    )


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
