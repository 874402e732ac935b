"""When a checkpoint is due: after operations, bytes or frames, by the size of the last one."""

from __future__ import annotations

import pytest

from durablelog.checkpoint_policy import FRAMES_MAX, CheckpointPolicy


@pytest.mark.parametrize(
    ("almost", "rest"),
    [
        ((1, 99, 0), (1, 1, 0)),
        ((1, 1, 999), (1, 1, 1)),
        ((FRAMES_MAX - 1, 1, 0), (1, 1, 0)),
    ],
    ids=["operations", "bytes", "frames"],
)
def test_each_of_three_counts_makes_a_checkpoint_due(
    almost: tuple[int, int, int], rest: tuple[int, int, int]
) -> None:
    policy = CheckpointPolicy(operations_max=100, bytes_max=1000)
    for _ in range(2):
        policy.added(*almost)
        before = policy.due
        policy.added(*rest)
        behind = policy.due
        policy.checkpointed(0)
        assert (before, behind, policy.due) == (False, True, False)
        assert policy.empty


def test_the_log_grows_by_four_times_the_last_checkpoint_before_the_next() -> None:
    policy = CheckpointPolicy(operations_max=100, bytes_max=1000)
    policy.checkpointed(500)
    policy.added(FRAMES_MAX, 100, 1999)
    before = policy.due
    policy.added(1, 1, 1)
    assert (before, policy.due) == (False, True)
