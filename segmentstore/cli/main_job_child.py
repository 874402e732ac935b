"""The processes of the main job: one that ingests (and is killed once), one that reads everything
back.

Each is run as `python -m segmentstore.cli.main_job_child ingest|compare STORE PLAN` and reports
what happens as JSON lines on stdout, each with an `event`. PLAN is a JSON file: a list of [path,
segment].
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

import segmentstore
from segmentstore.cli import output
from segmentstore.cli.exit_codes import ExitCode, sentence
from segmentstore.cli.ingest import IngestProgress, ingest
from segmentstore.cli.ingest_plan import PlannedFile
from segmentstore.cli.store_numbers import StoreNumbers
from segmentstore.contracts import event_loops
from segmentstore.contracts.errors import SegmentExistsError, SegmentStoreError
from segmentstore.contracts.runtime import thread_executor

if TYPE_CHECKING:
    from segmentstore import SegmentStore

_FOLLOWED = 4
"""Files whose segments are followed while they grow: the largest."""
_EVENTS = 200
"""Progress events in a whole ingest, about."""
_COMPARERS = 8

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def read_plan(path: Path) -> list[PlannedFile]:
    """The plan file as planned files."""
    return [
        PlannedFile(Path(source), segment, Path(source).stat().st_size)
        for source, segment in json.loads(path.read_text(encoding="utf-8"))
    ]


def send_event(event: str, **values: object) -> None:
    """One event to the parent, now."""
    sys.stdout.write(json.dumps({"event": event, **values}) + "\n")
    sys.stdout.flush()


@app.command(name="ingest")
def ingest_child(
    store: str,
    plan: Path,
    lines: Annotated[int, typer.Option(help="Lines in all, for the pace of the events.")],
    writers: Annotated[int, typer.Option()],
    until_killed: Annotated[
        bool, typer.Option(help="Do not end, and do not close the store.")
    ] = False,
) -> None:
    """Ingest, follow some segments meanwhile, then flush and checkpoint."""
    event_loops.run(_ingest(store, read_plan(plan), lines, writers, until_killed=until_killed))


async def _ingest(
    location: str, planned: list[PlannedFile], lines: int, writers: int, *, until_killed: bool
) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with segmentstore.open(location) as store:
        opened = StoreNumbers.of(store)
        send_event(
            "opened", seconds=loop.time() - began, operations_replayed=opened.operations_replayed
        )
        pace = _Pace(max(1, lines // _EVENTS), loop.time())
        largest = sorted(planned, key=lambda item: -item.size)[:_FOLLOWED]
        for item in largest:
            await _ensure_segment(store, item.segment)
        executor = thread_executor("follow", 1)
        try:
            async with asyncio.TaskGroup() as group:
                followed = [group.create_task(_follow(store, item, executor)) for item in largest]
                report = await ingest(store, planned, writers=writers, on_progress=pace)
        finally:
            executor.shutdown(wait=True)
        send_event(
            "ingested",
            **dataclasses.asdict(report),
            followed_bytes=sum(task.result() for task in followed),
            followed_segments=len(followed),
        )
        if until_killed:
            await asyncio.Event().wait()
        before = StoreNumbers.of(store)
        began = loop.time()
        await store.flush()
        await store.checkpoint()
        after = StoreNumbers.of(store)
        send_event(
            "flushed",
            seconds=loop.time() - began,
            log_bytes_before=before.log_bytes,
            log_bytes_after=after.log_bytes,
            objects=after.tier2_objects,
            object_bytes=after.tier2_bytes,
        )


class _Pace:
    """Passes on every so-many-th line of progress."""

    def __init__(self, step: int, began: float) -> None:
        self._step = step
        self._began = began
        self._reported = -step

    def __call__(self, progress: IngestProgress) -> None:
        if progress.lines >= self._reported + self._step:
            self._reported = progress.lines
            seconds = asyncio.get_running_loop().time() - self._began
            send_event(
                "progress", lines=progress.lines, seconds=seconds, before=progress.lines_before
            )


async def _ensure_segment(store: SegmentStore, name: str) -> None:
    try:
        await store.create_segment(name)
    except SegmentExistsError:
        pass  # an earlier run made it


async def _follow(store: SegmentStore, planned: PlannedFile, executor: Executor) -> int:
    """Read a segment as it grows, up to the size of its file; the bytes must be the file's.

    Returns how many.
    """
    if not planned.size:
        return 0
    with planned.path.open("rb") as handle:
        position = 0
        async for chunk in store.reader(planned.segment, offset=0, follow=True):
            await _require_equal(handle, planned, position, chunk, executor)
            position += len(chunk)
            if position >= planned.size:
                break
    return position


class BytesDifferError(Exception):
    """A segment does not hold what its file holds."""


async def _require_equal(
    handle: BinaryIO, planned: PlannedFile, position: int, chunk: bytes, executor: Executor
) -> None:
    expected = await asyncio.get_running_loop().run_in_executor(executor, handle.read, len(chunk))
    if bytes(chunk) != expected:
        raise BytesDifferError(
            f"segment {planned.segment!r} differs from {planned.path} between {position} "
            f"and {position + len(chunk)}"
        )


@app.command(name="compare")
def compare_child(store: str, plan: Path) -> None:
    """Read every segment back and compare it with its file."""
    event_loops.run(_compare(store, read_plan(plan)))


async def _compare(location: str, planned: Sequence[PlannedFile]) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    found = _Found()
    async with segmentstore.open(location) as store:
        names = {info.name async for info in store.list_segments()}
        found.different += sorted(names - {item.segment for item in planned})
        executor = thread_executor("compare", 2)
        waiting = iter(planned)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_COMPARERS):
                    group.create_task(_compare_files(store, waiting, executor, found))
        finally:
            executor.shutdown(wait=True)
        fetched = StoreNumbers.of(store).tier2_bytes_read
    send_event(
        "compared",
        seconds=loop.time() - began,
        files=found.files,
        bytes=found.bytes,
        different=found.different,
        not_in_tier2=found.not_in_tier2,
        fetched_from_tier2=fetched,
    )


@dataclasses.dataclass(slots=True)
class _Found:
    files: int = 0
    bytes: int = 0
    different: list[str] = dataclasses.field(default_factory=list)
    not_in_tier2: list[str] = dataclasses.field(default_factory=list)


async def _compare_files(
    store: SegmentStore, waiting: Iterator[PlannedFile], executor: Executor, found: _Found
) -> None:
    for planned in waiting:
        info = await store.get_info(planned.segment)
        if info.storage_length != info.length:
            found.not_in_tier2.append(planned.segment)
        position = 0
        try:
            with planned.path.open("rb") as handle:
                async for chunk in store.reader(planned.segment, offset=0, follow=False):
                    await _require_equal(handle, planned, position, chunk, executor)
                    position += len(chunk)
                await _require_equal(handle, planned, position, b"", executor)
                if handle.read(1):
                    found.different.append(planned.segment)
        except BytesDifferError:
            found.different.append(planned.segment)
        found.files += 1
        found.bytes += position


def main() -> None:
    """Run one child; an expected error is one sentence on stderr, as from the command line."""
    try:
        app()
    except (SegmentStoreError, BytesDifferError) as error:
        output.print_error(sentence(error))
        sys.exit(ExitCode.REFUSED)
    except BaseExceptionGroup as group:
        expected, rest = group.split((SegmentStoreError, BytesDifferError))
        if expected is None or rest is not None:
            raise
        output.print_error(sentence(first_of(expected)))
        sys.exit(ExitCode.REFUSED)


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error in a group of groups."""
    error = group.exceptions[0]
    return first_of(error) if isinstance(error, BaseExceptionGroup) else error


if __name__ == "__main__":
    main()
