"""An epoch's rows land whole and once: tasks that fail, run twice, are cut otherwise; drivers that
die; a store that restarts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

import tier2.spark.sink.epoch_commit
from segmentstore import (
    ContainerStoppedError,
    InvalidNameError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStore,
)
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import open_tiny, read_all, run, until
from tests.support.suites import share, slow
from tests.tier2.spark.test_store_client import tries_for
from tier2.spark.common.store_client import StoreClient, StoreNotServedError
from tier2.spark.sink.epoch_commit import (
    EpochCommitError,
    StagingName,
    TaskWritten,
    WriteIdentity,
    clear,
    commit_epoch,
    give_up,
    parse_staging_name,
    staging_name,
    write_partition,
    writer_id_of,
)
from tier2.spark.sink.rows import RowLayout

LAYOUT = RowLayout("payload", has_segment_column=True, segment=None, framing="lines")
QUERY = writer_id_of("a query")


def identity(epoch: int, *, lasting: bool = True) -> WriteIdentity:
    return WriteIdentity(QUERY, epoch, lasting)


def batch(*rows: tuple[str, str]) -> pa.RecordBatch:
    names, payloads = (
        pa.array([name for name, _ in rows]),
        pa.array([payload for _, payload in rows]),
    )
    return pa.record_batch([names, payloads], names=["segment", "payload"])


@asynccontextmanager
async def served(place: Path) -> AsyncIterator[tuple[SegmentStore, StoreClient]]:
    """A store, and a client of it."""
    folder = place / "s"
    async with (
        open_tiny(folder) as store,
        StoreClient(str(folder)) as client,
    ):
        yield store, client


async def prepare(
    client: StoreClient,
    who: WriteIdentity,
    *tasks: Sequence[tuple[str, str]],
    inline: int = 40,
    attempt: int = 0,
) -> list[TaskWritten]:
    runtime = Runtime(random=random.Random(attempt * 1000 + who.epoch))
    return [
        await write_partition(
            client,
            who,
            LAYOUT,
            # Two rows a batch.
            [batch(*rows[start : start + 2]) for start in range(0, len(rows), 2)],
            runtime=runtime,
            partition=number,
            attempt=attempt,
            inline_bytes=inline,
        )
        for number, rows in enumerate(tasks)
    ]


async def names_in(store: SegmentStore) -> list[str]:
    return [info.name async for info in store.list_segments()]


def long_rows(mark: str, count: int, segment: str = "x") -> list[tuple[str, str]]:
    return [(segment, f"{mark}-{number:04}") for number in range(count)]


def lines(*tasks: Sequence[tuple[str, str]], segment: str = "x") -> bytes:
    return "".join(
        f"{payload}\n" for rows in tasks for name, payload in rows if name == segment
    ).encode()


Tasks = tuple[list[tuple[str, str]], ...]
SMALL: Tasks = ([("x", "one"), ("y", "two")], [], [("x", "three")])
MIXED: Tasks = (
    long_rows("a", 3),
    long_rows("b", 700),
    [*long_rows("c", 2), *long_rows("c", 90, "y")],
)
"""Something of everything: with a bound of 40 bytes tasks hand over, stage one segment, and stage
two; 700 rows are two appends.
"""


@pytest.mark.parametrize(("tasks", "lasting"), share(product([SMALL, MIXED], [True, False]), 3, 4))
def test_an_epoch_is_committed_in_the_order_of_its_partitions(
    tmp_path: Path, tasks: Tasks, lasting: bool
) -> None:
    async def main() -> None:
        async with served(tmp_path) as (store, client):
            who = identity(0, lasting=lasting)
            reports = await prepare(client, who, *tasks)
            committed = await commit_epoch(client, who, reports[::-1], runtime=Runtime())
            assert committed.rows == sum(map(len, tasks))
            assert committed.offsets == {"x": 0, "y": 0}
            assert await read_all(store, "x") == lines(*tasks)
            assert await read_all(store, "y") == lines(*tasks, segment="y")
            assert committed.bytes == len(lines(*tasks)) + len(lines(*tasks, segment="y"))
            assert await names_in(store) == ["x", "y"]

    run(main())


@pytest.mark.parametrize(("first", "second"), share(product([MIXED, SMALL], [SMALL, MIXED]), 3, 4))
def test_an_epoch_that_was_committed_is_dropped_however_it_is_cut_the_next_time(
    tmp_path: Path, first: Tasks, second: Tasks
) -> None:
    async def main() -> None:
        async with served(tmp_path) as (store, client):
            before = await prepare(client, identity(4), *second)
            reports = await prepare(client, identity(4), *first, attempt=1)
            await commit_epoch(client, identity(4), reports, runtime=Runtime())
            # Prepared before it had landed, by another driver; and behind it.
            await commit_epoch(client, identity(4), before, runtime=Runtime())
            again = await prepare(client, identity(4), *second, attempt=2)
            assert all(part.committed for report in again for part in report.parts.values())
            committed = await commit_epoch(client, identity(4), again, runtime=Runtime())
            assert (committed.offsets, committed.bytes) == ({"x": None, "y": None}, 0)
            old = await prepare(client, identity(3), *second)
            await commit_epoch(client, identity(3), old, runtime=Runtime())
            assert await read_all(store, "x") == lines(*first)
            assert await names_in(store) == ["x", "y"]
            await commit_epoch(
                client, identity(5), await prepare(client, identity(5), *second), runtime=Runtime()
            )
            assert await read_all(store, "x") == lines(*first, *second)

    run(main())


@pytest.mark.parametrize("tasks", [SMALL, pytest.param(MIXED, marks=slow(7))])
def test_two_drivers_at_once_commit_one_epoch_once(tmp_path: Path, tasks: Tasks) -> None:
    async def main() -> None:
        folder = str(tmp_path / "s")
        async with (
            open_tiny(folder) as store,
            StoreClient(folder) as one,
            StoreClient(folder) as two,
        ):
            for epoch in range(5):
                reports = [
                    await prepare(one, identity(epoch), *tasks, attempt=number)
                    for number in range(2)
                ]
                outcomes = await asyncio.gather(
                    commit_epoch(one, identity(epoch), reports[0], runtime=Runtime()),
                    commit_epoch(two, identity(epoch), reports[1], runtime=Runtime()),
                    return_exceptions=True,
                )
                # The slower one may find that the faster has cleared away what it staged.
                for outcome in outcomes:
                    if isinstance(outcome, BaseException):
                        assert isinstance(outcome, SegmentNotFoundError | EpochCommitError), outcome
                await commit_epoch(
                    one,
                    identity(epoch),
                    await prepare(one, identity(epoch), *tasks, attempt=9),
                    runtime=Runtime(),
                )
                assert await read_all(store, "x") == lines(*tasks) * (epoch + 1)
            assert await names_in(store) == ["x", "y"]

    run(main())


def test_what_failed_attempts_staged_goes_with_the_epoch(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as (store, client):
            await prepare(client, identity(0), *MIXED)
            await prepare(client, identity(1), *MIXED)
            await prepare(client, identity(2), long_rows("later", 100))
            assert len(await names_in(store)) >= 5
            reports = await prepare(client, identity(1), *MIXED, attempt=1)
            await commit_epoch(client, identity(1), reports, runtime=Runtime())
            left = [
                parse_staging_name(name) for name in await names_in(store) if name not in {"x", "y"}
            ]
            assert left == [StagingName("x", QUERY, 2)]

    run(main())


def test_a_task_that_fails_in_the_middle_takes_away_what_it_staged(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as (store, client):

            def broken() -> Any:
                yield batch(*long_rows("a", 300))
                assert client._sent
                raise OSError(5, "the input is gone")

            with pytest.raises(OSError, match="input is gone"):
                await write_partition(
                    client, identity(0), LAYOUT, broken(), runtime=Runtime(), inline_bytes=10
                )
            assert await names_in(store) == []

    run(main())


def test_a_job_that_is_given_up_takes_away_what_its_tasks_staged(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as (store, client):
            reports = await prepare(client, identity(0, lasting=False), *MIXED)
            await give_up(client, reports)
            assert await names_in(store) == []
            with pytest.raises((SegmentNotFoundError, EpochCommitError)):
                await commit_epoch(client, identity(0, lasting=False), reports, runtime=Runtime())
            assert await read_all(store, "x") == b""

    run(main())


def test_a_staged_segment_that_is_not_what_was_reported_commits_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as (store, client):
            reports = await prepare(client, identity(0), long_rows("a", 100))
            await store.append(reports[0].parts["x"].staged, b"something else")
            with pytest.raises(EpochCommitError, match=r"700 bytes .* and 714 are there"):
                await commit_epoch(client, identity(0), reports, runtime=Runtime())
            assert await read_all(store, "x") == b""

    run(main())


def test_segments_are_created_only_if_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as (store, client):
            reports = await prepare(client, identity(0), [("x", "one")])
            with pytest.raises(SegmentNotFoundError, match="'x' does not exist"):
                await commit_epoch(client, identity(0), reports, runtime=Runtime(), create=False)
            assert await names_in(store) == []

    run(main())


@pytest.mark.parametrize("lasting", [True, False])
def test_a_commit_that_is_refused_leaves_nothing_that_it_has_joined(
    tmp_path: Path, lasting: bool
) -> None:
    async def main() -> None:
        async with served(tmp_path) as (store, client):
            await store.create_segment("x")
            await store.seal("x")
            who = identity(0, lasting=lasting)
            for target, error in (("x", SegmentSealedError), ("not there", SegmentNotFoundError)):
                tasks = (long_rows("a", 100, target), [(target, "b")])
                reports = await prepare(client, who, *tasks)
                with pytest.raises(error):
                    await commit_epoch(client, who, reports, runtime=Runtime(), create=False)
                await give_up(client, reports)  # As Spark has it done.
            reports = await prepare(client, who, long_rows("a", 100, "y"), [("y", "b")])
            await store.delete(reports[0].parts["y"].staged)
            with pytest.raises(SegmentNotFoundError):
                await commit_epoch(client, who, reports, runtime=Runtime())
            assert await names_in(store) == ["x", "y"]

    run(main())


def test_a_segment_deleted_between_two_tasks_is_noticed(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as (store, client):
            await commit_epoch(
                client, identity(0), await prepare(client, identity(0), *SMALL), runtime=Runtime()
            )
            reports = await prepare(client, identity(0), *SMALL)
            await store.delete("x")
            with pytest.raises(EpochCommitError, match="deleted meanwhile"):
                await commit_epoch(client, identity(0), reports, runtime=Runtime())

    run(main())


def test_tasks_and_drivers_outlive_restarts_of_the_store(tmp_path: Path) -> None:
    """Epoch after epoch, some run twice, while the store is closed and opened all the time."""

    async def main() -> None:
        folder = tmp_path / "s"
        store = await open_tiny(folder)
        expected = b""
        steps = 0

        async def write() -> None:
            nonlocal expected, steps
            async with StoreClient(str(folder)) as client:
                for epoch in range(8):
                    tasks = (
                        long_rows(f"{epoch}a", 60 * (epoch % 3)),
                        long_rows(f"{epoch}b", 5),
                        long_rows(f"{epoch}c", 200),
                    )
                    for attempt in range(1 + epoch % 2):
                        reports = await prepare(client, identity(epoch), *tasks, attempt=attempt)
                        steps += 1
                        await commit_epoch(client, identity(epoch), reports, runtime=Runtime())
                        steps += 1
                    expected += lines(*tasks)

        async def restart() -> None:
            nonlocal store
            before = steps
            await asyncio.sleep(rng.uniform(0.02, 0.2))
            await store.close()
            store = await open_tiny(folder)
            # Where an opening takes longer than the time between two, nothing would ever end.
            await until(lambda: steps > before or writing.done())

        writing = asyncio.ensure_future(write())
        rng = random.Random(11)
        try:
            while not writing.done():
                await restart()
            await writing
            assert await read_all(store, "x") == expected
            assert await names_in(store) == ["x"]
        finally:
            await store.close()

    run(main())


def test_a_store_that_stays_away_fails_the_task(tmp_path: Path) -> None:
    async def main() -> None:
        folder = tmp_path / "s"
        store = await open_tiny(folder)
        async with StoreClient(str(folder)) as client:
            await store.close()
            tries_for(client, 0.2)
            with pytest.raises(StoreNotServedError, match="does not answer"):
                await prepare(client, identity(0), *MIXED)

    run(main())


def test_a_store_that_goes_away_in_the_middle_is_what_the_task_fails_with(tmp_path: Path) -> None:
    async def main() -> None:
        folder = tmp_path / "s"
        store = await open_tiny(folder)
        async with StoreClient(str(folder)) as client:
            await client.create("x")
            await client.send("x", QUERY, 0, b"on its way when the store goes")
            await store.close()
            client._hang_up()
            tries_for(client, 0.2)
            for _ in range(2):
                with pytest.raises(StoreNotServedError, match="does not answer"):
                    await client.send("x", QUERY, 1, b"and one more")
            with pytest.raises(StoreNotServedError, match="does not answer"):
                await client.delete("x")

    run(main())


def test_what_waits_for_many_staged_segments_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier2.spark.sink.epoch_commit, "STAGED_WAITING_BYTES", 200)
    rows = [(f"x{number % 20}", f"{number:07}") for number in range(400)]
    most = 0

    class Watched(tier2.spark.sink.epoch_commit._Task):
        async def add(self, segment: str, data: bytes) -> None:
            nonlocal most
            await super().add(segment, data)
            waiting = sum(each.size for each in self.segments.values() if each.staged)
            assert waiting == self._staged_waiting
            most = max(most, waiting)

    monkeypatch.setattr(tier2.spark.sink.epoch_commit, "_Task", Watched)

    async def main() -> None:
        async with served(tmp_path) as (store, client):
            reports = await prepare(client, identity(0), rows, inline=10)
            await commit_epoch(client, identity(0), reports, runtime=Runtime())
            for name in {name for name, _ in rows}:
                assert await read_all(store, name) == lines(rows, segment=name)

    run(main())
    assert 0 < most <= 200


def test_two_reports_of_one_partition_commit_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as (store, client):
            reports = await prepare(client, identity(0), *SMALL)
            with pytest.raises(EpochCommitError, match="two reports of one partition"):
                await commit_epoch(client, identity(0), [*reports, reports[0]], runtime=Runtime())
            assert await names_in(store) == []

    run(main())


@pytest.mark.parametrize("lasting", [True, False])
def test_an_epoch_is_committed_whether_or_not_its_leftovers_can_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasting: bool
) -> None:
    async def refused(client: StoreClient, name: str) -> bool:
        raise ContainerStoppedError(0)

    async def main() -> None:
        async with served(tmp_path) as (store, client):
            who = identity(0, lasting=lasting)
            await prepare(client, who, *MIXED)
            reports = await prepare(client, who, *MIXED, attempt=1)
            monkeypatch.setattr(StoreClient, "delete", refused)
            await commit_epoch(client, who, reports, runtime=Runtime())
            assert await read_all(store, "x") == lines(*MIXED)
            assert await read_all(store, "y") == lines(*MIXED, segment="y")

    run(main())


def test_clearing_leaves_other_writers_and_other_segments_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as (store, client):
            other = WriteIdentity(writer_id_of("another"), 0, lasting=True)
            kept = [
                staging_name("x", other, UUID(int=1)),
                staging_name("x", identity(8), UUID(int=2)),
                staging_name("x/y", identity(1), UUID(int=3)),
                "x#transient." + QUERY.hex,
            ]
            for name in [*kept, staging_name("x", identity(7), UUID(int=4))]:
                await client.create(name)
            await clear(client, identity(7), "x")
            assert await names_in(store) == sorted(kept)

    run(main())


def test_the_name_of_what_is_staged_says_whose_it_is() -> None:
    name = staging_name("logs/a#b\nc", identity(258), UUID(int=7))
    assert parse_staging_name(name) == StagingName("logs/a#b\nc", QUERY, 258)
    assert parse_staging_name("logs/a") is None
    assert parse_staging_name("a#transient.0123") is None
    with pytest.raises(InvalidNameError, match="16 bytes too long"):
        staging_name("n" * 949, identity(0), UUID(int=1))
