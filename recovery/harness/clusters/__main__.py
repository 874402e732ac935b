"""`python -m recovery.harness.clusters --cycles 300`: what `make cluster-kills` runs.

Ends with 1 if a rule was broken; the folder with the outputs of all processes is kept then.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import sys
import tempfile
from functools import partial
from itertools import islice
from pathlib import Path

from recovery.harness.clusters.client_load import LinkedLoop
from recovery.harness.clusters.cycle_plan import draw_steps
from recovery.harness.clusters.cycle_report import CyclesReport
from recovery.harness.clusters.cycle_run import CycleRun, Say


def run_cycles(
    folder: Path, seed: str, cycles: int, say: Say, *, rolling: bool = True
) -> CyclesReport:
    """So many cycles of a seed in an empty folder. The clients run on a loop of their own."""
    detours: dict[int, int] = {}
    with asyncio.Runner(loop_factory=partial(LinkedLoop, detours)) as runner:
        run = CycleRun(folder, seed, detours, say)
        runner.run(run.carry_out(islice(draw_steps(seed), cycles), rolling=rolling))
    return run.report


def main(arguments: list[str]) -> int:
    """0: no rule was broken; 1: some were; 2: the command is wrong."""
    parser = argparse.ArgumentParser(prog="python -m recovery.harness.clusters")
    parser.add_argument("--cycles", type=int, default=300)
    parser.add_argument("--seed", default="")
    options = parser.parse_args(arguments)
    seed = options.seed or secrets.token_hex(4)
    folder = Path(tempfile.mkdtemp(prefix="segmentstore-cycles-"))
    _say(f"seed {seed}, in {folder}")
    report = run_cycles(folder, seed, options.cycles, _say)
    _say(report.text())
    if report.violations:
        _say(f"kept: {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
