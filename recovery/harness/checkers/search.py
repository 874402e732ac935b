"""Search for an order of steps that explains all answers: Wing and Gong's, with Lowe's memory of
what was tried.

Rules of this file: a step that must have happened comes before every step that began after its end.
One that may have happened does so before what began after its end, or never. Steps tried are
counted against a budget; what is not decided within it is None, never an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from recovery.harness.history import Call

S = TypeVar("S")

WINDOW_MAX: Final = 40
"""Steps of one search; each order of them may have to be tried."""


@dataclass(frozen=True, slots=True)
class Step(Generic[S]):
    """One call as the search sees it."""

    begun: int
    ended: int
    required: bool
    """False if it may never have taken effect."""
    act: Callable[[S], S | None]
    """The state after it; None if its answer cannot be given in this state."""
    call: Call | None = None


class Budget:
    """Steps that searches may still try."""

    def __init__(self, steps: int = 20_000) -> None:
        self.steps = steps


def windows(steps: Iterable[Step[S]]) -> Iterator[list[Step[S]]]:
    """Steps, by their beginning, cut where everything before has ended."""
    window: list[Step[S]] = []
    last = 0
    for step in sorted(steps, key=lambda step: step.begun):
        if window and step.begun > last:
            yield window
            window = []
        window.append(step)
        last = max(last, step.ended)
    if window:
        yield window


def end_states(
    steps: Sequence[Step[S]], starts: Iterable[S], budget: Budget
) -> dict[S, None] | None:
    """Every state that the steps can lead to, in some order that explains them; empty if there is
    none.

    None if the window is too large or the budget is used up. States must be hashable and not None.
    """
    if len(steps) > WINDOW_MAX:
        return None
    required = sum(1 << place for place, step in enumerate(steps) if step.required)
    dropped = [
        sum(
            1 << place
            for place, other in enumerate(steps)
            if not other.required and other.ended < step.begun
        )
        for step in steps
    ]
    waiting: list[tuple[int, S]] = [(0, start) for start in starts]
    tried = dict.fromkeys(waiting)
    found: dict[S, None] = {}
    while waiting:
        done, state = waiting.pop()
        if done & required == required:
            found[state] = None
        first_end = min(
            (
                step.ended
                for place, step in enumerate(steps)
                if step.required and not done >> place & 1
            ),
            default=1 << 62,
        )
        for place, step in enumerate(steps):
            if done >> place & 1:
                continue
            if step.begun > first_end:
                break
            budget.steps -= 1
            if budget.steps < 0:
                return None
            after = step.act(state)
            if after is not None:
                entry = (done | 1 << place | dropped[place], after)
                if entry not in tried:
                    tried[entry] = None
                    waiting.append(entry)
    return found
