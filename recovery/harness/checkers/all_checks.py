"""All checkers over one history, in a fixed order: the judgement of a run.

Cost: some 7 us per call and observed record, searches apart; these have budgets of their own.

`check_history` is the pure judgement; `evaluate` is what runs ask: an error in a checker is a
violation there, so that no run is lost with its seed.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from recovery.harness.checkers import (
    attributes,
    conditional,
    content,
    exactly_once,
    linearizability,
    log,
    merged_in_turn,
    merged_once,
    order,
    owners,
    past,
    reads,
    recovery,
    sealed,
    set_ups,
    tables,
    tier2,
    truncated,
    unknown,
)
from recovery.harness.checkers.index import HistoryIndex
from recovery.harness.history import History, Violation

CHECKERS: Final[tuple[Callable[[HistoryIndex], Iterator[Violation]], ...]] = (
    recovery.check,
    content.check,
    order.check,
    unknown.check,
    exactly_once.check,
    merged_once.check,
    merged_in_turn.check,
    set_ups.check,
    conditional.check,
    sealed.check,
    truncated.check,
    attributes.check,
    tables.check,
    reads.check,
    owners.check,
    log.check,
    tier2.check,
    past.check,
    linearizability.check,
)


HARNESS: Final = "harness"
"""What is said to have found a violation that is an error of the harness itself, or of what it
stands on.
"""
_FRAMES_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What all checkers say of a history."""

    violations: list[Violation]
    windows: Mapping[str, int]
    """Windows of calls whose linearizability was searched for: `decided`, and `undecided` within
    their bounds.
    """


def check_history(history: History) -> list[Violation]:
    """Every rule that a history breaks; empty if it may be the history of a right store."""
    index = HistoryIndex(history)
    return [violation for checker in CHECKERS for violation in checker(index)]


def evaluate(history: History) -> Evaluation:
    """Every rule that a history breaks.

    Never raises: a checker that does is a violation, behind those found before it.
    """
    violations: list[Violation] = []
    windows: Mapping[str, int] = {}
    try:
        index = HistoryIndex(history)
        windows = index.windows
        for checker in CHECKERS:
            violations.extend(checker(index))
    except Exception as error:  # noqa: BLE001
        # Whatever it is, the run and its seed must not be lost with it.
        violations.append(raised(error))
    return Evaluation(violations, windows)


def raised(error: Exception) -> Violation:
    """An error of the harness, as what the run is failed for: with the last lines of its traceback,
    in one line.
    """
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES_SHOWN:]
    lines = (
        f"{Path(frame.filename).name}:{frame.lineno} {frame.name}: {frame.line}" for frame in frames
    )
    return Violation(HARNESS, f"{type(error).__name__}: {error} [{' > '.join(lines)}]")
