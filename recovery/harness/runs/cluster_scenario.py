"""ClusterScenario: one plan of a cluster carried out in a simulated world, and checked.

Hosts start; clients work all the time; in each cycle something happens to the hosts. Then all
faults heal, and within bounds every container has an owner again, and the load is even. Everything
is read, all hosts die, and are started once more, and everything is read again. Rules of this file:

- to the checkers of histories the whole cluster is one owner, from its start to the end of all
  clients. Which host an answer came from must not matter to anybody;
- the bounds are of virtual time, from the moment in which the last fault is over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from durablelog.bookkeeper.ownership_lease import LEASE_S
from recovery.harness.checkers.all_checks import evaluate, raised
from recovery.harness.checkers.cluster import check
from recovery.harness.cluster_record import ClusterRecord
from recovery.harness.history import History, Observation, ProcessRun, Violation
from recovery.harness.recorder import RecordedStore
from recovery.harness.runs.cluster_faults import ClusterFaults
from recovery.harness.runs.cluster_persons import Persons
from recovery.harness.runs.cluster_plan import HOSTS, PAUSE_S, is_orderly
from recovery.harness.runs.cluster_watch import ClusterWatch
from recovery.harness.runs.plan import Plan
from recovery.harness.runs.quiet import quiet
from recovery.harness.runs.run_result import RunResult
from recovery.harness.simulation.cluster_world import ClusterWorld
from recovery.harness.simulation.virtual_loop import MICROSECONDS, DeadlockError, WedgedError
from recovery.harness.workloads.cluster_client import ClusterClient
from recovery.harness.workloads.cluster_clients import (
    CLIENTS,
    ClusterBench,
    create_all,
    observe_all,
    segment_names,
)
from segmentstore.cluster.map_edits import drain, pin
from segmentstore.cluster.start_failures import PASS_OVER_MS_MAX

if TYPE_CHECKING:
    from segmentstore.store_api import StoreApi

ROOT: Final = "/store"
SERVED_S: Final = 60.0
"""Within so long after the last fault every container has an owner that serves it."""
FAILED_S: Final = PASS_OVER_MS_MAX / 1000 + SERVED_S
"""The same where one has failed on each of the hosts: all are passed over for a while."""
BALANCED_S: Final = 1500.0
"""Within so long after that the counts differ by at most one: flapping and failures are forgotten
by then, and moves that hang are given up.
"""
_STEP_US: Final = 50_000
"""From one question whether a wait is over to the next."""
AVAILABILITY: Final = "availability"
BALANCE: Final = "balance"


class ClusterScenario:
    """One run of a plan; used once."""

    def __init__(self, plan: Plan, *, keep_trace: bool = False) -> None:
        self.plan = plan
        settings = dict(plan.settings)
        self._pause_s: float = settings.pop(PAUSE_S)
        self._names = [f"h{number}" for number in range(settings.pop(HOSTS))]
        self.world = ClusterWorld(
            plan.seed,
            containers=settings.pop("containers"),
            settings=settings,
            rates=plan.rates,
            keep_trace=keep_trace,
        )
        self.history = History()
        self.record = ClusterRecord()
        self._segments = segment_names(self.world.containers)
        self._clients = self.world.process("clients")
        self._violations: list[Violation] = []
        self._stores: list[RecordedStore] = []
        self._working = True
        self._served_s = 0.0
        self._orderly = is_orderly(plan)
        self._rng = self.world.random("persons asked")

    def run(self) -> RunResult:
        """Carry the plan out and check it.

        Never raises: a fault of the cluster is a violation, and so is one of its checkers.
        """
        with quiet():
            try:
                self._carry_out()
            except Exception as error:  # noqa: BLE001
                # Whatever it is, the seed must not be lost with it.
                self._violations.append(raised(error))
            return self._result()

    def _carry_out(self) -> None:
        try:
            self._run_cluster()
        except (DeadlockError, WedgedError) as error:
            self._note(error, "hangs")
        finally:
            self.world.close()

    def _run_cluster(self) -> None:
        world = self.world
        persons = Persons(world, self.record, ROOT, world.random("persons"))
        watch = ClusterWatch(world, self.record, persons.nodes)
        faults = ClusterFaults(world, self.record, persons, world.random("driver"))
        for name in self._names:
            world.start_host(name)
        process_run = self._begin("cluster")
        work = [self._clients.start(watch.run(lambda: self._working))]
        world.run_task(
            self._clients, create_all(self._store("maker", self._client("maker")), self._segments)
        )
        for number, (role, client) in enumerate(CLIENTS):
            work.append(self._clients.start(client(self._bench(number, role))))
        for cycle in self.plan.cycles:
            faults.strike(cycle.fault)
            faults.let_pass(cycle.operations)
        faults.heal()
        self._outlast(persons, faults)
        if self._orderly or self._rng.random() < 0.3:
            self._ask(persons)
        world.run(lambda: all(task.done() for task in work))
        for task in work:
            if (error := task.exception()) is not None:
                self._note(error, "a client")
        for store in self._stores:
            world.run_task(self._clients, store.settle())
        self._end(process_run, "closed")
        self._observe("seen")
        for host in list(world.hosts.values()):
            world.kill(host.process)
        for name in self._names:
            world.start_host(name, world.hosts[name].folder)
        self._wait(self._all_served, SERVED_S, AVAILABILITY, "after all hosts were started again")
        self._observe("seen-again")

    def _outlast(self, persons: Persons, faults: ClusterFaults) -> None:
        """All faults are over: wait for what must come of itself."""
        self.world.run_task(persons.process, persons.undo_all())
        begun_us = self.world.time.now_us
        bound_s = FAILED_S if self._has_failed_everywhere() else SERVED_S
        self._wait(self._all_served, bound_s, AVAILABILITY, "after the last fault")
        self._served_s = (self.world.time.now_us - begun_us) / MICROSECONDS
        # One that was fenced while it was cut off, and had nothing to write, learns by its lease.
        faults.let_pass(LEASE_S)
        self._wait(self._all_served, FAILED_S, AVAILABILITY, "after fenced owners have learned it")
        self._working = False
        self._wait(self._is_balanced, BALANCED_S, BALANCE, "after every container was served")

    def _ask(self, persons: Persons) -> None:
        """What a person asks for comes about: a pin, and a drain."""
        world, rng = self.world, self._rng
        container = rng.randrange(world.containers)
        name = rng.choice(self._names)
        pinned = partial(pin, containers=world.containers, container_id=container, host_id=name)
        world.run_task(persons.process, persons.change(pinned))
        self._wait(
            lambda: world.hosts[name].running(container) is not None,
            BALANCED_S,
            "pins",
            f"container {container} was pinned to {name}",
        )
        world.run_task(persons.process, persons.undo_all())
        name = rng.choice(self._names)
        world.run_task(persons.process, persons.change(partial(drain, host_id=name)))
        self._wait(
            lambda: not world.hosts[name].served and self._all_served(),
            BALANCED_S,
            "drains",
            f"{name} was drained",
        )
        world.run_task(persons.process, persons.undo_all())

    def _has_failed_everywhere(self) -> bool:
        """Whether some container has failed on every host: the first one has to wait."""
        if not self.record.maps:
            return False
        last = self.record.maps[-1].map
        passed_over = {pair for pair, over in last.passed_over.items() if not over.is_over}
        passed_over |= last.forbidden
        return any(
            all((container, name) in passed_over for name in self._names)
            for container in range(self.world.containers)
        )

    def _wait(self, holds: Callable[[], bool], bound_s: float, kind: str, when: str) -> None:
        world = self.world
        asked_us = -_STEP_US

        def holds_now() -> bool:
            nonlocal asked_us
            if world.time.now_us < asked_us + _STEP_US:
                return False
            asked_us = world.time.now_us
            return holds()

        try:
            world.run(holds_now, bound_s)
        except WedgedError:
            served = {name: host.served for name, host in self.world.hosts.items()}
            owners = dict(self.record.maps[-1].map.owners) if self.record.maps else {}
            detail = f"{when}: not within {bound_s:g} s; served: {served}, to be served: {owners}"
            self._violations.append(Violation(kind, detail))
            if kind == AVAILABILITY:
                raise

    def _all_served(self) -> bool:
        numbers = [number for host in self.world.hosts.values() for number in host.served]
        return sorted(numbers) == list(range(self.world.containers)) and all(
            host.store is not None for host in self.world.hosts.values()
        )

    def _is_balanced(self) -> bool:
        counts = [len(host.served) for host in self.world.hosts.values()]
        return max(counts) - min(counts) <= 1 and self._all_served()

    # --- clients ----------------------------------------------------------------------------------

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
            goes_on=lambda: self._working,
            pause_s=self._pause_s,
        )

    def _observe(self, name: str) -> None:
        process_run = self._begin(name)
        client = self._client(name)
        names = sorted(each for role in self._segments.values() for each in role)
        self.world.run_task(
            self._clients, observe_all(client, self.history, process_run.number, names)
        )
        self._end(process_run, "killed")

    def _begin(self, name: str) -> ProcessRun:
        runs, stamp = self.history.process_runs, self.history.next_stamp
        runs.append(ProcessRun(len(runs), name, stamp(), stamp()))
        return runs[-1]

    def _end(self, process_run: ProcessRun, ending: str) -> None:
        process_run.ended, process_run.ending = self.history.next_stamp(), ending

    # --- what it showed ---------------------------------------------------------------------------

    def _note(self, error: BaseException, when: str) -> None:
        self._violations.append(Violation("errors", f"{when}: {type(error).__name__}: {error}"))

    def _result(self) -> RunResult:
        for error in self.world.unforeseen:
            self._note(error, "an opening or a close of a host")
        for store in self._stores:
            for unforeseen in store.unforeseen:
                self._note(unforeseen, f"client {store.client}")
        history, world = self.history, self.world
        last: Observation | None = history.observations[-1] if history.observations else None
        evaluation = evaluate(history)
        return RunResult(
            plan=self.plan,
            violations=[
                *self._violations,
                *(Violation("errors", f"in the background: {each}") for each in world.unhandled),
                *check(self.record, last, orderly=self._orderly),
                *evaluation.violations,
            ],
            crashes=self.record.counts["kills"],
            openings=world.openings,
            calls=len(history.calls),
            appends=sum(
                call.kind in {"append", "event"} and call.outcome == "ok" for call in history.calls
            ),
            virtual_s=world.time.now_us / MICROSECONDS,
            longest_recovery_s=self._served_s,
            effects=world.effects,
            points=world.points.counts(),
            digest=world.trace.digest(),
            history=history,
            trace=world.trace.lines,
            windows=evaluation.windows,
            cluster=dict(sorted(self.record.counts.items())),
            longest_unserved_s=self.record.longest_unserved_s,
        )
