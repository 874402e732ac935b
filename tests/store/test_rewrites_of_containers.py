"""The containers of a store write their objects anew within one bound of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from segmentstore import open_steps
from segmentstore.contracts.segment_mapper import container_of
from segmentstore.contracts.weighted_gate import WeightedGate
from tests.store.harness import open_tiny, run, until

CONTAINERS = 2
BYTES = 600
PART = b"x" * 100


def test_all_containers_of_a_store_share_the_room_for_rewrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates: list[CountingGate] = []

    class CountingGate(WeightedGate):
        entered = 0

        async def enter(self, weight: int) -> None:
            await super().enter(weight)
            self.entered += 1

    def make_gate(consolidation_bytes: int) -> WeightedGate:
        assert consolidation_bytes == BYTES
        gates.append(CountingGate(consolidation_bytes))
        return gates[-1]

    monkeypatch.setattr(open_steps, "rewrite_gate", make_gate)
    names = [
        next(name for each in range(100) if container_of(name := f"s{each}", CONTAINERS) == number)
        for number in range(CONTAINERS)
    ]

    async def main() -> None:
        async with open_tiny(
            tmp_path / "s", containers=CONTAINERS, consolidation=True, consolidation_bytes=BYTES
        ) as store:
            for name in names:
                await store.create_segment(name)
                for _ in range(10):
                    await store.append(name, PART)
                    await store.flush(name)
            await until(
                lambda: all(
                    each["storage_writer"]["consolidations"]
                    for each in store.stats()["containers"].values()
                )
            )
            (gate,) = gates
            assert gate.entered >= CONTAINERS
            for name in names:
                assert b"".join([data async for data in store.reader(name)]) == 10 * PART

    run(main())
