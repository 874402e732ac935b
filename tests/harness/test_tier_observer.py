"""What the tiers hold is seen as it is: in a simulated store, and in real files whose bytes the
test has changed.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

import segmentstore
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from recovery.harness.checkers.all_checks import check_history
from recovery.harness.history import History, ProcessRun
from recovery.harness.observer import observe
from recovery.harness.recorder import RecordedStore
from recovery.harness.runs.directed import BUSY
from recovery.harness.runs.plan import Tier1, draw_plan, on_bookkeeper
from recovery.harness.runs.scenario import Scenario
from recovery.harness.seen_tiers import SeenTiers
from recovery.harness.tier_observer import file_probe, observe_tiers
from recovery.stopped_catalogs import StoppedCatalogs
from segmentstore.contracts.runtime import Runtime
from segmentstore.store_folder import log_directory
from tests.store.harness import TINY
from tier2.locations import open_object_storage


@pytest.mark.parametrize("tier1", ["file", "ledger", "bookkeeper"])
def test_a_run_checks_its_tiers_and_in_the_end_every_byte_of_them(tier1: Tier1) -> None:
    plan = draw_plan("looks", "tier2", cycles=6)
    plan = on_bookkeeper(plan) if tier1 == "bookkeeper" else replace(plan, tier1=tier1)
    plan = replace(
        plan,
        rates={},
        settings={**plan.settings, **BUSY},
        cycles=tuple(replace(cycle, checked=True, rot="", clock="") for cycle in plan.cycles),
    )
    result = Scenario(plan).run()
    assert result.violations == []
    looks = result.history.tiers
    assert (
        len(looks) > len(plan.cycles) / 2
    )  # where there is no store yet there is nothing to check
    assert {look.in_doubt for look in looks} == {tier1 == "bookkeeper"}
    assert [look.settled for look in looks] == [False] * (len(looks) - 1) + [True]
    assert any(log.held for look in looks for log in look.logs.values())
    assert max(log.first for look in looks for log in look.logs.values()) > 1, (
        "no log was truncated"
    )
    contents = [
        chunk.content
        for log in looks[-1].logs.values()
        for seg in log.segments.values()
        for chunk in seg.chunks
    ]
    assert contents
    assert all(contents)


class Files:
    """A store in a folder, with the answers its clients got; no process has it open between two
    calls.
    """

    def __init__(self, root: Path) -> None:
        self.root = root / "store"
        self.tier2 = root / "tier2"
        self.history = History()

    async def fill(self) -> None:
        options = {**TINY, "containers": 1, "tier2": self.tier2.as_uri(), "deletion_lag_s": 1000.0}
        async with segmentstore.open(self.root, **options) as store:
            stamp = self.history.next_stamp
            self.history.process_runs.append(ProcessRun(0, "process", stamp(), opened=stamp()))
            recorded = RecordedStore(store, self.history, 0, "client")
            await recorded.create("a")
            for _ in range(20):
                await recorded.append("a", (30,))
            await recorded.flush()
            await observe(store, self.history, 0)

    async def look(self) -> SeenTiers:
        runtime = Runtime()
        storage = open_object_storage(self.tier2.as_uri(), runtime)
        try:
            logs = {0: file_probe(log_directory(str(self.root), 0), runtime.disk)}
            catalogs = StoppedCatalogs(
                lambda _number: str(self.root / "catalog"), "", runtime, RocksDbKeyStore
            )
            return await observe_tiers(
                self.history, logs, storage, catalogs, runtime, deep=True, settled=True
            )
        finally:
            await storage.close()


def test_of_real_files_every_chunk_is_seen_with_its_bytes(tmp_path: Path) -> None:
    files = Files(tmp_path)
    asyncio.run(files.fill())
    look = asyncio.run(files.look())
    (segment,) = look.logs[0].segments.values()
    data = b"".join(chunk.content or b"" for chunk in segment.chunks)
    assert data == files.history.observations[-1].segments["a"].content
    assert look.listed.keys() >= look.logs[0].objects.keys() > set()
    assert check_history(files.history) == []


def test_of_a_damaged_object_no_bytes_are_seen_and_of_a_lost_one_none_is_listed(
    tmp_path: Path,
) -> None:
    files = Files(tmp_path)
    asyncio.run(files.fill())
    look = asyncio.run(files.look())
    damaged, lost = list(look.logs[0].objects)[:2]
    data = bytearray((files.tier2 / damaged).read_bytes())
    data[-1] ^= 1
    (files.tier2 / damaged).write_bytes(data)
    (files.tier2 / lost).unlink()
    look = asyncio.run(files.look())
    (segment,) = look.logs[0].segments.values()
    unseen = {chunk.object_name for chunk in segment.chunks if chunk.content is None}
    assert unseen == {damaged, lost}
    assert lost not in look.listed
    assert f"{lost} is referenced, and is not there" in str(check_history(files.history))
