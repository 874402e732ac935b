"""HostsScenario: one plan of a cluster's hosts carried out in a simulated world, and checked.

Hosts start; work goes on all the time; in each cycle something happens to the hosts. Then all
faults heal, and within bounds every container has an owner again, and the load is even. Everything
is read, all hosts die, and are started once more, and everything is read again.

What the work is, and what is read, its subclasses say: clients of whole stores
(cluster_scenario.py), or appends to containers that are a log and nothing else
(take_over_scenario.py). The bounds are of virtual time, from the moment in which the last fault is
over.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from durablelog.bookkeeper.ownership_lease import LEASE_S
from recovery.harness.checkers.all_checks import raised
from recovery.harness.cluster_record import ClusterRecord
from recovery.harness.history import Violation
from recovery.harness.runs.cluster_faults import ClusterFaults
from recovery.harness.runs.cluster_persons import Persons
from recovery.harness.runs.cluster_plan import is_orderly
from recovery.harness.runs.cluster_watch import ClusterWatch
from recovery.harness.runs.plan import Plan
from recovery.harness.runs.quiet import quiet
from recovery.harness.runs.run_result import RunResult
from recovery.harness.simulation.cluster_world import ClusterWorld
from recovery.harness.simulation.virtual_loop import MICROSECONDS, DeadlockError, WedgedError
from segmentstore.cluster.map_edits import drain, pin
from segmentstore.cluster.start_failures import PASS_OVER_MS_MAX

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


class HostsScenario(ABC):
    """One run of a plan; used once."""

    def __init__(self, plan: Plan, world: ClusterWorld, hosts: int) -> None:
        self.plan = plan
        self.world = world
        self.record = ClusterRecord()
        self.clients = world.process("clients")
        self.violations: list[Violation] = []
        self.working = True
        """The work goes on."""
        self.served_s = 0.0
        """Until all was served again, behind the last fault."""
        self.orderly = is_orderly(plan)
        self._names = [f"h{number}" for number in range(hosts)]
        self._rng = world.random("persons asked")

    @abstractmethod
    def begin_work(self) -> Sequence[asyncio.Task[None]]:
        """Begin what goes on as long as `working`. The hosts are starting."""

    @abstractmethod
    def end_work(self) -> None:
        """All of it has ended."""

    @abstractmethod
    def read_all(self, name: str) -> None:
        """Read everything, and note it under this name."""

    @abstractmethod
    def result(self) -> RunResult:
        """What it showed."""

    def run(self) -> RunResult:
        """Carry the plan out and check it.

        Never raises: a fault of the cluster is a violation, and so is one of its checkers.
        """
        with quiet():
            try:
                self._carry_out()
            except Exception as error:  # noqa: BLE001
                # Whatever it is, the seed must not be lost with it.
                self.violations.append(raised(error))
            return self.result()

    def note(self, error: BaseException, when: str) -> None:
        """An unforeseen error is a violation."""
        self.violations.append(Violation("errors", f"{when}: {type(error).__name__}: {error}"))

    def _carry_out(self) -> None:
        try:
            self._run_cluster()
        except (DeadlockError, WedgedError) as error:
            self.note(error, "hangs")
        finally:
            self.world.close()

    def _run_cluster(self) -> None:
        world = self.world
        persons = Persons(world, self.record, ROOT, world.random("persons"))
        watch = ClusterWatch(world, self.record, persons.nodes)
        faults = ClusterFaults(world, self.record, persons, world.random("driver"))
        for name in self._names:
            world.start_host(name)
        watching = self.clients.start(watch.run(lambda: self.working))
        work = [watching, *self.begin_work()]
        for cycle in self.plan.cycles:
            faults.strike(cycle.fault)
            faults.let_pass(cycle.operations)
        faults.heal()
        self._outlast(persons, faults)
        if self.orderly or self._rng.random() < 0.3:
            self._ask(persons)
        world.run(lambda: all(task.done() for task in work))
        for task in work:
            if (error := task.exception()) is not None:
                self.note(error, "a client")
        self.end_work()
        self.read_all("seen")
        for host in list(world.hosts.values()):
            world.kill(host.process)
        for name in self._names:
            world.start_host(name, world.hosts[name].folder)
        self._wait(self._all_served, SERVED_S, AVAILABILITY, "after all hosts were started again")
        self.read_all("seen-again")

    def _outlast(self, persons: Persons, faults: ClusterFaults) -> None:
        """All faults are over: wait for what must come of itself."""
        self.world.run_task(persons.process, persons.undo_all())
        begun_us = self.world.time.now_us
        bound_s = FAILED_S if self._has_failed_everywhere() else SERVED_S
        self._wait(self._all_served, bound_s, AVAILABILITY, "after the last fault")
        self.served_s = (self.world.time.now_us - begun_us) / MICROSECONDS
        # One that was fenced while it was cut off, and had nothing to write, learns by its lease.
        faults.let_pass(LEASE_S)
        self._wait(self._all_served, FAILED_S, AVAILABILITY, "after fenced owners have learned it")
        self.working = False
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
            self.violations.append(Violation(kind, detail))
            if kind == AVAILABILITY:
                raise

    def _all_served(self) -> bool:
        numbers = [number for host in self.world.hosts.values() for number in host.served]
        return sorted(numbers) == list(range(self.world.containers)) and all(
            host.view is not None for host in self.world.hosts.values()
        )

    def _is_balanced(self) -> bool:
        counts = [len(host.served) for host in self.world.hosts.values()]
        return max(counts) - min(counts) <= 1 and self._all_served()
