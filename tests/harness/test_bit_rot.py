"""Bit rot is found, named, and once it is undone nothing has been harmed by it."""

from __future__ import annotations

import dataclasses
import random

from durablelog.file.log_layout import RetainedName, file_name, retained_name
from recovery.harness.runs.bit_rot import plant_bit_rot
from recovery.harness.runs.plan import draw_plan
from recovery.harness.runs.scenario import Scenario
from recovery.harness.simulation.store_world import LOCATION, StoreWorld
from tests.support.suites import size, sized

RUNS = size("HARNESS_ROT_RUNS", 1, 4)


def test_bit_rot_behind_which_a_write_was_on_its_way_is_undone_after_a_power_cut() -> None:
    """The file is then not what it was when it rotted: a harness that compared it whole left the
    rot in.
    """
    result = Scenario(draw_plan("6b0177cc-attributes/671", "attributes")).run()
    assert result.violations == []


def test_bit_rot_of_a_file_that_is_retained_meanwhile_is_undone() -> None:
    """The file has another name then, and the bytes are those that rotted."""
    world = StoreWorld("retained", tier1="file")
    folder = f"{LOCATION}/log/0"
    path, retained = f"{folder}/{file_name(3)}", RetainedName(7, 3, 5, 1, 9, 80, 1000)
    for above in (LOCATION, f"{LOCATION}/log", folder):
        world.image.make_directory(above)
    file = world.image.create(path)
    for begin in (0, 40):
        file.write(begin, bytes(range(begin, begin + 40)))
        file.sync()
    undo = plant_bit_rot(world, "rot.log", random.Random("rot"))
    world.image.link(path, f"{folder}/{retained_name(retained)}")
    world.image.unlink(path)
    assert undo is not None
    assert file.current != bytes(range(80))
    undo()
    assert file.current == bytes(range(80))
    world.close()


@sized(10)
def test_bit_rot_in_every_process_run_never_costs_a_byte() -> None:
    for number in range(RUNS):
        plan = draw_plan(f"rot/{number}", "default")
        cycles = tuple(
            dataclasses.replace(cycle, rot=("rot.log", "rot.object")[place % 2])
            for place, cycle in enumerate(plan.cycles)
        )
        result = Scenario(dataclasses.replace(plan, tier1="file", rates={}, cycles=cycles)).run()
        assert result.violations == []
        assert result.points.get("rot.log", 0) + result.points.get("rot.object", 0) > 0
