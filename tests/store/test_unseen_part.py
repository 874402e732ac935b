"""What operations end in a part, from its bytes alone: as an owner knows that has logged them."""

from __future__ import annotations

from pathlib import Path

from segmentstore.container.unseen_part import operations_in
from tests.store.archive_world import World, log_parts
from tests.store.harness import run


def test_a_part_read_alone_has_the_operations_that_its_owner_noted(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, offload_after_s=3600.0)
        async with world.open() as store:
            await store.create_segment("x")
            # The long ones begin in one part and end in another; some parts have no end of any.
            for length in (10, 3900, 150, 4000, 4000, 20, 20, 3000, 30):
                await store.append("x", bytes(length))
                await store.append("x", bytes(length // 3))
            log, positions = store._containers[0]._log, store._containers[0]._positions
            before, ends = (0, 0), 0
            last_of: dict[int, int] = {}
            for number in log_parts(store):
                handle = await log.open_part(number)
                noted, read = (
                    positions.operations_of(number),
                    await operations_in(handle, number, 0, before),
                )
                await handle.close()
                last_of[number] = 0 if noted is None else noted.last_sequence
                assert (noted is None) == (read is None)
                if noted is not None and read is not None:
                    assert (read.first_sequence, read.last_sequence) == (
                        noted.first_sequence,
                        noted.last_sequence,
                    )
                    # The time of one that began in front of the part, and is alone, is not in it.
                    is_alone = read.first_sequence == read.last_sequence
                    assert read.last_ms == (
                        before[1] if is_alone and read.last_ms < noted.last_ms else noted.last_ms
                    )
                    alone = await operations_in(await log.open_part(number), number, 0, (7, 7))
                    assert alone is not None
                    if noted.first_sequence < noted.last_sequence:
                        assert alone.first_sequence == noted.first_sequence
                    before, ends = (noted.last_sequence, noted.last_ms), ends + 1
            assert 3 < ends < len(last_of)
            (report,) = await store.offload_prefix()
            said = {part.number: part.last_sequence for part in report.parts}
            assert {number: said[number] for number in last_of} == last_of

    run(main())
