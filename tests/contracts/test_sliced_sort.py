"""Sorting in slices: the order is that of one sort, and others run in between."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.sliced_sort import sorted_in_slices


@given(st.lists(st.lists(st.integers())))
def test_others_run_between_slices_and_the_order_is_that_of_one_sort(
    slices: list[list[int]],
) -> None:
    every = sorted(item for one in slices for item in one)

    async def main() -> int:
        turns, loop = 0, asyncio.get_running_loop()

        def turn() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(turn)

        loop.call_soon(turn)
        assert [*await sorted_in_slices(slices)] == every
        return turns

    assert run_virtual(main()) >= len(slices) - 1
