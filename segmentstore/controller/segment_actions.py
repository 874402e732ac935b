"""SegmentActions: what the Controller does to segments, each of which may be repeated.

A change that was cut off by a crash is done again from its beginning. So each action takes as
success that it was done before. `ActionStep`s name actions, so that changes stay pure.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from segmentstore.contracts.owned_tasks import gather_outcomes
from segmentstore.controller.stream_model import FIXED_ONE, ScalingPolicy

_STEPS_AT_ONCE: Final = 256


class HostUnavailableError(Exception):
    """A process that serves a segment cannot be reached, or refuses what the Controller may do.

    What was asked for may have been done. Try again; if it goes on, the setting `wire_hosts`, or
    the keys of the two processes, are not right.
    """

    def __init__(self, address: str, detail: str) -> None:
        super().__init__(f"the segments at {address} cannot be reached: {detail}")


class SegmentState(NamedTuple):
    """A segment as acknowledged. Offsets are in bytes."""

    start_offset: int
    length: int
    sealed: bool


class SegmentActions(Protocol):
    """What is done to segments, wherever they are. Raises SegmentStoreError of the store's kinds,
    or HostUnavailableError, where it cannot be done now.
    """

    async def create(self, name: str, policy: ScalingPolicy, rollover_bytes: int) -> None:
        """An empty segment; one that is there stays as it is."""

    async def create_table(self, name: str, key_length: int) -> None:
        """An empty table with keys of one length; one that is there stays as it is."""

    async def seal(self, name: str) -> None:
        """Nothing for one that is sealed or not there."""

    async def delete(self, name: str) -> None:
        """Nothing for one that is not there."""

    async def delete_table(self, name: str) -> None:
        """Nothing for one that is not there."""

    async def truncate(self, name: str, offset: int) -> None:
        """Nothing for one that begins behind the offset or is not there."""

    async def merge_batch(self, target: str, sources: Sequence[str]) -> None:
        """Append sources whole, in their order; one that is not there was merged before.

        Raises SegmentSealedError, SegmentNotFoundError for the target.
        """

    async def info(self, name: str) -> SegmentState | None:
        """None: it is not there."""

    async def update_policy(self, name: str, policy: ScalingPolicy) -> None:
        """Nothing for one that is sealed or not there."""


class StepKind(enum.Enum):
    """An action."""

    CREATE = enum.auto()
    CREATE_TABLE = enum.auto()
    SEAL = enum.auto()
    DELETE = enum.auto()
    DELETE_TABLE = enum.auto()
    TRUNCATE = enum.auto()
    MERGE = enum.auto()
    POLICY = enum.auto()


@dataclass(frozen=True, slots=True)
class ActionStep:
    """An action with its arguments. Which it has depends on its kind."""

    kind: StepKind
    name: str
    policy: ScalingPolicy = FIXED_ONE
    rollover_bytes: int = 0
    key_length: int = 0
    offset: int = 0
    sources: tuple[str, ...] = ()


async def run_steps(actions: SegmentActions, steps: Iterable[ActionStep]) -> None:
    """Do all steps, some hundred side by side. Raises the error of one that failed.

    Then none is on its way any more: it could have its effect on what comes after the change.
    """
    waiting = list(steps)
    for start in range(0, len(waiting), _STEPS_AT_ONCE):
        portion = waiting[start : start + _STEPS_AT_ONCE]
        works = (_run(actions, step) for step in portion)
        for outcome in await gather_outcomes(*works, name="controller-step"):
            if outcome is not None:
                raise outcome


async def _run(actions: SegmentActions, step: ActionStep) -> None:
    match step.kind:
        case StepKind.CREATE:
            await actions.create(step.name, step.policy, step.rollover_bytes)
        case StepKind.CREATE_TABLE:
            await actions.create_table(step.name, step.key_length)
        case StepKind.SEAL:
            await actions.seal(step.name)
        case StepKind.DELETE:
            await actions.delete(step.name)
        case StepKind.DELETE_TABLE:
            await actions.delete_table(step.name)
        case StepKind.TRUNCATE:
            await actions.truncate(step.name, step.offset)
        case StepKind.MERGE:
            await actions.merge_batch(step.name, step.sources)
        case StepKind.POLICY:
            await actions.update_policy(step.name, step.policy)
