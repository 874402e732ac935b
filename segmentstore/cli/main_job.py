"""The main job, `make run`: real text through the whole engine, with a SIGKILL in the middle.

    ingest by many writers, followed by readers -> SIGKILL at 40 % of the lines -> recovery, the
    rest, exactly once -> flush, checkpoint -> cache removed -> a fresh process reads all back from
    Tier 2 -> bytes compared

This process never opens the store: everything happens in children, as it would to a service.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from segmentstore.cli import output
from segmentstore.cli.exit_codes import CommandError, ExitCode, exit_code_for, sentence
from segmentstore.cli.ingest_plan import PlannedFile, plan_files
from segmentstore.cli.main_job_tier1 import MainJobTier1, Tier1Kind, main_job_tier1
from segmentstore.cli.stores import CACHE_FOLDER
from segmentstore.contracts.byte_sizes import format_size
from segmentstore.contracts.errors import SegmentStoreError

FOLDER = Path("var/run")
FILES_MAX = 2000
"""Of the default input; what `FILES` names is taken whole."""
KILL_AT = 0.4
"""Share of the lines that must be acknowledged before the ingesting process is killed."""
WRITERS = 64
_IN_FOLDER = MainJobTier1({}, None)
_NOT_TEXT_OF_OURS = ("site-packages", "dist-packages", "__pycache__")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class ChildFailedError(CommandError):
    """A child process ended as it should not; what it said is on stderr."""


def default_input() -> list[PlannedFile]:
    """The source files of this Python's standard library, installed packages left out, at most
    FILES_MAX.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    return plan_files([folder], prefix="python/", suffix=".py", without=_NOT_TEXT_OF_OURS)[
        :FILES_MAX
    ]


def count_lines(planned: list[PlannedFile]) -> int:
    """Lines of all files; a last one without newline counts."""
    total = 0
    for item in planned:
        data = item.path.read_bytes()
        total += data.count(b"\n") + (bool(data) and not data.endswith(b"\n"))
    return total


@dataclasses.dataclass(slots=True)
class MainJobOutcome:
    """What the main job found, in the order it found it."""

    files: int
    lines: int
    bytes: int
    killed_after_lines: int = 0
    """Acknowledged when the process was killed, as far as it had reported."""
    recovered_lines: int = 0
    """In the store after recovery: at least those."""
    appends_per_second: float = 0.0
    followed_bytes: int = 0
    recovery_seconds: float = 0.0
    operations_replayed: int = 0
    tier2_objects: int = 0
    tier2_bytes: int = 0
    log_bytes_before: int = 0
    log_bytes_after: int = 0
    read_back_seconds: float = 0.0
    fetched_from_tier2: int = 0
    tier1: str | None = None
    """Where the log was, if not in the store's folder."""
    failures: list[str] = dataclasses.field(default_factory=list)

    @property
    def all_bytes_equal(self) -> bool:
        """Everything held."""
        return not self.failures


