"""Retention, where a write of its rows has no answer: it may be done, or not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.errors import AppendOutcomeUnknownError
from segmentstore.controller.metadata_tables import MetadataRow
from segmentstore.controller.stream_model import StreamConfiguration, StreamRetention
from tests.controller.controller_world import STREAM, running
from tests.controller.fake_store import FakeDisk, FakeProcess, FakeTables

PERIOD_S = 1800
HOUR_MS = 3_600_000
SEGMENT = "s/a/0.#epoch.0"


class LostAnswers(FakeTables):
    """The next write of a row whose key begins as in `lost` has no answer."""

    def __init__(self, process: FakeProcess, *, is_done: bool) -> None:
        super().__init__(process)
        self.lost: list[bytes] = []
        self._is_done = is_done

    async def update(self, table: str, rows: Sequence[MetadataRow]) -> list[int]:
        if not any(each.key.startswith(tuple(self.lost)) for each in rows):
            return await super().update(table, rows)
        self.lost.clear()
        if self._is_done:
            await super().update(table, rows)
        raise AppendOutcomeUnknownError(0)


@pytest.mark.parametrize("policy", [(1, HOUR_MS), (2, 20)], ids=["by time", "by size"])
@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("lost", [b"cut/", b"stream/"], ids=["a tail", "the truncation"])
def test_a_pass_whose_write_has_no_answer_ends_and_the_next_one_goes_by_what_is_there(
    lost: bytes, *, is_done: bool, policy: tuple[int, int]
) -> None:
    async def main() -> None:
        process = FakeProcess(disk := FakeDisk())
        tables = LostAnswers(process, is_done=is_done)
        configuration = StreamConfiguration(retention=StreamRetention(*policy, 0))

        async def period() -> int:
            disk.write(SEGMENT, bytes(10))
            await asyncio.sleep(PERIOD_S)
            return disk.segments[SEGMENT].start

        async with running(process, tables=tables) as controller:
            await controller.scopes.create(STREAM.scope)
            await controller.streams.create(STREAM, configuration)
            await asyncio.sleep(PERIOD_S / 2)
            assert [await period() for _ in range(2)] == [0, 0]
            tables.lost.append(lost)
            # It would truncate at 10, which is refused by a tail that is perhaps not there.
            assert await period() == 0
            assert not tables.lost
            # As if there had been an answer.
            assert await period() == 20
            assert (await controller.streams.record(STREAM)).cut == {0: 20}
            recorded = [
                json.loads(value)["bytes_before"]
                for key, (_, value) in disk.rows.items()
                if key.startswith(b"cut/")
            ]
            is_there = is_done or lost != b"cut/"
            assert recorded == ([20, 30, 40] if is_there else [20, 40])
            times = [int(key[-15:]) for key in disk.rows if key.startswith(b"cut/")]
            assert times[-1] - times[0] == pytest.approx(2 * PERIOD_S * 1000, abs=10)
            assert await period() == (30 if is_there else 20)

    run_virtual(main())
