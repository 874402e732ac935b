"""A crash before or after each write of each change: the next start finishes it, or it was not.
begun.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.controller.controller import Controller
from segmentstore.controller.group_model import GroupConfiguration
from segmentstore.controller.key_value_tables import KeyValueTableConfiguration
from segmentstore.controller.names import ScopedName, make_segment_id
from segmentstore.controller.stream_model import (
    ScalingPolicy,
    StreamConfiguration,
    StreamRetention,
)
from tests.controller.controller_world import LEASE_MS, STREAM, TWO, running
from tests.controller.fake_store import CrashError, FakeDisk, FakeProcess

Work = Callable[[Controller, FakeDisk], Coroutine[Any, Any, object]]
GROUP: Final = ScopedName("s", "g")
TABLE: Final = ScopedName("s", "t")
SUBSCRIBER: Final = GroupConfiguration(uuid="u", retention=1, starting=((STREAM, {}),))
KEPT: Final = StreamConfiguration(
    scaling=ScalingPolicy(kind=1, rate=5, factor=2, segments=2),
    retention=StreamRetention(1, 1000, 0),
)
SETTLED_S: Final = 100.0
"""Leases are over, and what failed was tried again."""


async def scope(controller: Controller, _: FakeDisk) -> None:
    await controller.scopes.create("s")


async def stream(controller: Controller, disk: FakeDisk) -> None:
    await scope(controller, disk)
    await controller.streams.create(STREAM, TWO)
    disk.write("s/a/0.#epoch.0", b"0123456789")


async def scaled(controller: Controller, disk: FakeDisk) -> None:
    await stream(controller, disk)
    await controller.streams.scale(STREAM, [0, 1], [(0.0, 1.0)])


async def sealed(controller: Controller, disk: FakeDisk) -> None:
    await scaled(controller, disk)
    await controller.streams.seal(STREAM)


async def group(controller: Controller, disk: FakeDisk) -> None:
    await stream(controller, disk)
    await controller.groups.create(GROUP, SUBSCRIBER)


async def table(controller: Controller, disk: FakeDisk) -> None:
    await scope(controller, disk)
    await controller.key_value_tables.create(TABLE, KeyValueTableConfiguration(2, 4, 4, 0))


async def everything(controller: Controller, disk: FakeDisk) -> None:
    await group(controller, disk)
    await controller.key_value_tables.create(TABLE, KeyValueTableConfiguration(2, 4, 4, 0))


async def transactions(controller: Controller, disk: FakeDisk) -> None:
    await stream(controller, disk)
    for number in range(3):
        identity, _ = await controller.create_transaction(STREAM, LEASE_MS)
        for segment in (0, 1):
            disk.write(f"s/a/{segment}.#epoch.0#transaction.{identity:032x}", b"%d" % number)


async def decided(controller: Controller, disk: FakeDisk) -> None:
    """Two committed, one aborted, and all of it done."""
    first, second, third = (
        int(name.rpartition(".")[2], 16)
        for name in list(disk.segments)
        if name.startswith("s/a/0.#epoch.0#")
    )
    await controller.transactions.commit(STREAM, second)
    await controller.transactions.commit(STREAM, first)
    await controller.transactions.abort(STREAM, third)
    await asyncio.sleep(1)


class Change(NamedTuple):
    before: Work
    change: Work


CHANGES: Final = {
    "create scope": Change(lambda _, __: asyncio.sleep(0), scope),
    "create stream": Change(scope, lambda c, _: c.streams.create(STREAM, KEPT)),
    "update": Change(stream, lambda c, _: c.streams.update(STREAM, KEPT)),
    "truncate": Change(stream, lambda c, _: c.streams.truncate(STREAM, {0: 4, 1: 0})),
    "truncate behind a scale": Change(
        scaled, lambda c, _: c.streams.truncate(STREAM, {make_segment_id(2, 1): 0})
    ),
    "scale": Change(stream, lambda c, _: c.streams.scale(STREAM, [0], [(0.0, 0.2), (0.2, 0.5)])),
    "seal": Change(stream, lambda c, _: c.streams.seal(STREAM)),
    "seal with transactions": Change(transactions, lambda c, _: c.streams.seal(STREAM)),
    "delete": Change(sealed, lambda c, _: c.streams.delete(STREAM)),
    "create transaction": Change(stream, lambda c, _: c.create_transaction(STREAM, LEASE_MS)),
    "end transactions": Change(transactions, decided),
    "create group": Change(stream, lambda c, _: c.groups.create(GROUP, SUBSCRIBER)),
    "update group": Change(
        group, lambda c, _: c.groups.update(GROUP, GroupConfiguration(uuid="u"))
    ),
    "delete group": Change(group, lambda c, _: c.groups.delete(GROUP, "u")),
    "create table": Change(
        scope,
        lambda c, _: c.key_value_tables.create(TABLE, KeyValueTableConfiguration(2, 4, 4, 0)),
    ),
    "delete table": Change(table, lambda c, _: c.key_value_tables.delete(TABLE)),
    "delete all of a scope": Change(everything, lambda c, _: c.scopes.delete_recursively("s")),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("before", [True, False], ids=["lost", "unacknowledged"])
def test_a_crash_at_any_write_leaves_a_change_done_or_not_begun(name: str, before: bool) -> None:
    change = CHANGES[name]
    prepared, started = run_virtual(prepare(change))
    begun = run_virtual(settle(copy.deepcopy(prepared)))
    done, writes = run_virtual(crash_free(change))
    ends = [begun, done] if name != "end transactions" else None
    assert writes > started
    outcomes = set()
    for crash_at in range(started + 1, writes + 1):
        found = run_virtual(crashed(change, crash_at, before=before))
        assert not [key for key in found["rows"] if key.startswith("pending/")]
        if ends is not None:
            assert found in ends, crash_at
        else:
            check_transactions(found)
        outcomes.add(json.dumps(found, sort_keys=True))
    assert json.dumps(done, sort_keys=True) in outcomes or before


def check_transactions(found: dict[str, Any]) -> None:
    """Each is in all segments or in none, the commits in their order."""
    parts = {found["segments"][f"s/a/{number}.#epoch.0"][0] for number in (0, 1)}
    assert {part.removeprefix("0123456789") for part in parts} <= {"", "1", "10"}
    assert len({part.removeprefix("0123456789") for part in parts}) == 1
    assert not [name for name in found["segments"] if "#transaction" in name]


async def prepare(change: Change) -> tuple[FakeDisk, int]:
    process = FakeProcess(FakeDisk())
    async with running(process) as controller:
        await change.before(controller, process.disk)
        writes = process.changes
        return copy.deepcopy(process.disk), writes


async def crash_free(change: Change) -> tuple[dict[str, Any], int]:
    process = FakeProcess(FakeDisk())
    async with running(process) as controller:
        await change.before(controller, process.disk)
        await change.change(controller, process.disk)
        writes = process.changes
    return await settle(process.disk), writes


async def crashed(change: Change, crash_at: int, *, before: bool) -> dict[str, Any]:
    process = FakeProcess(FakeDisk(), crash_at, before=before)
    async with running(process) as controller:
        await change.before(controller, process.disk)
        try:
            await change.change(controller, process.disk)
        except CrashError:
            pass
        process.dead = True
    return await settle(process.disk)


async def settle(disk: FakeDisk) -> dict[str, Any]:
    """What is there some time after the next start, without times and what retention recorded."""
    async with running(FakeProcess(disk)):
        await asyncio.sleep(SETTLED_S)
    return {
        "rows": {
            key.decode(): timeless(json.loads(row[1]))
            for key, row in disk.rows.items()
            if not key.startswith(b"cut/")
        },
        "segments": {
            name: [segment.data.decode(), segment.start, segment.sealed, list(segment.policy)]
            for name, segment in sorted(disk.segments.items())
        },
    }


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        times = ("created_ms", "time_ms", "ended_ms", "begun_ms")
        return {key: timeless(each) for key, each in value.items() if key not in times}
    return value
