"""Kill points: at which system calls a child is killed or refused, and what becomes of each process
run of a store.

Which kinds of ends a store meets comes from a deck that is shuffled by the seed, so that every kind
has its turn. Exact system calls are made to fail by `strace`. Rules of this file:

- a system call is counted in each thread by itself: the store works in several threads, so "the
  third rename" is that of one thread, not of whichever came first;
- a killed call never happened: it is killed where it enters the system.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

PROBE_S: Final = 20


class MissingToolError(RuntimeError):
    """A program that exact kills need is not there, or may not do its work here."""


@dataclass(frozen=True, slots=True)
class SystemCall:
    """A kind of system call.

    Its names differ between machines and libraries; those unknown here are passed over.
    """

    name: str
    names: str
    often: int
    """How many of them a busy writer thread makes in one process run, about."""
    errors: Sequence[str] = ()
    """How it may fail."""


POINTS: Final[Mapping[str, SystemCall]] = {
    point.name: point
    for point in (
        SystemCall("write", "?pwritev,?pwritev2", 60, ("ENOSPC", "EIO")),
        SystemCall("sync", "fdatasync", 60, ("EIO",)),
        SystemCall("sync-directory", "fsync", 20, ("EIO",)),
        # Small groups of the log: the loop has the kernel sync them, and collects what is synced.
        SystemCall("submit", "?io_submit", 40, ("EAGAIN",)),
        SystemCall("collect", "?io_getevents", 40),
        SystemCall("rename", "?rename,?renameat,?renameat2", 5, ("EIO",)),
        SystemCall("link", "?link,?linkat", 10, ("ENOSPC",)),
        SystemCall("unlink", "?unlink,?unlinkat", 12, ("EIO",)),
        # A writer thread reports to the loop that something is durable: no caller was notified of
        # it yet.
        SystemCall("report", "?sendto,?send", 50),
    )
}
"""By name."""

Kind = Literal["random", "call", "error", "takeover", "race", "close"]
DECK: Final[Sequence[Kind]] = (
    *("random",) * 3,
    *("call",) * 6,
    "error",
    *("takeover",) * 2,
    "race",
    "close",
)
"""random: SIGKILL at any instant; call: SIGKILL at a system call; error: system calls fail, then it
closes. takeover: stopped, overtaken, woken, killed; race: the same, of one that is still about to
open; close: a clean end.
"""
OWNERS: Final[Sequence[Kind]] = ("takeover", "race")
"""Kinds with two owners."""


@dataclass(frozen=True, slots=True)
class Kill:
    """What becomes of one process run."""

    kind: Kind
    seed: str
    operations: int
    point: str = ""
    """Of a call or an error: name of the system call."""
    nth: int = 0
    """In each thread."""
    error: str = ""
    lasting: bool = False
    """The error comes every time from the nth on: a full or broken disk."""
    lines: int = 0
    """Of the others: after so many lines of its report,"""
    moment_s: float = 0.0
    """and so much time."""
    back_after: int = 0
    """Of a takeover: the first owner comes back after so many lines of the second."""
    together_s: float = 0.0
    """Of a takeover: how long both are left alone once both are open, at most."""
    cache: Literal["", "removed", "damaged"] = ""
    """What is done to the cache before this process run: it is thrown away in any case."""
    deep: bool = False
    """The files are checked thoroughly before this process run."""

    @property
    def name(self) -> str:
        """Under which it is counted."""
        return f"{self.kind} {self.point} {self.error}".rstrip()


def draw_kills(seed: str, *, exact: bool = True, deck: Sequence[Kind] = DECK) -> Iterator[Kill]:
    """The process runs of one store, without end. Without `exact` no process run needs `strace`."""
    rng = random.Random(f"{seed}/kills")
    kinds = [kind for kind in deck if exact or kind not in {"call", "error"}]
    points: list[SystemCall] = []
    while True:
        rng.shuffle(kinds)
        for kind in kinds:
            if not points:
                points = rng.sample(list(POINTS.values()), len(POINTS))
            yield _draw(rng, kind, points)


def _draw(rng: random.Random, kind: Kind, points: list[SystemCall]) -> Kill:
    point, nth, error = None, 0, ""
    if kind == "call":
        point = points.pop()
        nth = _few_or_many(rng, point.often)
    elif kind == "error":
        point = rng.choice([each for each in POINTS.values() if each.errors])
        nth, error = _few_or_many(rng, point.often // 2), rng.choice(list(point.errors))
    return Kill(
        kind=kind,
        seed=f"{rng.getrandbits(48):x}",
        operations=_operations(rng, kind),
        point=point.name if point else "",
        nth=nth,
        error=error,
        lasting=rng.random() < 0.3,
        lines=rng.choice(
            [0, 3, 6, 20, rng.randrange(1000), rng.randrange(1000), rng.randrange(300)]
        ),
        moment_s=rng.choice([0.0, rng.uniform(0.0, 0.05)]),
        back_after=rng.choice([0, 1, 2, 2, 2, 5, rng.randrange(100)]),
        together_s=rng.choice([0.02, 0.1, 5.0, 5.0]),
        cache=rng.choice(["", "", "", "", "removed", "damaged"]),
        deep=rng.random() < 0.15,
    )


def _operations(rng: random.Random, kind: Kind) -> int:
    """Calls of its clients, about."""
    if kind in OWNERS:
        return rng.randrange(1500, 2500)
    return rng.choice([200, 400, 600] if kind == "call" else [0, 40, 200, 400, 400, 600])


def _few_or_many(rng: random.Random, most: int) -> int:
    """Small numbers are the recovery, large ones the work: both often."""
    return rng.randint(1, 4) if rng.random() < 0.35 else rng.randint(1, max(1, most))


def tracer(kill: Kill, output: Path) -> list[str]:
    """The command before that of the child: kills it, or fails its calls, as it was drawn.

    Empty if not needed.

    It writes into `output` what it did; `was_injected` reads that.
    """
    if kill.kind not in {"call", "error"}:
        return []
    names = POINTS[kill.point].names
    effect = "signal=SIGKILL" if kill.kind == "call" else f"error={kill.error}"
    when = f"{kill.nth}+" if kill.lasting and kill.kind == "error" else str(kill.nth)
    return _strace(names, f"{effect}:when={when}", str(output))


def was_injected(output: Path) -> bool:
    """True if a tracer that wrote this has made a call fail."""
    return b"(INJECTED)" in output.read_bytes() if output.exists() else False


@functools.cache
def require_exact_kills() -> None:
    """Raise MissingToolError if calls of children cannot be made to fail here."""
    if shutil.which("strace") is None:
        raise MissingToolError(
            "strace is not installed: apt-get install strace (or ask for kills without exact calls)"
        )
    try:
        probe = subprocess.run(  # noqa: S603 - a list of arguments, none from outside
            [*_strace("exit_group", "signal=SIGKILL:when=1"), "true"],
            capture_output=True,
            timeout=PROBE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MissingToolError(f"strace has not run `true` within {PROBE_S} s") from None
    if probe.returncode != -signal.SIGKILL:
        said = probe.stderr.decode(errors="replace").strip()
        raise MissingToolError(
            "strace cannot kill here (in a container ptrace must be allowed, "
            f"--cap-add=SYS_PTRACE): {said}"
        )


def _strace(names: str, injected: str, output: str = os.devnull) -> list[str]:
    """Follows all threads, notes the named calls alone (--seccomp-bpf would be faster, and sends no
    signals).
    """
    options = ["-f", "-qqq", "-o", output, "-e", "signal=none"]
    return ["strace", *options, "-e", f"trace={names}", "-e", f"inject={names}:{injected}"]
