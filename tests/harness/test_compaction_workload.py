"""Compaction beside a live owner: simulated interleavings of jobs, owners and crashes, and real
processes of both kinds.

More of it: HARNESS_COMPACTION_RUNS; docs/compaction.md has what a thousand of them showed.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from recovery.harness.kills.round import KillRound
from recovery.harness.runs.plan import draw_plan
from recovery.harness.runs.simulate import drawn_plans, run_all, run_plans
from recovery.harness.workloads.catalogue import BY_NAME, COMPACTION, WORKLOADS
from tests.support.suites import slow

ROOT = Path(__file__).parents[2]
RUNS = int(os.environ.get("HARNESS_COMPACTION_RUNS", "16"))
SEED = os.environ.get("HARNESS_COMPACTION_SEED", "main")
STORES = 20
"""At least."""
PROCESS_RUNS = 3
TRACES = """
from recovery.harness.runs.plan import draw_plan
from recovery.harness.runs.scenario import Scenario
for number in range(2):
    print(Scenario(draw_plan(f"same/{number}", "compaction")).run().digest)
"""


def test_the_workload_may_be_named_and_is_no_part_of_the_long_runs() -> None:
    assert COMPACTION.name not in WORKLOADS
    assert BY_NAME[COMPACTION.name] is COMPACTION


def test_owners_poll_their_mailboxes_in_this_workload_alone() -> None:
    assert draw_plan("mail/1", COMPACTION.name).settings["mailbox_poll_interval_s"] > 0
    assert draw_plan("mail/1", "default").settings["mailbox_poll_interval_s"] == 0


@slow(8)
def test_equal_seeds_give_equal_traces_with_jobs_beside_the_owner() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", TRACES],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].count(b"\n") == 2


def test_few_interleavings_of_jobs_and_owners_lose_nothing() -> None:
    summary = run_plans([draw_plan(f"same/{number}", COMPACTION.name) for number in range(2)])
    assert [f"{failure.seed}: {failure.violations[0]}" for failure in summary.failures] == []
    assert summary.answers["jobs"] > 0


@slow(400)
@pytest.mark.timeout(600 + 40 * RUNS)
def test_no_interleaving_of_jobs_and_owners_loses_anything() -> None:
    plans = drawn_plans(f"{SEED}/compaction", COMPACTION.name)
    summary = run_all(plans, more=lambda so_far: so_far.runs < RUNS, jobs=2)
    print(
        f"seed {SEED}: {summary.runs} runs, {summary.crashes} crash-recoveries, "
        f"{dict(summary.answers)}"
    )
    assert [f"{failure.seed}: {failure.violations[0]}" for failure in summary.failures] == []
    assert summary.runs >= RUNS
    met = (
        "jobs",
        "proposed",
        "failed",
        "copy",
        "rewrite",
        "exported",
        "committed",
        "refused_changed",
        "refused_malformed",
        "condemned",
        "expired",
    )
    assert [verdict for verdict in met if not summary.answers[verdict]] == []


@slow(100)
@pytest.mark.timeout(1200)
def test_jobs_and_owners_that_are_killed_lose_nothing(tmp_path: Path) -> None:
    """Real processes and files: the owner of the store is killed, stopped or overtaken; so are the
    jobs beside it.
    """
    seed = os.environ.get("HARNESS_KILL_SEED", f"{random.SystemRandom().getrandbits(32):x}")
    print(f"HARNESS_KILL_SEED={seed}")
    answers: Counter[str] = Counter()
    kills = jobs_killed = 0
    for store in itertools.count(1):
        result = KillRound(
            tmp_path / str(store), f"{seed}/{store}", COMPACTION.name, PROCESS_RUNS, exact=False
        ).run()
        assert [str(violation) for violation in result.violations] == []
        answers.update(result.answers)
        kills += result.kills
        jobs_killed += result.jobs_killed
        # On a busy machine most owners are killed before the jobs beside them have begun.
        committed = answers["committed"] + answers["committed_in_part"]
        if store >= STORES and answers["exported"] and committed:
            break
    print(f"{kills} owners and {jobs_killed} processes of jobs killed: {dict(answers)}")
    assert kills >= STORES
    assert jobs_killed >= STORES
