"""Archive kills: stores whose logs are archived are killed again and again, and requests to the
archive are cut. Then they are read whole from it, and restored as of moments that clients saw.

    python -m recovery.harness.kills.archive_kills --cycles 200 --points 50

What `make archive-kills` runs: each kind of log with each S3 server, an equal share of cycles and
points for each. Kills, takeovers and checkers are those of every kill round. Ends with 1 if a rule
was broken; the folder is kept then. Rules of this file:

- a process that is killed reaches the archive through a proxy, which holds one request of an upload
  back: so kills fall between any two steps of one;
- what is checked at the end is read from the server itself, when one owner has archived all.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from durablelog.bookkeeper.gateway.gateway_settings import TOKEN_VARIABLE
from durablelog.bookkeeper.gateway.shared_gateway import acquire_own
from recovery.harness.history import CallOutcome, History
from recovery.harness.kills.archive_audit import ArchiveSeen, audit_archive
from recovery.harness.kills.bookkeeper_round import BookKeeperRound
from recovery.harness.kills.log_points import MOMENTS, POINTS
from recovery.harness.kills.orders import shared_clock_ns
from recovery.harness.kills.past_points import check_point, draw_points
from recovery.harness.kills.points import Kind, MissingToolError, require_exact_kills
from recovery.harness.kills.round import KillRound
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from recovery.harness.services.fault_proxy import FaultProxy
from recovery.harness.services.fault_rules import Rule, Stall
from recovery.harness.services.s3_servers import S3Proxy, S3Server, VersityGateway, credentials
from recovery.harness.services.server import HOST
from tier2.request_statistics import Operation

SETTINGS: Final[Mapping[str, Any]] = {
    "containers": 1,
    "frame_bytes_max": 1000,
    "log_file_bytes": 16 * 1024,
    "checkpoint_operations": 200,
    "checkpoint_bytes": 16 * 1024,
    "flush_bytes": 1000,
    "flush_age_s": 0.1,
    "object_bytes": 4000,
    "upload_bytes_max": 8000,
    "extent_bytes": 256,
    "deletion_lag_s": 0.0,
    "append_bytes_max": 8192,
    "mailbox_poll_interval_s": 0.0,
    "offload_after_s": 0.0,
    "archive_deletion_lag_s": 0.1,
}
"""A process run seals several parts, and what was archived leaves the log within it."""
LEDGERS: Final = "?ledger_bytes=16KiB"
PHASES: Final = 4
DECK: Final[Sequence[Kind]] = (
    *("random",) * 5,
    *("call",) * 3,
    "error",
    "takeover",
    "race",
    "close",
)
"""More kills at work than those of other rounds have: parts are sealed there."""
CUT_SHARE: Final = 0.7
"""Of the process runs have a request to the archive held back."""
HELD_BACK: Final[Sequence[tuple[Operation, bool]]] = (
    ("put", False),
    ("put", True),
    ("put", False),
    ("put", True),
    ("head", True),
    ("delete", False),
)
"""Requests, and whether the server has done it by then. A put is that of a part's entries, or of
its index; parts so small are not uploaded in pieces.
"""
KINDS: Final = ("work",) * 7 + ("die",) * 2 + ("takeover",)
"""Ends of owners on BookKeeper."""
_OPERATIONS: Final = 400
_RUN_S: Final = 240.0

Say = Callable[[str], None]


@dataclass(slots=True)
class ArchiveKillsResult:
    """What one store on one archive showed; `findings` is empty if no rule was broken."""

    name: str
    process_runs: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)
    """Requests that were held back when their process was killed."""
    calls: int = 0
    """Acknowledged."""
    moments: int = 0
    """Noted."""
    points: int = 0
    """Restored."""
    archive: ArchiveSeen = field(default_factory=ArchiveSeen)
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)

    def text(self) -> str:
        """For people."""
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(self.kills.items()))
        cut = ", ".join(f"{name} {count}" for name, count in sorted(self.cut.items()))
        lines = [
            f"{self.name}: {self.process_runs} process runs in {self.seconds:.0f} s ({kinds})",
            f"  {self.calls} calls acknowledged",
            f"  {self.archive.parts} parts archived, {self.archive.entries} entries",
            f"  {self.archive.archived_operations} operations of {self.archive.operations} in them",
            f"  requests to the archive cut: {cut or 'none'}",
            f"  {self.points} of {self.moments} moments restored",
        ]
        return "\n".join([*lines, *(f"  BROKEN: {each}" for each in self.findings)])


class UploadCuts:
    """The way of one store to its archive: through a proxy that holds requests back."""

    def __init__(self, server: S3Server, bucket: str, proxy: FaultProxy, seed: str) -> None:
        self._proxy = proxy
        self._rng = random.Random(f"{seed}/cuts")
        self._rule: Rule | None = None
        self._name = ""
        self.url = server.location(bucket).replace(str(server.port), str(proxy.port))
        self.cut: Counter[str] = Counter()

    def begin(self, *, cuts: bool = True) -> None:
        """No process of the store runs: forget what was held back, and draw for the next one."""
        self.end()
        if cuts and self._rng.random() < CUT_SHARE:
            operation, after_effect = self._rng.choice(HELD_BACK)
            self._name = f"{operation} {'after' if after_effect else 'before'}"
            self._rule = self._proxy.fault(
                Stall(after_effect), operation, skip=self._rng.randrange(5)
            )

    def end(self) -> None:
        """Nothing is held back from here on."""
        if self._rule is not None:
            if self._rule.taken:
                self.cut[self._name] += 1
            self._rule = None
        self._proxy.heal()


def kill_archiving(
    folder: Path,
    tier1: str,
    server: S3Server,
    seed: str,
    cycles: int,
    points: int,
) -> ArchiveKillsResult:
    """One store in an empty folder: `cycles` process runs, the checks, and `points` restores.

    Its log is in files (`tier1` is empty) or at a URL, its archive in a bucket of its own.

    The environment has the server's credentials, and the token of the gateway in `tier1`.
    """
    result = ArchiveKillsResult(f"{'BookKeeper' if tier1 else 'files'}, {server.name}")
    begun = shared_clock_ns()
    bucket = f"archive-{secrets.token_hex(6)}"
    server.make_bucket(bucket)
    with FaultProxy(HOST, server.port) as proxy:
        cuts = UploadCuts(server, bucket, proxy, seed)
        settings = {**SETTINGS, "archive": cuts.url}
        kill = _kill_on_bookkeeper if tier1 else _kill_on_files
        location, history = kill(folder, tier1, settings, seed, cycles, cuts, result)
        cuts.end()
        result.cut = cuts.cut
    result.process_runs = len(history.process_runs)
    result.calls = sum(call.outcome is CallOutcome.OK for call in history.calls)
    result.moments = sum(bool(each.sequence_numbers) for each in history.observations)
    environment = {**os.environ, "SEGMENTSTORE_ARCHIVE": server.location(bucket)}
    result.findings += _archive_all(location, environment)
    result.archive = asyncio.run(
        audit_archive(str(location), server.location(bucket), environment, _noted(history))
    )
    result.findings += result.archive.findings
    for seen, moment in draw_points(history.observations, points, seed):
        restored = folder / f"restored-{result.points}"
        result.findings += check_point(location, environment, seen, moment, restored)
        result.points += 1
    result.seconds = (shared_clock_ns() - begun) / 1e9
    return result


def _kill_on_files(
    folder: Path,
    _tier1: str,
    settings: Mapping[str, Any],
    seed: str,
    cycles: int,
    cuts: UploadCuts,
    result: ArchiveKillsResult,
) -> tuple[Path, History]:
    try:
        require_exact_kills()
        exact = True
    except MissingToolError:
        exact = False
    location = folder / "store"
    shown = KillRound(
        location,
        seed,
        "default",
        cycles,
        exact=exact,
        deck=DECK,
        settings=settings,
        phases=PHASES,
        # A close waits for what it has asked for: 20 s are a finding.
        prepare=lambda kind: cuts.begin(cuts=kind != "close"),
    ).run()
    result.kills = shown.kinds
    result.findings += map(str, shown.violations)
    return location, shown.history


def _kill_on_bookkeeper(
    folder: Path,
    tier1: str,
    settings: Mapping[str, Any],
    seed: str,
    cycles: int,
    cuts: UploadCuts,
    result: ArchiveKillsResult,
) -> tuple[Path, History]:
    rng = random.Random(f"{seed}/kinds")
    owners = BookKeeperRound(folder, tier1, seed, settings)
    for cycle in range(cycles):
        kind = rng.choice(KINDS) if cycle else "work"
        cuts.begin(cuts=kind == "work")
        if kind == "work":
            lines = rng.randrange(5, 3 * _OPERATIONS)
            worked = owners.work("default", _OPERATIONS, lines, phases=PHASES)
            kind = "at work" if worked else "idle"
        elif kind == "die":
            point = f"{rng.choice(POINTS)} {rng.choice(MOMENTS)} 1"
            # Nothing is truncated before it is archived, nor deleted before the lag.
            if not owners.die(point, must=not point.startswith("truncate")):
                kind = "die, not met"
        else:
            owners.takeover(with_gateway=False)
        result.kills[kind] += 1
    cuts.end()
    result.findings += map(str, owners.finish())
    return folder / f"owner-{len(owners.history.process_runs) - 1}", owners.history


def _archive_all(location: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """One more owner archives all that is sealed."""
    run = subprocess.run(  # noqa: S603 - this very program
        [sys.executable, "-m", "segmentstore", "archive", "run", str(location)],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_RUN_S,
        check=False,
    )
    if run.returncode:
        said = (run.stdout + run.stderr).decode(errors="replace")
        yield f"`archive run` ended with {run.returncode}: {said}"


def _noted(history: History) -> dict[int, list[int]]:
    noted: dict[int, list[int]] = {}
    for observation in history.observations:
        for container_id, number in observation.sequence_numbers.items():
            noted.setdefault(container_id, []).append(number)
    return noted


@contextmanager
def on_bookkeeper(cluster: BookKeeperCluster, path: str) -> Iterator[str]:
    """The URL of a log there, by a gateway that outlives the owners."""
    gateway = acquire_own(0.0, random.SystemRandom())
    try:
        os.environ[TOKEN_VARIABLE] = gateway.token
        yield f"{cluster.url(path)}{LEDGERS}&gateway={HOST}:{gateway.process.port}"
    finally:
        os.environ.pop(TOKEN_VARIABLE, None)
        gateway.release()


def run_archive_kills(
    folder: Path, seed: str, cycles: int, points: int, say: Say
) -> list[ArchiveKillsResult]:
    """All kinds of logs and servers that can be had here."""
    os.environ.update(credentials())
    kinds: list[type[S3Server]] = [S3Proxy]
    if VersityGateway.available():
        kinds.append(VersityGateway)
    results: list[ArchiveKillsResult] = []
    with ExitStack() as stack:
        servers = [stack.enter_context(kind(folder / kind.name)) for kind in kinds]
        cluster = stack.enter_context(BookKeeperCluster(folder / "cluster"))
        total = 2 * len(servers)
        for number in range(total):
            server = servers[number // 2]
            part = folder / f"store-{number}"
            part.mkdir()
            with ExitStack() as mine:
                tier1 = (
                    mine.enter_context(on_bookkeeper(cluster, f"/archived-{number}"))
                    if number % 2
                    else ""
                )
                result = kill_archiving(
                    part,
                    tier1,
                    server,
                    f"{seed}/{number}",
                    _share(cycles, number, total),
                    _share(points, number, total),
                )
            results.append(result)
            say(result.text())
    return results


def _share(whole: int, number: int, total: int) -> int:
    return whole // total + (number < whole % total)


def main(arguments: Sequence[str]) -> int:
    """0: no rule was broken; 1: some were; 2: the command is wrong."""
    parser = argparse.ArgumentParser(prog="python -m recovery.harness.kills.archive_kills")
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--points", type=int, default=50)
    parser.add_argument("--seed", default="")
    options = parser.parse_args(arguments)
    seed = options.seed or secrets.token_hex(4)
    folder = Path(tempfile.mkdtemp(prefix="segmentstore-archive-kills-"))
    _say(f"seed {seed}, in {folder}")
    results = run_archive_kills(folder, seed, options.cycles, options.points, _say)
    if any(result.findings for result in results):
        _say(f"kept: {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
