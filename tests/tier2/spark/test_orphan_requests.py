"""Orphans that owners are asked to delete: tasks put the requests, the driver counts answers and
holds no names.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore import blocking
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import TINY
from tests.support.loop_clock import LoopClock
from tests.support.suites import share, slow
from tests.tier2.spark.reconcile_dry import LocalFrame, LocalSpark, found, handed_to_driver
from tests.tier2.spark.reconcile_world import DAY_S
from tier2.mailbox.mailbox import list_messages, put_answer, read_message
from tier2.mailbox.messages import ORPHAN_NAMES_MAX, Answer, OrphanDeletionRequest
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.object_names import MessageKey, object_name
from tier2.spark.common.command_options import Exit
from tier2.spark.reconcile import found_classes, orphan_requests, second_scan
from tier2.spark.reconcile import job as reconcile_job
from tier2.spark.reconcile.findings import FindingKind, FindingRow, findings_table
from tier2.spark.reconcile.job import reconcile
from tier2.spark.reconcile.orphan_requests import (
    ASKED,
    NOT_ASKED,
    PENDING,
    SHOWN,
    Asking,
    OrphanOutcome,
    ask_owners,
    share_of,
)
from tier2.spark.reconcile.owners import NEWEST, REQUESTS_AT_ONCE, Owners
from tier2.spark.reconcile.report import summary_json, summary_text
from tier2.unique_ids import new_tagged_id, store_tag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUN = "00000000000000ab"
SHARDS = range(16, 32)

pytestmark = pytest.mark.timeout(
    300
)  # the first query of a session takes its time on a busy machine


class Beside:
    """A Tier 2 in virtual time, and owners that carry requests out."""

    def __init__(self) -> None:
        self.runtime = Runtime(clock=LoopClock(), random=Random(5), executor=inline_executor)
        self.storage = MemoryObjectStorage(self.runtime)
        self.answering = {0, 1, 2}
        self.left_alone: Sequence[str] = ()

    async def ask(self, orphans: dict[int, int], names: int = 65_536) -> list[dict[str, Any]]:
        findings = findings_table(
            FindingRow(FindingKind.ORPHAN, "", number, f"{number}-{each:06d}")
            for number, count in orphans.items()
            for each in range(count)
        )
        other = findings_table(
            [
                FindingRow(FindingKind.FOREIGN, "", None, "readme.txt"),
                FindingRow(FindingKind.MISSING, "", 0, "x"),
            ]
        )
        asking = Asking("t", 77, "", names)
        return await ask_owners(
            self.storage, asking, RUN, pa.concat_tables([other, findings]), SHARDS
        )

    def asking(self, timeout_s: float = 60.0) -> Owners:
        return Owners(self.storage, self.runtime, RUN, NEWEST, timeout_s)

    async def own(self) -> None:
        while True:
            await asyncio.sleep(7.0)
            for number in sorted(self.answering):
                for entry in await list_messages(self.storage, number):
                    if entry.message is not None and entry.answer is None:
                        await self.answer(entry.key)

    async def answer(self, key: MessageKey) -> None:
        message = await read_message(self.storage, key)
        assert isinstance(message, OrphanDeletionRequest)
        left = {name: "too young" for name in message.names if name in self.left_alone}
        made = [name for name in message.names if name not in left]
        await put_answer(
            self.storage,
            self.runtime,
            Answer(*key, "condemned", "", {"condemned": made, "left_alone": left}),
        )


def run(case: Callable[[Beside], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        beside = Beside()
        owning = asyncio.ensure_future(beside.own())
        try:
            await case(beside)
        finally:
            owning.cancel()
            await asyncio.gather(owning, return_exceptions=True)

    run_virtual(body())


def keys_of(rows: Sequence[dict[str, Any]]) -> dict[MessageKey, int]:
    return {
        MessageKey(row["container_id"], RUN, row["evidence"]): row["count"]
        for row in rows
        if row["counter"] == ASKED
    }


# --- what tasks ask -------------------------------------------------------------------------------


def test_a_task_asks_in_bounded_requests_for_its_share_and_counts_the_rest() -> None:
    async def case(beside: Beside) -> None:
        rows = await beside.ask({0: ORPHAN_NAMES_MAX + 5, 2: 3, 1: 2 * ORPHAN_NAMES_MAX}, 1500)
        counted = [(row["container_id"], row["counter"], row["count"]) for row in rows]
        assert counted == [
            (1, NOT_ASKED, 500),
            (0, ASKED, ORPHAN_NAMES_MAX),
            (0, ASKED, 5),
            (1, ASKED, ORPHAN_NAMES_MAX),
            (1, ASKED, 500),
            (2, ASKED, 3),
        ]
        for key, count in keys_of(rows).items():
            message = await read_message(beside.storage, key)
            assert isinstance(message, OrphanDeletionRequest)
            assert (len(message.names), message.older_than_ms) == (count, 77)
            assert all(name.startswith(f"{key.container_id}-") for name in message.names)

    run(case)


def test_a_task_that_is_run_again_asks_for_nothing_twice() -> None:
    async def case(beside: Beside) -> None:
        first = await beside.ask({0: 1200, 1: 1})
        assert await beside.ask({0: 1200, 1: 1}) == first
        # Whatever it finds by then, the first request stands, and is what is counted.
        later = keys_of(await beside.ask({0: 1100}))
        assert later.items() < keys_of(first).items()
        assert sum(later.values()) == 1200
        entries = [
            entry for number in (0, 1) for entry in await list_messages(beside.storage, number)
        ]
        assert len(entries) == 3
        message = await read_message(beside.storage, MessageKey(0, RUN, "condemn-t-10-01"))
        assert isinstance(message, OrphanDeletionRequest)
        assert len(message.names) == 200

    run(case)


def test_however_many_ranges_there_are_an_owner_is_asked_for_a_bounded_number() -> None:
    assert share_of(0) == share_of(1) == 65_536
    assert 257 * share_of(257) <= 65_536
    assert share_of(10_000) == 64


# --- what owners say ------------------------------------------------------------------------------


def test_answers_are_counted_by_container_and_outcome_with_a_sample_of_names() -> None:
    async def case(beside: Beside) -> None:
        beside.left_alone = [f"1-{number:06d}" for number in range(0, 2000, 2)]
        rows = await beside.ask({0: 1200, 1: 2000})
        first, second = await beside.asking().outcomes(keys_of(rows), {})
        assert first[:6] == (0, "condemned", "", 2, 1200, 1200)
        assert second[:6] == (1, "condemned", "", 2, 2000, 1000)
        assert (first.left_alone, second.left_alone) == ({}, {"too young": 1000})
        assert [len(first.shown), len(second.shown), len(second.shown_left)] == [SHOWN] * 3
        assert set(second.shown_left) <= set(beside.left_alone)
        assert not set(second.shown) & set(beside.left_alone)

    run(case)


def test_reasons_are_bounded_too_and_none_is_lost_of_the_count() -> None:
    async def case(beside: Beside) -> None:
        rows = await beside.ask({0: 2000})
        beside.answering.clear()
        for key in keys_of(rows):
            left = {f"{number}": f"reason {key.message_id} {number % 40}" for number in range(1000)}
            await put_answer(
                beside.storage, beside.runtime, Answer(*key, "condemned", "", {"left_alone": left})
            )
        (outcome,) = await beside.asking().outcomes(keys_of(rows), {})
        assert len(outcome.left_alone) == SHOWN + 1
        assert sum(outcome.left_alone.values()) == 2000

    run(case)


def test_a_request_without_an_answer_is_pending_and_stays() -> None:
    async def case(beside: Beside) -> None:
        beside.answering.clear()
        rows = await beside.ask({1: 1})
        (outcome,) = await beside.asking(20.0).outcomes(keys_of(rows), {})
        assert (outcome.verdict, outcome.requests, outcome.names) == (PENDING, 1, 1)
        assert "no answer within 20 s" in outcome.reason
        assert len(await list_messages(beside.storage, 1)) == 1

    run(case)


def test_who_is_silent_is_waited_for_once_and_who_answers_as_long_as_it_takes() -> None:
    async def case(beside: Beside) -> None:
        beside.answering.discard(1)
        loop = asyncio.get_running_loop()
        answer = beside.answer

        async def slowly(key: MessageKey) -> None:
            await asyncio.sleep(1.0)
            await answer(key)

        beside.answer = slowly  # type: ignore[method-assign]
        many = 3 * REQUESTS_AT_ONCE * ORPHAN_NAMES_MAX
        rows = await beside.ask({0: many, 1: many})
        begun = loop.time()
        told = await beside.asking(30.0).outcomes(keys_of(rows), {1: 5})
        done, later, silent = told
        assert (done.verdict, done.condemned, done.requests) == (
            "condemned",
            many,
            3 * REQUESTS_AT_ONCE,
        )
        assert loop.time() - begun > 3 * REQUESTS_AT_ONCE
        assert (later.verdict, later.names) == (NOT_ASKED, 5)
        assert (silent.verdict, silent.names) == (PENDING, many)

    run(case)


# --- beside an owner ------------------------------------------------------------------------------

LIVE: dict[str, Any] = {
    **TINY,
    "mailbox_poll_interval_s": 0.05,
    "orphan_sweep_interval_s": 0.0,
    "deletion_lag_s": 0.0,
}
ORPHANS = 70


@pytest.fixture
def live(tmp_path: Path) -> Iterator[blocking.SegmentStore]:
    location = tmp_path / "store"
    blocking.open(location, containers=2, **LIVE).close()
    with blocking.open(location, **LIVE) as store:
        store.create_segment("a")
        yield store


def left_behind(folder: Path, store_id: str, count: int = ORPHANS) -> set[Path]:
    """Objects of both containers that a crash left, by an epoch before."""
    rng, moment = Random(8), time.time() - 10 * DAY_S
    made = set()
    for number in range(count):
        path = folder / object_name(number % 2, 1, "flush", new_tagged_id(store_tag(store_id), rng))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"left by a crash")
        os.utime(path, (moment, moment))
        made.add(path)
    return made


def until_deleted(paths: set[Path], *, but_for: int = 0) -> None:
    deadline = time.monotonic() + 240
    while sum(path.exists() for path in paths) > but_for:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(("held", "slices"), share([(0, 4), (0, 1), (1000, 1)], 2, 5))
def test_orphans_are_marked_for_deletion_and_the_driver_is_handed_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int, slices: int
) -> None:
    monkeypatch.setattr(second_scan, "SLICE_SUSPECTS", -(-ORPHANS // slices))
    monkeypatch.setattr(reconcile_job, "SUSPECTS_HELD", held)
    monkeypatch.setattr(found_classes.shown_by_each, "__defaults__", (0,))
    monkeypatch.setattr(found_classes, "FINDINGS_SHOWN_MIN", 1)
    handed = handed_to_driver(monkeypatch)
    location, folder = tmp_path / "store", tmp_path / "store" / "tier2"
    blocking.open(location, containers=2, **LIVE).close()
    # What is marked for deletion stays for now: a task that is run again finds it again.
    with blocking.open(location, **{**LIVE, "deletion_lag_s": 1000.0}) as store:
        store.create_segment("a")
        paths = left_behind(folder, str(store.stats()["store_id"]))
        result = reconcile(
            LocalSpark(lost=2).as_spark(),
            folder.as_uri(),
            delete_orphans=True,
            execute=True,
            tasks=1,
            run_id=RUN,
        )
        told = tuple(handed)
        again = reconcile(
            LocalSpark().as_spark(), folder.as_uri(), delete_orphans=True, execute=True, run_id=RUN
        )
    assert [
        (each.container_id, each.verdict, each.names, each.condemned) for each in result.condemned
    ] == [
        (0, "condemned", ORPHANS // 2, ORPHANS // 2),
        (1, "condemned", ORPHANS // 2, ORPHANS // 2),
    ]
    assert (result.verdict, result.summary.orphans) == (Exit.FINDINGS, ORPHANS)
    named = {"orphan", "waiting_for_deletion"}
    rows = [
        row
        for table in told
        for row in table.to_pylist()
        if row.get("kind") in named and row["object"]
    ]
    assert len(rows) == slices
    assert (again.condemned, again.summary.orphans, again.verdict) == ((), 0, Exit.NOTHING)
    assert {kind.kind: kind.number for kind in again.summary.kinds} == {
        "waiting_for_deletion": ORPHANS
    }
    assert all(path.exists() for path in paths)


def test_what_a_run_does_not_ask_for_is_reported_and_goes_with_later_runs(
    tmp_path: Path, live: blocking.SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphan_requests, "ASKED_NAMES_MIN", 20)
    monkeypatch.setattr(share_of, "__defaults__", (0,))
    folder = tmp_path / "store" / "tier2"
    paths = left_behind(folder, str(live.stats()["store_id"]))

    def one_run() -> tuple[int, int]:
        result = reconcile(
            LocalSpark().as_spark(), folder.as_uri(), delete_orphans=True, execute=True, tasks=1
        )
        assert result.verdict is (Exit.FINDINGS if result.summary.orphans else Exit.NOTHING)
        left = sum(each.names for each in result.condemned if each.verdict == NOT_ASKED)
        assert ("run again" in summary_text(result.summary, result.condemned)) is (left > 0)
        said = summary_json(result.summary, result.condemned)["condemned"]
        assert sum(each["names"] for each in said) == result.summary.orphans
        return sum(each.condemned for each in result.condemned), left

    for condemned, left in ((40, 30), (30, 0), (0, 0)):
        assert one_run() == (condemned, left)
        until_deleted(paths, but_for=left)


def test_an_owner_that_goes_before_it_answers_is_reported_and_the_next_one_carries_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = tmp_path / "store"
    blocking.open(location, containers=2, **LIVE).close()
    stores = [blocking.open(location, **LIVE)]
    paths = left_behind(location / "tier2", str(stores[0].stats()["store_id"]))
    steps: list[int] = []
    wait_for_outcomes = Owners.outcomes

    async def outcomes_soon(self: Owners, *asked: Any) -> list[OrphanOutcome]:
        """No owner answers; for its snapshots a busy owner has all the time it needs."""
        return await wait_for_outcomes(replace(self, timeout_s=0.2), *asked)

    monkeypatch.setattr(Owners, "outcomes", outcomes_soon)

    def stop() -> None:
        """Behind the listing, and snapshot B, comes the query of the verdicts."""
        steps.append(1)

    class Stopping(LocalSpark):
        def createDataFrame(  # noqa: N802 - Spark's
            self, table: pa.Table, schema: str = ""
        ) -> LocalFrame:
            if steps and stores:
                stores.pop().close()
            return super().createDataFrame(table, schema)

    try:
        result = reconcile(
            Stopping(then=stop).as_spark(),
            (location / "tier2").as_uri(),
            delete_orphans=True,
            execute=True,
            tasks=1,
        )
    finally:
        for store in stores:
            store.close()
    assert result.verdict is Exit.UNDECIDED
    assert [(each.verdict, each.names) for each in result.condemned] == [
        (PENDING, ORPHANS // 2)
    ] * 2
    assert all(path.exists() for path in paths)
    with blocking.open(location, **LIVE):
        until_deleted(paths)


@slow(3)
@pytest.mark.spark_versions("orphans")
def test_by_spark_it_is_the_same(
    spark: SparkSession,
    tmp_path: Path,
    live: blocking.SegmentStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconcile_job, "SUSPECTS_HELD", 3)
    folder = tmp_path / "store" / "tier2"
    paths = left_behind(folder, str(live.stats()["store_id"]))
    result = reconcile(spark, folder.as_uri(), delete_orphans=True, execute=True, tasks=8)
    assert sum(each.condemned for each in result.condemned) == len(paths)
    assert {name for kind, name in found(result.table)} == {
        str(path.relative_to(folder)) for path in paths
    }
    until_deleted(paths)
