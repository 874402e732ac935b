"""A deletion that failed half-way, called once more as clients do: it has the answer of one that
did not fail, for a minute and behind a restart. Meanwhile there is no such stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.controller.controller import Controller
from segmentstore.controller.group_model import GroupConfiguration
from segmentstore.controller.key_value_tables import KeyValueTableConfiguration
from segmentstore.controller.metadata_tables import MetadataRow
from segmentstore.controller.names import ScopedName
from segmentstore.controller.refusals import Reason, RefusedRequestError
from segmentstore.controller.streams import FINISH_REPEATED_S
from tests.controller.controller_world import STREAM, TWO, refused, running
from tests.controller.fake_store import FakeDisk, FakeProcess, FakeTables

GROUP: Final = ScopedName("s", "g")
TABLE: Final = ScopedName("s", "t")
LATEST_S: Final = 31
"""When Pravega's clients call for the last time."""


class Deletion(NamedTuple):
    delete: Callable[[Controller], Awaitable[None]]
    missing: Reason
    """What it says behind its end."""


DELETIONS: Final = {
    "stream": Deletion(lambda c: c.streams.delete(STREAM), Reason.STREAM_NOT_FOUND),
    "group": Deletion(lambda c: c.groups.delete(GROUP, "u"), Reason.GROUP_NOT_FOUND),
    "table": Deletion(lambda c: c.key_value_tables.delete(TABLE), Reason.TABLE_NOT_FOUND),
    "scope": Deletion(lambda c: c.scopes.delete_recursively("s"), Reason.SCOPE_NOT_FOUND),
}


async def prepare(controller: Controller) -> None:
    await controller.scopes.create(STREAM.scope)
    await controller.streams.create(STREAM, TWO)
    subscriber = GroupConfiguration(uuid="u", retention=1, starting=((STREAM, {}),))
    await controller.groups.create(GROUP, subscriber)
    await controller.key_value_tables.create(TABLE, KeyValueTableConfiguration(2, 4, 4, 0))
    await controller.streams.seal(STREAM)


async def writes_of(deletion: Deletion) -> int:
    process = FakeProcess(FakeDisk())
    async with running(process) as controller:
        await prepare(controller)
        before = process.changes
        await deletion.delete(controller)
        return process.changes - before


async def fail(controller: Controller, process: FakeProcess, deletion: Deletion, at: int) -> None:
    await prepare(controller)
    process.fail_at = process.changes + at
    with pytest.raises(TierUnavailableError):
        await deletion.delete(controller)


@pytest.mark.parametrize("name", DELETIONS)
@pytest.mark.parametrize("restarts", [False, True])
def test_it_has_its_answer(name: str, restarts: bool) -> None:
    deletion = DELETIONS[name]

    async def answered(controller: Controller) -> None:
        await asyncio.sleep(LATEST_S)
        await deletion.delete(controller)
        async with refused(deletion.missing):
            await deletion.delete(controller)

    async def main(at: int) -> None:
        process = FakeProcess(FakeDisk())
        async with running(process) as controller:
            await fail(controller, process, deletion, at)
            if not restarts:
                await answered(controller)
        if restarts:
            async with running(FakeProcess(process.disk)) as controller:
                await answered(controller)

    writes = run_virtual(writes_of(deletion))
    assert writes > 1
    for at in range(1, writes + 1):
        run_virtual(main(at))


@pytest.mark.parametrize("name", DELETIONS)
def test_without_its_client_it_ends_after_a_minute(name: str) -> None:
    deletion = DELETIONS[name]

    async def main() -> None:
        process = FakeProcess(FakeDisk())
        async with running(process) as controller:
            await fail(controller, process, deletion, 2)
            await asyncio.sleep(FINISH_REPEATED_S + 1)
            async with refused(deletion.missing):
                await deletion.delete(controller)

    run_virtual(main())


