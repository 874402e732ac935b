"""Wherever a simulated world has its logs, a check finds what a dead owner left there, and changes
nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.ledger_addresses import make_address
from durablelog.bookkeeper.ledger_store import LedgerState
from durablelog.bookkeeper.log_metadata import LogMetadata, decode_record, encode_record
from durablelog.bookkeeper.store_node import container_path
from durablelog.durable_data_log import LogFrame
from recovery.harness.checkers.all_checks import check_history
from recovery.harness.history import History, ProcessRun
from recovery.harness.recorder import RecordedStore
from recovery.harness.runs.bit_rot import plant_bit_rot
from recovery.harness.runs.directed import BUSY
from recovery.harness.runs.log_probes import log_probes
from recovery.harness.seen_tiers import SeenTiers
from recovery.harness.simulation.store_world import BOOKKEEPER, StoreWorld, stopped_catalogs
from recovery.harness.simulation.world import SimulatedProcess
from recovery.harness.tier_observer import observe_tiers

TIER1 = ("file", "ledger", "bookkeeper")
NODE = container_path(BookKeeperLocation.parse(BOOKKEEPER).path, 0)
FLUSHED = 40
APPENDED = 20
RECORD_BYTES = 60


class LeftBehind:
    """A store whose owner was killed: its log is cut off behind what is in Tier 2, and holds the
    rest.
    """

    def __init__(self, tier1: str) -> None:
        late = {
            "flush_bytes": 20_000,
            "object_bytes": 20_000,
            "upload_bytes_max": 20_000,
            "flush_age_s": 1000.0,
        }
        settings = {**BUSY, **late}
        if tier1 == "bookkeeper":
            settings["tier1"] = f"{BOOKKEEPER}?ledger_bytes=4096"
        self.world = StoreWorld(f"looks/{tier1}", settings=settings, tier1=tier1)
        self.history = History()
        self.length = 0
        process = self.world.process("owner")
        self.world.run_task(process, self._fill(process))
        self.world.kill(process)
        process_run = self.history.process_runs[-1]
        process_run.ended, process_run.ending = self.history.next_stamp(), "kill"

    async def _fill(self, process: SimulatedProcess) -> None:
        process_run = ProcessRun(0, process.name, self.history.next_stamp())
        self.history.process_runs.append(process_run)
        store = await self.world.open_store(process)
        process_run.opened = self.history.next_stamp()
        recorded = RecordedStore(store, self.history, 0, "client")
        await recorded.create("a")
        for _ in range(FLUSHED):
            await recorded.append("a", (RECORD_BYTES,))
        await recorded.flush()
        await recorded.checkpoint()
        for _ in range(APPENDED):
            await recorded.append("a", (RECORD_BYTES,))
        self.length = (await store.get_info("a")).length

    def look(self) -> SeenTiers:
        """What lies there now."""
        process = self.world.process("look")

        async def work() -> SeenTiers:
            looks = log_probes(self.world, process, 1)
            storage = self.world.object_storage(process)
            catalogs = await stopped_catalogs(process)
            return await observe_tiers(
                self.history, looks, storage, catalogs, process.runtime, deep=True
            )

        tiers = self.world.run_task(process, work())
        self.world.kill(process)
        return tiers

    def frames_there(self) -> list[LogFrame]:
        """Of the log, where it is not in files."""
        process = self.world.process("look")
        frames = list(log_probes(self.world, process, 1)[0]().frames)
        self.world.kill(process)
        return frames

    def record(self) -> LogMetadata:
        """Of the log on BookKeeper."""
        content = self.world.bookkeeper.tree.content(NODE)
        assert content is not None
        return decode_record(content.data, NODE)


@contextmanager
def left_behind(tier1: str) -> Iterator[LeftBehind]:
    left = LeftBehind(tier1)
    try:
        yield left
    finally:
        left.world.close()


@pytest.mark.parametrize("tier1", TIER1)
def test_all_that_is_not_in_tier_2_is_found_in_the_log(tier1: str) -> None:
    with left_behind(tier1) as left:
        log = left.look().logs[0]
        (segment,) = log.segments.values()
        assert 0 < segment.storage_length < segment.length == left.length
        assert log.held[segment.segment_id][-1][1] == left.length
        assert (log.epoch, log.begins_with) == (1, "CheckpointOperation")
        assert log.first > 1, "the log was not truncated"
        assert check_history(left.history) == []


@pytest.mark.parametrize("tier1", TIER1)
def test_a_check_changes_nothing(tier1: str) -> None:
    with left_behind(tier1) as left:
        first, disk, servers = left.look(), left.world.image.fingerprint(), left.world.bookkeeper
        frames, records = left.world.ledgers.frames(0), dict(servers.records)
        assert left.look().logs == first.logs
        assert left.world.image.fingerprint() == disk
        assert left.world.ledgers.frames(0) == frames
        assert servers.records == records
        assert not any(
            replica.fenced for bookie in servers.bookies for replica in bookie.replicas.values()
        )


def test_the_end_of_a_log_is_found_in_a_ledger_that_is_open_still() -> None:
    with left_behind("bookkeeper") as left:
        last = left.record().ledgers[-1]
        assert last.is_open
        assert left.world.bookkeeper.records[last.ledger_id].state is LedgerState.OPEN
        assert left.frames_there()[-1].address > make_address(last.sequence, 0)


def _cut_service(left: LeftBehind) -> None:
    left.world.ledgers.ledger(0).frames = left.frames_there()[-APPENDED // 2 :]


def _cut_record(left: LeftBehind) -> None:
    address = left.frames_there()[-APPENDED // 2].address
    left.world.bookkeeper.tree.put(NODE, encode_record(left.record().truncated(address)))


@pytest.mark.parametrize(("tier1", "cut"), [("ledger", _cut_service), ("bookkeeper", _cut_record)])
def test_a_log_that_was_cut_off_too_far_is_reported(
    tier1: str, cut: Callable[[LeftBehind], None]
) -> None:
    with left_behind(tier1) as left:
        cut(left)
        left.look()
        told = [
            violation for violation in check_history(left.history) if violation.checker == "log"
        ]
        assert "begins with AppendOperation" in str(told)


def test_a_log_of_which_an_entry_is_nowhere_is_left_out() -> None:
    with left_behind("bookkeeper") as left:
        item = left.record().ledgers[0]
        assert item.last_entry is not None
        for bookie in left.world.bookkeeper.bookies:
            bookie.replicas[item.ledger_id].entries.pop(item.last_entry, None)
        assert left.look().logs == {}


def test_a_log_in_files_that_rotted_is_left_out() -> None:
    with left_behind("file") as left:
        whole = left.look()
        assert plant_bit_rot(left.world, "rot.log", random.Random("rot")) is not None
        flipped = left.look()
        assert (set(whole.logs), set(flipped.logs)) == ({0}, set())
        assert flipped.listed == whole.listed


@pytest.mark.parametrize("tier1", ["ledger", "bookkeeper"])
def test_where_there_never_was_a_store_there_is_no_log(tier1: str) -> None:
    world = StoreWorld("nothing", tier1=tier1)
    (look,) = log_probes(world, world.process("look"), 1).values()
    looked = look()
    assert (looked.epoch, list(looked.frames)) == (0, [])
    world.close()
