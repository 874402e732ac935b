"""Which operations of a frame are committed together."""

from __future__ import annotations

from durablelog.operations import (
    AppendOperation,
    CreateOperation,
    Operation,
    SealOperation,
    commit_runs,
)


def append() -> Operation:
    return AppendOperation(1, 0, b"x")


def create() -> Operation:
    return CreateOperation("s")


def seal() -> Operation:
    return SealOperation(1)


def lengths(*operations: Operation) -> list[int]:
    runs = list(commit_runs(operations))
    assert [each for run in runs for each in run] == list(operations)
    return [len(run) for run in runs]


def test_appends_stay_together_and_creations_do() -> None:
    assert lengths() == []
    assert lengths(append(), append()) == [2]
    assert lengths(create(), create(), create()) == [3]
    assert lengths(append(), create(), create(), append(), append()) == [1, 2, 2]


def test_every_other_operation_is_alone() -> None:
    assert lengths(seal(), seal()) == [1, 1]
    assert lengths(create(), seal(), append(), append(), seal(), create()) == [1, 1, 2, 1, 1]
