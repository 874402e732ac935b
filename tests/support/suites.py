"""What runs where: `make test` has small numbers and a share, `make test-all` the rest.

Two marks say it, beside the tests and nowhere else (docs/testing.md), and a third one names tests
that make targets of their own run. The two state what the test
costs in `make test-all`, in seconds of one quiet core: shards are packed by it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

import pytest

ALL_SIZES: Final = "TEST_SIZES"
"""A variable: `all` gives numbers of `size` the larger value. `make test-all` sets it."""
IN_TEST: Final = "not slow and not by_target"
"""What `make test` chooses by marks."""
IN_TEST_ALL: Final = "(slow or sized) and not by_target"
"""What `make test-all` chooses: a sized test runs in both."""


EXAMPLES_MIN: Final = 10
TIME_LIMIT_S: Final = 300
"""Of every test without another one: the `timeout` of pyproject.toml."""


by_target: Final = pytest.mark.by_target
"""A test that runs in neither: a make target of its own has it, as it needs much from outside."""


def slow(seconds: float) -> pytest.MarkDecorator:
    """A test that runs in `make test-all` alone, and its cost there, of each case."""
    return pytest.mark.slow(seconds=seconds)


def sized(seconds: float) -> pytest.MarkDecorator:
    """A test that runs in both, with other numbers, and its cost in `make test-all`."""
    return pytest.mark.sized(seconds=seconds)


def size(name: str, small: int, whole: int) -> int:
    """A number of a sized test, in each of both; a variable of that name beats them."""
    return int(os.environ.get(name, whole if os.environ.get(ALL_SIZES) == "all" else small))


def examples(whole: int, least: int = EXAMPLES_MIN) -> int:
    """How many examples a test of hypothesis tries, of `whole` in `make test-all`.

    `least` is for machines of hundreds of steps.
    Those tests are `sized` without a mark of their own (tests/conftest.py).
    """
    return whole if os.environ.get(ALL_SIZES) == "all" else min(whole, max(least, whole // 12))


def share(cases: Iterable[Any], every: int, seconds: float) -> list[Any]:
    """Cases for `parametrize`: each `every`-th stays in `make test`, the others are slow."""
    return [
        case if number % every == 0 else pytest.param(*values_of(case), marks=slow(seconds))
        for number, case in enumerate(cases)
    ]


def values_of(case: Any) -> tuple[Any, ...]:
    """The arguments of one case, as `parametrize` takes them: a tuple is several."""
    return case if isinstance(case, tuple) else (case,)


def time_limit(item: pytest.Item) -> pytest.MarkDecorator | None:
    """What a test of `make test-all` may take where that is more than others may, unless it has a
    limit of its own: twenty times its cost, for a busy machine.
    """
    dear = any(map(item.get_closest_marker, ("slow", "sized")))
    if item.get_closest_marker("timeout") or not dear or 20 * cost(item) <= TIME_LIMIT_S:
        return None
    return pytest.mark.timeout(20 * cost(item))


def cost(item: pytest.Item) -> float:
    """Seconds of one quiet core that a test takes in `make test-all`: its largest mark."""
    marks = (mark for name in ("slow", "sized") for mark in item.iter_markers(name))
    return max(float(mark.kwargs["seconds"]) for mark in marks)
