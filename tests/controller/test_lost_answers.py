"""Calls whose answers were lost: the process died behind some write. Clients call once more, and
have the answers that were lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.controller.controller import Controller
from segmentstore.controller.group_model import GroupConfiguration
from segmentstore.controller.names import ScopedName
from segmentstore.controller.refusals import Reason
from segmentstore.controller.stream_model import StreamConfiguration
from segmentstore.controller.streams import FINISH_S
from tests.controller.controller_world import STREAM, TWO, refused, running, with_stream
from tests.controller.fake_store import CrashError, FakeDisk, FakeProcess

GROUP: Final = ScopedName("s", "g")
SUBSCRIBER: Final = GroupConfiguration(uuid="u", retention=1, starting=((STREAM, {}),))
RANGES: Final = [(0.2, 0.5), (0.0, 0.2)]


class Call(NamedTuple):
    before: Callable[[Controller], Awaitable[object]]
    call: Callable[[Controller], Awaitable[object]]


async def stream(controller: Controller) -> None:
    await controller.scopes.create("s")
    await controller.streams.create(STREAM, TWO)


async def group(controller: Controller) -> None:
    await stream(controller)
    await controller.groups.create(GROUP, SUBSCRIBER)


CALLS: Final = {
    "update": Call(stream, lambda c: c.streams.update(STREAM, StreamConfiguration())),
    "truncate": Call(stream, lambda c: c.streams.truncate(STREAM, {0: 0, 1: 0})),
    "scale": Call(stream, lambda c: c.streams.scale(STREAM, [0], RANGES)),
    "seal": Call(stream, lambda c: c.streams.seal(STREAM)),
    "create group": Call(stream, lambda c: c.groups.create(GROUP, SUBSCRIBER)),
    "update group": Call(group, lambda c: c.groups.update(GROUP, SUBSCRIBER)),
}


async def answered(call: Call) -> tuple[object, int]:
    """The answer, and how many writes it took."""
    process = FakeProcess(FakeDisk())
    async with running(process) as controller:
        await call.before(controller)
        before = process.changes
        answer = await call.call(controller)
        return answer, process.changes - before


async def answered_again(call: Call, dies_at: int, waits_s: float) -> object:
    process = FakeProcess(FakeDisk(), before=False)
    async with running(process) as controller:
        await call.before(controller)
        process.crash_at = process.changes + dies_at
        with pytest.raises(CrashError):
            await call.call(controller)
        process.dead = True
    async with running(FakeProcess(process.disk)) as controller:
        await asyncio.sleep(waits_s)
        return await call.call(controller)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("waits_s", [0, FINISH_S + 1])
def test_it_has_the_answer_that_was_lost(name: str, waits_s: float) -> None:
    call = CALLS[name]
    answer, writes = run_virtual(answered(call))
    for dies_at in range(1, writes + 1):
        assert run_virtual(answered_again(call, dies_at, waits_s)) == answer, dies_at


def test_a_scale_has_its_answer_behind_others_and_another_one_has_none() -> None:
    async def main() -> None:
        async with with_stream(TWO) as (controller, _):
            answer = await controller.streams.scale(STREAM, [0], RANGES)
            _, (low, high) = answer
            ends = [low.segment_id, high.segment_id]
            await controller.streams.scale(STREAM, ends, [(0.0, 0.5)])
            assert await controller.streams.scale(STREAM, [0], RANGES) == answer
            for sealed, ranges in (([0], [(0.0, 0.5)]), ([0, 1], RANGES), ([low.segment_id], [])):
                async with refused(Reason.PRECONDITION_FAILED):
                    await controller.streams.scale(STREAM, sealed, ranges)

    run_virtual(main())
