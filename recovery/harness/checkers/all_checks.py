"""All checkers over one history, in a fixed order: the judgement of a run.

Cost: some 7 us per call and observed record, searches apart; these have budgets of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from recovery.harness.checkers import (
    attributes,
    conditional,
    content,
    exactly_once,
    linearizability,
    order,
    owners,
    reads,
    recovery,
    sealed,
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
    conditional.check,
    sealed.check,
    truncated.check,
    attributes.check,
    reads.check,
    owners.check,
    linearizability.check,
)


def check_history(history: History) -> list[Violation]:
    """Every rule that a history breaks; empty if it may be the history of a right store."""
    index = HistoryIndex(history)
    return [violation for checker in CHECKERS for violation in checker(index)]
