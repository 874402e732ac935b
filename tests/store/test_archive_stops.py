"""A planned stop lets the part end that is on its way to the archive: a request that is cut off may
end behind the next owner's deletion.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.container.offload_pause import OffloadPause
from tests.store.archive_world import World, archiver, fill
from tests.store.harness import run, until
from tier2.archive.archive_names import archived_data_name, archived_index_name


@pytest.mark.parametrize("is_hand_over", [False, True])
def test_a_planned_stop_waits_for_the_part_under_way(tmp_path: Path, is_hand_over: bool) -> None:
    begun, released = threading.Event(), threading.Event()

    def hold(call: str, path: str) -> None:
        if call in {"link", "rename"} and "-ledger-" in path:
            begun.set()
            assert released.wait(20)

    async def main() -> None:
        world = World(tmp_path)
        world.disk.trap = hold
        async with world.open() as store:
            container = store._containers[0]
            pause = archiver(store)._pause
            await fill(store)
            await until(begun.is_set)
            if is_hand_over:
                ending = store._parts.registry.hand_over(0, lambda: True)
            else:
                ending = store.close()
            stopping = asyncio.create_task(ending)
            await until(lambda: pause.lasts)
            assert not stopping.done()
            released.set()
            await stopping
            archive = container.metadata.archive
            assert archive.count == 1, "no other part has begun"
            assert archive.attempt is None
            (part,) = archive.tail
            names = (archived_data_name, archived_index_name)
            assert world.objects() == {name(part.ledger_id, part.uid) for name in names}

    run(main())


def test_a_pause_waits_for_one_part_and_keeps_the_next_from_beginning() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        pause = OffloadPause()
        await pause.begin(5)
        assert loop.time() == 0, "nothing is under way"
        await pause.enter()
        assert loop.time() == 5
        loop.call_later(2, pause.leave)
        await pause.begin(5)
        assert loop.time() == 7
        await pause.enter()
        assert loop.time() == 10
        await pause.begin(3)
        assert loop.time() == 13, "no longer than it was asked to"

    run_virtual(main())