class MainJobChild:
    """One child process and the events it reports."""

    def __init__(self, *arguments: str, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "segmentstore.cli.main_job_child", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def events(self) -> Iterator[dict[str, Any]]:
        """What the child reports, until it ends or is killed."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # A line cut by the kill has no newline: it was never written.
            if line.endswith("\n"):
                yield json.loads(line)

    def kill(self) -> None:
        """SIGKILL: no handler, no flush, no farewell."""
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process.kill()
        self._process.wait()

    def require_success(self) -> None:
        """Wait for the end; raise ChildFailedError if it was not a good one."""
        code = self._process.wait()
        if code:
            raise ChildFailedError(f"a child process of the main job ended with {code}")


class MainJob:
    """One run, step by step."""

    def __init__(
        self,
        planned: list[PlannedFile],
        folder: Path,
        writers: int,
        say: Callable[[str], None],
        tier1: MainJobTier1 = _IN_FOLDER,
    ) -> None:
        self._planned = planned
        self._store = folder / "store"
        self._plan = folder / "plan.json"
        self._writers = writers
        self._say = say
        self._environment = tier1.environment
        self.outcome = MainJobOutcome(
            len(planned), count_lines(planned), sum(item.size for item in planned), tier1=tier1.said
        )
        self._seconds = 0.0

    def run(self) -> MainJobOutcome:
        """All steps.

        What differs is in the outcome's failures; a child that fails raises ChildFailedError.
        """
        shutil.rmtree(self._store, ignore_errors=True)
        self._store.parent.mkdir(parents=True, exist_ok=True)
        plan = [(str(item.path.resolve()), item.segment) for item in self._planned]
        self._plan.write_text(json.dumps(plan), encoding="utf-8")
        self._ingest_until_killed()
        self._recover_and_finish()
        shutil.rmtree(self._store / CACHE_FOLDER, ignore_errors=True)
        self._read_back()
        return self.outcome

    def _child(self, command: str, *options: str) -> MainJobChild:
        return MainJobChild(
            command, str(self._store), str(self._plan), *options, environment=self._environment
        )

    def _ingest_options(self) -> tuple[str, ...]:
        return ("--lines", str(self.outcome.lines), "--writers", str(self._writers))

    def _ingest_until_killed(self) -> None:
        goal = int(self.outcome.lines * KILL_AT)
        self._say(
            f"ingesting {self.outcome.files:,} files, {self.outcome.lines:,} lines, "
            f"{self._writers} at a time"
        )
        killed = False
        with self._child("ingest", *self._ingest_options(), "--until-killed") as child:
            for event in child.events():
                if event["event"] == "progress":
                    self.outcome.killed_after_lines = event["lines"]
                    self._seconds = event["seconds"]
                if not killed and (
                    event["event"] == "ingested" or self.outcome.killed_after_lines >= max(goal, 1)
                ):
                    child.kill()
                    killed = True
        if not killed:
            raise ChildFailedError("the ingesting process ended by itself, before it was killed")
        self._say(
            f"killed it (SIGKILL) after {self.outcome.killed_after_lines:,} acknowledged lines"
        )

    def _recover_and_finish(self) -> None:
        outcome = self.outcome
        with self._child("ingest", *self._ingest_options()) as child:
            for event in child.events():
                if event["event"] == "opened":
                    outcome.recovery_seconds = event["seconds"]
                    outcome.operations_replayed = event["operations_replayed"]
                    self._say(
                        f"recovered {outcome.operations_replayed:,} operations in "
                        f"{event['seconds']:.2f} s"
                    )
                elif event["event"] == "ingested":
                    self._finished(event)
                elif event["event"] == "flushed":
                    outcome.tier2_objects = event["objects"]
                    outcome.tier2_bytes = event["object_bytes"]
                    outcome.log_bytes_before = event["log_bytes_before"]
                    outcome.log_bytes_after = event["log_bytes_after"]
                    self._say(
                        f"flushed to Tier 2 and truncated the log in {event['seconds']:.2f} s"
                    )
            child.require_success()

    def _finished(self, event: dict[str, Any]) -> None:
        outcome = self.outcome
        outcome.recovered_lines = event["lines_before"]
        outcome.followed_bytes = event["followed_bytes"]
        lines = outcome.killed_after_lines + event["lines"]
        outcome.appends_per_second = lines / max(self._seconds + event["seconds"], 1e-9)
        self._say(
            f"went on behind {outcome.recovered_lines:,} recovered lines and finished "
            f"the other {event['lines']:,}"
        )
        if outcome.recovered_lines < outcome.killed_after_lines:
            outcome.failures.append(
                f"{outcome.killed_after_lines - outcome.recovered_lines} acknowledged "
                "lines were lost by the kill"
            )
        if event["lines_before"] + event["lines"] != outcome.lines:
            outcome.failures.append(
                f"{event['lines_before']} + {event['lines']} lines are in the store, the "
                f"files have {outcome.lines}"
            )

    def _read_back(self) -> None:
        outcome = self.outcome
        told = False
        with self._child("compare") as child:
            for event in child.events():
                told = True
                outcome.read_back_seconds = event["seconds"]
                outcome.fetched_from_tier2 = event["fetched_from_tier2"]
                outcome.failures += [f"segment {name} differs" for name in event["different"]]
                outcome.failures += [
                    f"segment {name} is not wholly in Tier 2" for name in event["not_in_tier2"]
                ]
                if not event["different"] and (event["files"], event["bytes"]) != (
                    outcome.files,
                    outcome.bytes,
                ):
                    outcome.failures.append(
                        f"read back {event['files']} files of {event['bytes']} bytes"
                    )
                if not event["different"] and event["fetched_from_tier2"] < outcome.bytes:
                    outcome.failures.append(
                        f"only {event['fetched_from_tier2']} bytes were read from Tier 2"
                    )
            child.require_success()
        if not told:
            raise ChildFailedError("the comparing process printed nothing")
        self._say(
            f"read {format_size(outcome.bytes)} back from Tier 2 in "
            f"{outcome.read_back_seconds:.2f} s"
        )


@app.command()
def main(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files and directories; the standard library if none."),
    ] = None,
    folder: Annotated[
        Path, typer.Option(help="Where the store is made; what is there is removed.")
    ] = FOLDER,
    writers: Annotated[int, typer.Option(min=1, help="Files written at once.")] = WRITERS,
    tier1: Annotated[
        Tier1Kind,
        typer.Option(
            help="Where the log is: in the store's folder, or on a local BookKeeper cluster."
        ),
    ] = Tier1Kind.FILE,
    as_json: output.JsonOption = False,
) -> None:
    """Run the main job; ends with 1 if a byte differs or a line is missing."""
    say = _silent if as_json else _say
    try:
        planned = plan_files(files) if files else default_input()
        if not files:
            say(
                f"input: the .py files below {sysconfig.get_paths()['stdlib']}, without "
                "installed packages"
            )
        with main_job_tier1(tier1, folder / "cluster", say) as where:
            outcome = MainJob(planned, folder, writers, say, where).run()
    except SegmentStoreError as error:
        output.print_error(sentence(error))
        raise typer.Exit(exit_code_for(error)) from None
    if as_json:
        output.print_json(
            {**dataclasses.asdict(outcome), "all_bytes_equal": outcome.all_bytes_equal}
        )
    else:
        output.out().print(output.pairs("main job", _shown(outcome)))
        for failure in outcome.failures:
            output.print_error(failure)
    if not outcome.all_bytes_equal:
        raise typer.Exit(ExitCode.REFUSED)


def _say(text: str) -> None:
    output.out().print(text)


def _silent(_text: str) -> None:
    pass


def _shown(outcome: MainJobOutcome) -> dict[str, object]:
    return {
        **({"Tier 1": outcome.tier1} if outcome.tier1 is not None else {}),
        "files": outcome.files,
        "lines": outcome.lines,
        "bytes": format_size(outcome.bytes),
        "acknowledged appends/s": round(outcome.appends_per_second),
        "killed after / recovered lines": f"{outcome.killed_after_lines:,} / "
        f"{outcome.recovered_lines:,}",
        "read by followers": format_size(outcome.followed_bytes),
        "recovery": f"{outcome.recovery_seconds:.2f} s, {outcome.operations_replayed:,} operations "
        "replayed",
        "in Tier 2": f"{outcome.tier2_objects:,} objects, {format_size(outcome.tier2_bytes)}",
        "log before truncation": format_size(outcome.log_bytes_before),
        "log after truncation": format_size(outcome.log_bytes_after),
        "read back from Tier 2": f"{outcome.read_back_seconds:.2f} s",
        "all bytes equal": outcome.all_bytes_equal,
    }


if __name__ == "__main__":
    app()
