"""FaultedStore: a store on a cluster, at work in this process while a test breaks what it stands
on; its history, checked.

A process run: the store is opened from an empty folder, so that everything comes from the log and
from Tier 2, and all of it is checked. Clients work until the test has done its part, and for a
while after that; all of it is checked again. Rules of this file:

- what happened is checked by the checkers of histories alone;
- a test waits for what the store does (`WorkingStore`), never for time to pass;
- a store that stops by itself ends the test with the reason, unless it was said that it may.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import segmentstore
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.log_metadata import LogMetadata, decode_record
from durablelog.bookkeeper.store_node import container_path
from durablelog.bookkeeper.zookeeper_nodes import ZookeeperNodes, ZookeeperSettings
from recovery.harness.checkers.all_checks import check_history
from recovery.harness.history import Call, CallKind, CallOutcome, History, ProcessRun, Violation
from recovery.harness.observer import observe
from recovery.harness.workloads.catalogue import FAULTS
from recovery.harness.workloads.running import run_workload
from recovery.harness.workloads.stage import Stage
from segmentstore.contracts.runtime import Runtime

if TYPE_CHECKING:
    from segmentstore.service import SegmentStore

ROUND_CALLS: Final = 150
"""Of all clients together; they begin anew until they are asked to stop."""
PACE: Final = 0.002
_CHECK_S: Final = 0.02
_NUMBERS: Final = itertools.count()
_CHANGES: Final = (CallKind.APPEND, CallKind.EVENT)


class StoreStoppedError(RuntimeError):
    """A store stopped though it should have waited."""


class WorkingStore:
    """An open store and its clients, as a test sees them. Made by `FaultedStore`."""

    def __init__(self, store: SegmentStore, process_run: int, tier1: str) -> None:
        self.store = store
        self.process_run = process_run
        self._tier1 = tier1
        self.acknowledged = 0
        """Appends and events."""
        self._stopping = False
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    async def acknowledges(self, count: int) -> None:
        """Returns when so many more appends are acknowledged."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((self.acknowledged + count, future))
        await future

    async def says(self, *words: str) -> None:
        """Returns when health says something with all these words in it; it is checked, for
        nothing reports its changes.
        """
        while not self._says_now(words):  # noqa: ASYNC110
            await asyncio.sleep(_CHECK_S)

    async def moves_on(self) -> None:
        """Returns when the log has begun another ledger and was truncated, both since this call.

        ZooKeeper answers.
        """
        async with log_records(self._tier1) as read:
            before = now = await read()
            while (
                now.next_sequence == before.next_sequence
                or now.truncation_address == before.truncation_address
            ):
                await asyncio.sleep(_CHECK_S)
                now = await read()

    async def is_well(self) -> None:
        """Returns when health says nothing."""
        while self.findings():  # noqa: ASYNC110
            await asyncio.sleep(_CHECK_S)

    def _says_now(self, words: tuple[str, ...]) -> bool:
        return any(all(word in finding for word in words) for finding in self.findings())

    def findings(self) -> list[str]:
        """What health says."""
        findings = self.store.stats()["health"]
        assert isinstance(findings, list)
        return [str(finding) for finding in findings]

    @property
    def runs(self) -> bool:
        """No container has stopped."""
        containers = self.store.stats()["containers"]
        assert isinstance(containers, dict)
        return all(each["state"] == "running" for each in containers.values())

    def stop(self) -> None:
        """The clients end with what they are at."""
        self._stopping = True

    def note_call(self, what: str, call: Call) -> None:
        """Be notified of a call."""
        if what != "ended" or call.kind not in _CHANGES or call.outcome is not CallOutcome.OK:
            return
        self.acknowledged += 1
        if self._waiting and self.acknowledged >= self._waiting[0][0]:
            for wanted, future in self._waiting:
                if self.acknowledged >= wanted and not future.done():
                    future.set_result(None)
            self._waiting = [each for each in self._waiting if not each[1].done()]

    async def work(
        self, history: History, stage: Stage, rng: random.Random, *, may_stop: bool
    ) -> None:
        """Clients at work until `stop`. Raises StoreStoppedError."""
        while not self._stopping:
            await run_workload(
                FAULTS,
                self.store,
                history,
                self.process_run,
                stage,
                rng,
                ROUND_CALLS,
                pace=PACE,
                listener=self.note_call,
            )
            if not self.runs:
                if may_stop:
                    return
                raise StoreStoppedError("; ".join(self.findings()))


@asynccontextmanager
async def log_records(tier1: str) -> AsyncIterator[Callable[[], Awaitable[LogMetadata]]]:
    """Reads the record of the log of container 0, as often as it is called; for as long as
    ZooKeeper answers.
    """
    location = BookKeeperLocation.parse(tier1)
    path = container_path(location.path, 0)
    nodes = ZookeeperNodes(ZookeeperSettings(hosts=location.hosts), Runtime())
    await nodes.open()

    async def read() -> LogMetadata:
        content = await nodes.read(path)
        assert content is not None
        return decode_record(content.data, path)

    try:
        yield read
    finally:
        await nodes.close()


Script = Callable[[WorkingStore], Awaitable[None]]


class FaultedStore:
    """One store, process run after process run, in folders below `folder`; `tier1` is its URL,
    `settings` more of its settings.
    """

    def __init__(self, folder: Path, tier1: str, seed: str, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        # Syncs of a disk that the bookies need would be most of what a test waits for.
        self.settings = {
            **settings,
            "tier1": tier1,
            "tier2": f"memory://{folder.name}-{os.getpid()}-{next(_NUMBERS)}",
        }
        self.history = History()
        self._stage = Stage()
        self._seed = seed

    async def live(self, script: Script, *, may_stop: bool = False) -> None:
        """One process run under load.

        Raises what opening, the script, and what is unforeseen raise; StoreStoppedError.
        """
        history = self.history
        process_run = ProcessRun(
            len(history.process_runs), f"life {len(history.process_runs)}", history.next_stamp()
        )
        history.process_runs.append(process_run)
        try:
            async with segmentstore.open(
                str(self.folder / process_run.process), **self.settings
            ) as store:
                process_run.opened = history.next_stamp()
                await observe(store, history, process_run.number)
                working = WorkingStore(store, process_run.number, self.settings["tier1"])
                rng = random.Random(f"{self._seed}/{process_run.number}")
                async with asyncio.TaskGroup() as group:
                    group.create_task(working.work(history, self._stage, rng, may_stop=may_stop))
                    await script(working)
                    working.stop()
                if not may_stop:
                    await observe(store, history, process_run.number)
        finally:
            process_run.ended, process_run.ending = history.next_stamp(), "closed"

    async def log_record(self) -> LogMetadata:
        """The record of its log now. ZooKeeper answers."""
        async with log_records(self.settings["tier1"]) as read:
            return await read()

    async def evaluate(self) -> list[Violation]:
        """Open it once more, flush it, open it again: what is wrong with all that was seen."""
        history = self.history
        for again in (False, True):
            process_run = ProcessRun(
                len(history.process_runs), f"life {len(history.process_runs)}", history.next_stamp()
            )
            history.process_runs.append(process_run)
            async with segmentstore.open(
                str(self.folder / process_run.process), **self.settings
            ) as store:
                process_run.opened = history.next_stamp()
                await observe(store, history, process_run.number, again=again)
                if not again:
                    await store.flush()
                    await store.checkpoint()
            process_run.ended, process_run.ending = history.next_stamp(), "closed"
        return check_history(history)
