"""ClusterScenario: clients of whole stores, while things happen to their hosts.

To the checkers of histories the whole cluster is one owner, from its start to the end of all
clients. Which host an answer came from must not matter to any client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from recovery.harness.checkers.all_checks import evaluate
from recovery.harness.checkers.cluster import check
from recovery.harness.history import History, Observation, ProcessRun, Violation
from recovery.harness.recorder import RecordedStore
from recovery.harness.runs.cluster_plan import HOSTS, PAUSE_S
from recovery.harness.runs.hosts_scenario import HostsScenario
from recovery.harness.runs.plan import Plan
from recovery.harness.runs.run_result import RunResult
from recovery.harness.simulation.cluster_world import ClusterWorld
from recovery.harness.simulation.virtual_loop import MICROSECONDS
from recovery.harness.workloads.cluster_client import ClusterClient
from recovery.harness.workloads.cluster_clients import (
    CLIENTS,
    ClusterBench,
    create_all,
    observe_all,
    segment_names,
)

if TYPE_CHECKING:
    from segmentstore.store_api import StoreApi


class ClusterScenario(HostsScenario):
    """One run of a plan; used once."""

    def __init__(self, plan: Plan, *, keep_trace: bool = False) -> None:
        settings = dict(plan.settings)
        self._pause_s: float = settings.pop(PAUSE_S)
        hosts: int = settings.pop(HOSTS)
        world = ClusterWorld(
            plan.seed,
            containers=settings.pop("containers"),
            settings=settings,
            rates=plan.rates,
            keep_trace=keep_trace,
        )
        super().__init__(plan, world, hosts)
        self.history = History()
        self._segments = segment_names(world.containers)
        self._stores: list[RecordedStore] = []
        self._process_run: ProcessRun | None = None

    def begin_work(self) -> Sequence[asyncio.Task[None]]:
        """As HostsScenario."""
        self._process_run = self._begin("cluster")
        maker = self._store("maker", self._client("maker"))
        self.world.run_task(self.clients, create_all(maker, self._segments))
        return [
            self.clients.start(client(self._bench(number, role)))
            for number, (role, client) in enumerate(CLIENTS)
        ]

    def end_work(self) -> None:
        """As HostsScenario."""
        for store in self._stores:
            self.world.run_task(self.clients, store.settle())
        assert self._process_run is not None
        self._end(self._process_run, "closed")

    def read_all(self, name: str) -> None:
        """As HostsScenario."""
        process_run = self._begin(name)
        client = self._client(name)
        names = sorted(each for role in self._segments.values() for each in role)
        self.world.run_task(
            self.clients, observe_all(client, self.history, process_run.number, names)
        )
        self._end(process_run, "killed")

    def result(self) -> RunResult:
        """As HostsScenario."""
        for error in self.world.unforeseen:
            self.note(error, "an opening or a close of a host")
        for store in self._stores:
            for unforeseen in store.unforeseen:
                self.note(unforeseen, f"client {store.client}")
        history, world = self.history, self.world
        last: Observation | None = history.observations[-1] if history.observations else None
        evaluation = evaluate(history)
        return RunResult(
            plan=self.plan,
            violations=[
                *self.violations,
                *(Violation("errors", f"in the background: {each}") for each in world.unhandled),
                *check(self.record, last, orderly=self.orderly),
                *evaluation.violations,
            ],
            crashes=self.record.counts["kills"],
            openings=world.openings,
            calls=len(history.calls),
            appends=sum(
                call.kind in {"append", "event"} and call.outcome == "ok" for call in history.calls
            ),
            virtual_s=world.time.now_us / MICROSECONDS,
            longest_recovery_s=self.served_s,
            effects=world.effects,
            points=world.points.counts(),
            digest=world.trace.digest(),
            history=history,
            trace=world.trace.lines,
            windows=evaluation.windows,
            cluster=dict(sorted(self.record.counts.items())),
            longest_unserved_s=self.record.longest_unserved_s,
        )

    def _client(self, name: str) -> ClusterClient:
        return ClusterClient(
            self.world, self.history, self.record, self.world.random(f"client/{name}")
        )

    def _store(self, name: str, client: ClusterClient) -> RecordedStore:
        run = self.history.process_runs[-1].number
        # It has as much of the store's calls as the clients here need.
        store = RecordedStore(cast("StoreApi", client), self.history, run, name)
        self._stores.append(store)
        return store

    def _bench(self, number: int, role: str) -> ClusterBench:
        name = f"{role}-{number}"
        client = self._client(name)
        store = self._store(name, client)
        rng = self.world.random(f"bench/{number}")
        return ClusterBench(
            client=client,
            store=store,
            record=self.record,
            random=rng,
            number=number,
            segments=self._segments[role],
            goes_on=lambda: self.working,
            pause_s=self._pause_s,
        )

    def _begin(self, name: str) -> ProcessRun:
        runs, stamp = self.history.process_runs, self.history.next_stamp
        runs.append(ProcessRun(len(runs), name, stamp(), stamp()))
        return runs[-1]

    def _end(self, process_run: ProcessRun, ending: str) -> None:
        process_run.ended, process_run.ending = self.history.next_stamp(), ending
