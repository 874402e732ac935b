"""Changes of reader groups beside reports, and beside the ends of their streams."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.controller.controller import Controller
from segmentstore.controller.controller_rows import ControllerRows, RowPut, subscriber_key
from segmentstore.controller.group_model import SUBSCRIBED_MAX, GroupConfiguration
from segmentstore.controller.names import ScopedName
from segmentstore.controller.refusals import Reason, RefusedRequestError
from segmentstore.controller.stream_model import StreamCut, cut_to_row
from segmentstore.tables.table_types import BATCH_KEYS_MAX
from tests.controller.controller_world import STREAM, refused, running, with_stream
from tests.controller.fake_store import FakeDisk, FakeProcess, FakeTables

GROUP: Final = ScopedName("s", "g")
STREAMS: Final = (STREAM, *(ScopedName("s", f"other{number}") for number in range(5)))
SUBSCRIBER: Final = GroupConfiguration(
    "u", retention=1, starting=tuple((stream, {}) for stream in STREAMS)
)
SEGMENT: Final = "s/a/0.#epoch.0"
TURNS: Final = 60
"""More turns of the loop than a change of a group has."""


BAD_NAME: Final = Reason.BAD_NAME


def of_streams(count: int) -> GroupConfiguration:
    streams = tuple((ScopedName("s", f"of{number}"), dict[int, int]()) for number in range(count))
    return GroupConfiguration("u", retention=1, starting=streams)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def put_stale_cut(disk: FakeDisk, cut: StreamCut) -> None:
    """As earlier versions could leave it."""
    rows = ControllerRows(FakeTables(FakeProcess(disk)))
    value = {"uuid": "u", "generation": 0, "cut": cut_to_row(cut)}
    await rows.put(RowPut(subscriber_key(STREAM, GROUP), value))


def test_an_update_beside_the_deletion_of_a_stream_brings_no_cut_back() -> None:
    async def cuts_after(count: int) -> list[StreamCut]:
        async with with_stream() as (controller, _):
            await controller.groups.create(GROUP, SUBSCRIBER)
            await controller.groups.report_cut(STREAM, GROUP, "u", 0, {0: 0})
            await controller.streams.seal(STREAM)

            async def update() -> None:
                await turns(count)
                await controller.groups.update(GROUP, SUBSCRIBER)

            await asyncio.gather(controller.streams.delete(STREAM), update())
            return await controller.groups.subscriber_cuts(STREAM)

    for count in range(TURNS):
        # The row may be removed behind the update; if it is there, nothing was reported.
        assert run_virtual(cuts_after(count)) in ([], [{}]), count


async def report_beside(
    change: Coroutine[Any, Any, object], controller: Controller, count: int
) -> Reason | None:
    """Give why the report was refused; None: it was acknowledged."""

    async def report() -> Reason | None:
        await turns(count)
        try:
            await controller.groups.report_cut(STREAM, GROUP, "u", 0, {0: 9})
        except RefusedRequestError as error:
            return error.reason
        return None

    reporting = asyncio.ensure_future(report())
    await change
    return await reporting


def test_an_update_keeps_a_report_that_was_acknowledged() -> None:
    async def outcome(count: int) -> tuple[Reason | None, list[StreamCut]]:
        async with with_stream() as (controller, disk):
            disk.write(SEGMENT, bytes(10))
            await controller.groups.create(GROUP, SUBSCRIBER)
            await controller.groups.report_cut(STREAM, GROUP, "u", 0, {0: 1})
            change = controller.groups.update(GROUP, SUBSCRIBER)
            reason = await report_beside(change, controller, count)
            return reason, await controller.groups.subscriber_cuts(STREAM)

    found = [run_virtual(outcome(count)) for count in range(TURNS)]
    late = (Reason.GENERATION_MISMATCH, [{0: 1}])
    kept = (None, [{0: 9}])
    assert (found[0], found[-1]) == (kept, late)
    assert all(each in (kept, late) for each in found), found


def test_a_report_beside_the_deletion_of_its_group_has_an_answer() -> None:
    async def outcome(count: int) -> Reason | None:
        async with with_stream() as (controller, _):
            await controller.groups.create(GROUP, SUBSCRIBER)
            return await report_beside(controller.groups.delete(GROUP, "u"), controller, count)

    found = {run_virtual(outcome(count)) for count in range(TURNS)}
    assert found == {None, Reason.SUBSCRIBER_NOT_FOUND}


@pytest.mark.parametrize("at", range(1, 12))
def test_a_deletion_that_failed_half_way_ends_with_the_next_call(at: int) -> None:
    async def main() -> None:
        process = FakeProcess(FakeDisk())
        async with running(process) as controller:
            await controller.scopes.create(STREAM.scope)
            before = set(process.disk.rows)
            await controller.groups.create(GROUP, SUBSCRIBER)
            process.fail_at = process.changes + at
            with pytest.raises(TierUnavailableError):
                await controller.groups.delete(GROUP, "u")
            await controller.groups.delete(GROUP, "u")
            assert set(process.disk.rows) - before <= {b"numbers"}
            assert not process.disk.segments

    run_virtual(main())


def test_all_rows_of_subscribers_fit_one_change_with_those_of_their_group() -> None:
    assert SUBSCRIBED_MAX + 2 <= BATCH_KEYS_MAX


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (GroupConfiguration("u", rollover_bytes=-1), Reason.BAD_ARGUMENT),
        (of_streams(SUBSCRIBED_MAX + 1), Reason.BAD_ARGUMENT),
        (GroupConfiguration("u", retention=1, starting=((ScopedName("s", "a/b"), {}),)), BAD_NAME),
        (GroupConfiguration("u", retention=1, starting=((ScopedName("", "a"), {}),)), BAD_NAME),
    ],
    ids=["rollover", "streams", "name", "scope"],
)
def test_what_no_group_can_have_leaves_nothing(bad: GroupConfiguration, reason: Reason) -> None:
    """A row of it would be a change that never ends: neither its group nor its scope could be
    deleted.
    """

    async def main() -> None:
        process = FakeProcess(FakeDisk())
        async with running(process) as controller:
            await controller.scopes.create(STREAM.scope)
            before = dict(process.disk.rows)
            async with refused(reason):
                await controller.groups.create(GROUP, bad)
            assert process.disk.rows == before
            await controller.groups.create(GROUP, SUBSCRIBER)
            async with refused(reason):
                await controller.groups.update(GROUP, bad)
            assert await controller.groups.configuration(GROUP) == SUBSCRIBER
            await controller.groups.delete(GROUP, "u")
            await controller.scopes.delete(STREAM.scope)

    run_virtual(main())


def test_a_cut_of_a_former_stream_does_not_hinder_a_report() -> None:
    async def main() -> None:
        async with with_stream() as (controller, disk):
            await controller.groups.create(GROUP, SUBSCRIBER)
            await put_stale_cut(disk, {7: 0})
            await controller.groups.report_cut(STREAM, GROUP, "u", 0, {0: 9})
            assert await controller.groups.subscriber_cuts(STREAM) == [{0: 9}]
            async with refused(Reason.BAD_CUT):
                await controller.groups.report_cut(STREAM, GROUP, "u", 0, {0: 8})

    run_virtual(main())
