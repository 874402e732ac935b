"""As much of `make test-all` as fits a time: `python -m tests.support.run_shards SECONDS`.

The commit names the first shard, and what hypothesis draws. One that might not end in time is not
begun, and is named. Ends with 1 if a test failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.shards import Shard, fits, pack, rotation
from tests.support.suites import ALL_SIZES, IN_TEST_ALL, cost

ROOT = Path(__file__).resolve().parents[2]
JOBS = 2 * (os.cpu_count() or 1)
"""Workers of a shard, as `make test` has them: for half of the time they wait for servers."""
SHARD_S = 480.0
"""Of one core: four minutes on two."""
SLOWNESS = 1.5
"""What a build machine is expected to need of the marks' seconds, until a shard has shown it."""
NO_COMMIT = "0"
WHEEL = Shard(("tests/wheel",), 160.0, 60.0)
"""It has no tests of pytest's: environments of all Pythons, two at a time."""


class _Costs:
    """A plugin that notes what was collected."""

    def __init__(self) -> None:
        self.of_files: dict[str, list[float]] = defaultdict(list)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self.of_files[item.nodeid.partition("::")[0]].append(cost(item))


def costs() -> dict[str, list[float]]:
    """The seconds of each test of `make test-all`, by file. It imports everything: 30 s."""
    seen = _Costs()
    code = pytest.main(
        ["--collect-only", "-qq", "-p", "no:xdist", "-m", IN_TEST_ALL], plugins=[seen]
    )
    if code != pytest.ExitCode.OK:
        raise SystemExit(
            f"the tests of make test-all could not be collected: exit code {int(code)}"
        )
    return dict(seen.of_files)


def commit() -> str:
    """The hash of HEAD; zero where there is no git."""
    asked = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() or NO_COMMIT


def run(shard: Shard, seed: str) -> bool:
    """Whether all its tests passed; `seed` says what hypothesis draws, as in the Makefile."""
    if shard is WHEEL:
        return subprocess.run(["make", "wheel-test-all"], cwd=ROOT, check=False).returncode == 0
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--shares",
        "-n",
        str(JOBS),
        "--dist",
        "worksteal",
        f"--hypothesis-seed={seed}",
    ]
    environment = {**os.environ, ALL_SIZES: "all"}
    done = subprocess.run(
        [*command, "-m", IN_TEST_ALL, *shard.files], cwd=ROOT, env=environment, check=False
    )
    return done.returncode == 0


def main(budget_s: float) -> int:
    """Run what fits into `budget_s` from now; the exit code."""
    begun = time.monotonic()
    shards = [*pack(costs(), SHARD_S), WHEEL]
    head = commit()
    order = rotation(head, len(shards))
    print(f"commit {head[:12]}: shards {order} of make test-all, {budget_s:.0f} s", flush=True)
    slowness, failed, left = SLOWNESS, [], []
    for number in order:
        shard, now = shards[number], time.monotonic()
        if not fits(shard, now - begun, budget_s, slowness):
            left.append(number)
            continue
        print(
            f"shard {number}: {shard.seconds:.0f} s of a core: {' '.join(shard.files)}", flush=True
        )
        if not run(shard, head):
            failed.append(number)
        took = time.monotonic() - now
        slowness = max(slowness, took / shard.wall_s(1.0))
        print(f"shard {number}: {took:.0f} s", flush=True)
    for number in left:
        print(f"shard {number}: no time for it in this build: {' '.join(shards[number].files)}")
    print(
        f"{len(shards) - len(left)} of {len(shards)} shards "
        f"in {time.monotonic() - begun:.0f} s; failed: {failed}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
