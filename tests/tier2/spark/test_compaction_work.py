"""How a compaction's groups are cut into tasks."""

from __future__ import annotations

import pytest

from tier2.spark.compact.work import BIN_GROUPS, bins_for, slots_of


class TestBins:
    def test_as_many_as_tasks_run_at_a_time_or_a_multiple(self) -> None:
        assert bins_for(25, 64, 2) == 2
        assert bins_for(2 * BIN_GROUPS, 64, 2) == 2
        assert bins_for(2 * BIN_GROUPS + 1, 64, 2) == 4

    def test_as_many_as_may_be_where_that_is_not_known(self) -> None:
        assert bins_for(25, 64, None) == 64

    def test_never_more_than_was_asked_for_and_at_least_one(self) -> None:
        for most in (1, 3, 64):
            for slots in (None, 1, 2, 100):
                for groups in (1, 25, 10_000):
                    assert 1 <= bins_for(groups, most, slots) <= most


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[3]"}, 3),
        ({"spark.master": "local[4, 8]", "spark.task.cpus": "2"}, 2),
        ({"spark.master": "local[1]", "spark.task.cpus": "2"}, 1),
        ({"spark.master": "spark://host:7077"}, None),
        ({"spark.master": "spark://host:7077", "spark.cores.max": "12"}, 12),
        (
            {"spark.master": "yarn", "spark.executor.instances": "5", "spark.executor.cores": "4"},
            20,
        ),
        (
            {
                "spark.master": "yarn",
                "spark.executor.instances": "5",
                "spark.executor.cores": "4",
                "spark.dynamicAllocation.enabled": "true",
            },
            None,
        ),
        ({}, None),
    ],
)
def test_how_many_tasks_run_at_a_time_is_what_the_settings_say(
    settings: dict[str, str], slots: int | None
) -> None:
    assert slots_of(settings.get) == slots


def test_all_cores_of_this_machine_are_some() -> None:
    slots = slots_of({"spark.master": "local[*]"}.get)
    assert slots is not None
    assert slots >= 1