QUESTIONS: Final[tuple[Callable[[Controller], Awaitable[object]], ...]] = (
    lambda c: c.streams.current(STREAM),
    lambda c: c.streams.epoch(STREAM, 0),
    lambda c: c.streams.head(STREAM),
    lambda c: c.streams.successors(STREAM, 0),
    lambda c: c.streams.between(STREAM, {}, {}),
)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_stream_that_is_being_deleted_is_none(
    question: Callable[[Controller], Awaitable[object]],
) -> None:
    deletion = DELETIONS["stream"]

    async def main(at: int) -> None:
        process = FakeProcess(FakeDisk())
        async with running(process) as controller:
            await fail(controller, process, deletion, at)
            assert not await controller.streams.exists(STREAM)
            assert STREAM not in await controller.streams.page(STREAM.scope, "", 10)
            async with refused(Reason.STREAM_NOT_FOUND):
                await question(controller)

    for at in range(2, run_virtual(writes_of(deletion)) + 1):
        run_virtual(main(at))


class SlowTables(FakeTables):
    """The next scan takes so many turns."""

    turns = 0

    async def scan(self, table: str, after: bytes, limit: int) -> list[MetadataRow]:
        turns, self.turns = self.turns, 0
        for _ in range(turns):
            await asyncio.sleep(0)
        return await super().scan(table, after, limit)


@pytest.mark.parametrize("question", QUESTIONS[1:])
def test_a_question_beside_a_deletion_has_an_answer(
    question: Callable[[Controller], Awaitable[object]],
) -> None:
    async def main(turns: int) -> bool:
        process = FakeProcess(FakeDisk())
        tables = SlowTables(process)
        async with running(process, tables) as controller:
            await prepare(controller)

            async def ask() -> bool:
                tables.turns = turns
                try:
                    await question(controller)
                except RefusedRequestError as error:
                    assert error.reason is Reason.STREAM_NOT_FOUND  # noqa: PT017
                    return False
                return True

            asked, _ = await asyncio.gather(ask(), controller.streams.delete(STREAM))
            return asked

    assert {run_virtual(main(turns)) for turns in range(100)} == {False, True}


@pytest.mark.parametrize("turns", range(0, 80, 5))
def test_two_that_end_one_deletion_leave_a_new_scope_of_the_name_alone(turns: int) -> None:
    async def create_anew(controller: Controller) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        await controller.scopes.delete_recursively("s")
        await controller.scopes.create("s")
        await controller.streams.create(STREAM, TWO)

    async def main() -> None:
        process = FakeProcess(FakeDisk())
        async with running(process) as controller:
            await fail(controller, process, DELETIONS["scope"], 2)
            await asyncio.gather(controller.scopes.finish("s"), create_anew(controller))
            assert len(await controller.streams.current(STREAM)) == 2

    run_virtual(main())


@pytest.mark.parametrize("turns", range(6))
def test_a_late_end_of_one_deletion_leaves_the_next_one_pending(turns: int) -> None:
    """So that a process which crashes in it leaves it to the next."""

    async def main(crash: int) -> None:
        async def after(count: int) -> None:
            for _ in range(count):
                await asyncio.sleep(0)

        async def end(controller: Controller) -> None:
            await after(turns)
            await controller.scopes.finish("s")

        async def die(process: FakeProcess) -> None:
            await after(crash)
            process.dead = True

        process = FakeProcess(FakeDisk())
        async with running(process) as controller:
            await prepare(controller)
            deletion = controller.scopes.delete_recursively("s")
            tasks = (deletion, end(controller), die(process))
            await asyncio.gather(*tasks, return_exceptions=True)
        async with running(FakeProcess(process.disk)) as controller:
            await asyncio.sleep(FINISH_REPEATED_S + 1)
            assert await controller.scopes.exists("s") or b"scope/s" not in process.disk.rows

    for crash in range(1, 40):
        run_virtual(main(crash))
