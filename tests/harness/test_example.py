"""The example of a service tested in the simulated world: it holds, and a service that does not is
caught.
"""

from __future__ import annotations

import subprocess
import sys
import uuid

import pytest

import recovery.harness
from recovery.harness.examples import check_counter as example
from recovery.harness.examples.check_counter import CounterRun, check_counter
from recovery.harness.examples.counter_service import SEGMENT, CounterService
from tests.support.suites import share, size, sized

SEEDS = 30
CRASHED = size("HARNESS_EXAMPLE_RUNS", 6, SEEDS)


class ForgetfulService(CounterService):
    """Does not number its events: an increment that is sent again is counted again."""

    async def increment(self, client: uuid.UUID, number: int, amount: int) -> None:
        await self.store.append(SEGMENT, amount.to_bytes(8, "big"))
        self.count += amount


class HastyService(CounterService):
    """Acknowledges before the store has: what a crash takes is never sent again."""

    async def increment(self, client: uuid.UUID, number: int, amount: int) -> None:
        future = self.store.writer(SEGMENT, client).append(amount.to_bytes(8, "big"), number)
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.count += amount


@pytest.mark.parametrize("number", share(range(SEEDS), 5, 0.5))
def test_every_increment_is_counted_exactly_once(number: int) -> None:
    assert check_counter(f"example/{number}").problems == []


@sized(5)
def test_the_service_is_crashed_again_and_again() -> None:
    crashes = [check_counter(f"example/{number}").crashes for number in range(CRASHED)]
    assert sum(crashes) > 2 * CRASHED


def test_equal_seeds_give_equal_traces() -> None:
    first, second, other = (check_counter(seed).digest for seed in ("a", "a", "b"))
    assert first == second
    assert first != other


def caught_after(service: type[CounterService]) -> int:
    """Seeds until the fault is seen; SEEDS if it is not."""
    return next(
        (number for number in range(SEEDS) if check_counter(f"planted/{number}", service).problems),
        SEEDS,
    )


def test_a_service_that_forgets_to_number_its_events_is_caught() -> None:
    assert caught_after(ForgetfulService) < SEEDS


def test_a_service_that_acknowledges_too_early_is_caught() -> None:
    assert caught_after(HastyService) < SEEDS


def test_the_example_runs_as_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert example.main(["2"]) == 0
    assert capsys.readouterr().out.startswith("2 seeds, ")


def test_the_program_names_the_seed_of_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = CounterRun("counter/0", problems=["it is wrong"])
    monkeypatch.setattr(example, "check_counter", lambda _seed: bad)
    assert example.main(["1"]) == 1
    assert "seed counter/0: it is wrong" in capsys.readouterr().out


def test_the_public_names_are_all_there_and_loaded_when_they_are_asked_for() -> None:
    program = (
        "import sys, recovery.harness\nprint([name for name in sys.modules if "
        "name.startswith('recovery.harness.')])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"
    assert all(getattr(recovery.harness, name) is not None for name in recovery.harness.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        recovery.harness.no_such_name  # noqa: B018 - asked for, to be refused
