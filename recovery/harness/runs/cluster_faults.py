"""What happens to the hosts of a simulated cluster, by the names of the fault points.

And what follows: a process that was stopped goes on, one that died is started again.

What follows lies ahead in virtual time, and is done by the driver, outside of all processes.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from recovery.harness.cluster_record import ClusterRecord
from recovery.harness.runs.clock_turns import turn_one_clock
from recovery.harness.runs.cluster_persons import Persons
from recovery.harness.runs.plan import CLOCK
from recovery.harness.simulation.bookkeeper_nodes import SLOW_WATCH_S
from recovery.harness.simulation.cluster_world import ClusterWorld, HostProcess
from recovery.harness.simulation.virtual_loop import MICROSECONDS, WedgedError

SHORT_S: Final = (0.5, 8.0)
LONG_S: Final = (11.0, 45.0)
"""A session ends after 10 s, and that is seen within 1 s more."""
AWAY_S: Final = (1.0, 30.0)
CUT_S: Final = (2.0, 40.0)
RESTART_S: Final = (0.1, 30.0)
CLOSED_S: Final = 300.0
"""Within so long an orderly stop has ended, when all faults are over."""


class ClusterFaults:
    """Of one run; `persons` edit the map."""

    def __init__(
        self, world: ClusterWorld, record: ClusterRecord, persons: Persons, rng: random.Random
    ) -> None:
        self._world = world
        self._record = record
        self._persons = persons
        self._random = rng
        self._ahead: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._actions: Mapping[str, Callable[[], object]] = {
            "host.killed": self._kill_one,
            "host.killed.all": self._kill_all,
            "host.paused.short": lambda: self._pause(SHORT_S),
            "host.paused.long": lambda: self._pause(LONG_S),
            "host.closed": self._close_one,
            "host.restarts": self._restart_in_turn,
            "host.session-lost": self._lose_session,
            "host.cut-off": self._cut_off,
            "host.zookeeper-away": self._zookeeper_away,
            "host.leader-dies": self._leader_dies,
            "host.dies-at-effect": self._dies_at_effect,
            "host.clock": self._clock,
            "host.edits": self._edit,
            "host.replaced": self._replace,
        }

    def strike(self, point: str) -> None:
        """Have this happen now."""
        if self._living():
            self._world.reach(point)
            self._actions[point]()

    def let_pass(self, seconds: float) -> None:
        """Let the world run for so long, and do what is due meanwhile."""
        end_us = self._world.time.now_us + round(seconds * MICROSECONDS)
        while True:
            self.tend()
            due_us = min(end_us, self._ahead[0][0]) if self._ahead else end_us
            self._world.run(partial(self._has_come, due_us))
            while self._ahead and self._ahead[0][0] <= self._world.time.now_us:
                heapq.heappop(self._ahead)[2]()
            if self._world.time.now_us >= end_us:
                return

    def tend(self) -> None:
        """Have what died by itself started again, some time later."""
        for name, host in self._world.hosts.items():
            if host.is_dead and not host.is_followed:
                host.is_followed = True
                self._later(RESTART_S, partial(self._start_again, name, host))

    def heal(self) -> None:
        """Everything runs and reaches everything, and each host is one process, which stays."""
        # What ZooKeeper has for a client, and has not sent yet, is not sent earlier by its healing.
        late = "node.watch.late" in self._world.rates
        self._world.rates = {}
        stopped_until_us = self._world.bookkeeper.zookeeper.stopped_until_us
        left_s = max(0, stopped_until_us - self._world.time.now_us) / MICROSECONDS
        self.let_pass(left_s + (SLOW_WATCH_S[1] if late else 0.0))
        self._ahead.clear()
        for host in self._world.replaced:
            self._world.kill(host.process)
        self._world.replaced.clear()
        self._world.heal()
        self._await_closes()
        for name, host in list(self._world.hosts.items()):
            if host.is_dead:
                self._world.start_host(name, host.folder)

    def _await_closes(self) -> None:
        leaving = [host for host in self._world.hosts.values() if host.closing is not None]
        try:
            self._world.run(lambda: all(host.is_dead for host in leaving), CLOSED_S)
        except WedgedError:
            for host in leaving:
                self._world.unforeseen.append(WedgedError(f"{host.name} does not close"))
                self._world.kill(host.process)

    # --- what happens -----------------------------------------------------------------------------

    def _kill_one(self) -> None:
        self._kill(self._random.choice(self._living()))

    def _kill_all(self) -> None:
        for host in self._living():
            self._kill(host)

    def _kill(self, host: HostProcess) -> None:
        self._record.counts["kills"] += 1
        self._world.kill(host.process)

    def _pause(self, span_s: tuple[float, float]) -> None:
        host = self._random.choice(self._living())
        host.process.pause()
        self._later(span_s, host.process.resume)

    def _close_one(self) -> None:
        self._world.close_host(self._random.choice(self._living()))

    def _restart_in_turn(self) -> None:
        for place, name in enumerate(sorted(self._world.hosts)):
            self._later((place * 10.0, place * 10.0 + 5.0), partial(self._close, name))

    def _close(self, name: str) -> None:
        self._world.close_host(self._world.hosts[name])

    def _lose_session(self) -> None:
        nodes = self._world.nodes.get(self._random.choice(self._living()).process.name)
        if nodes is not None:
            nodes.lose_session()

    def _cut_off(self) -> None:
        nodes = self._world.nodes.get(self._random.choice(self._living()).process.name)
        if nodes is not None:
            nodes.cut_off(self._random.uniform(*CUT_S))

    def _zookeeper_away(self) -> None:
        zookeeper = self._world.bookkeeper.zookeeper
        zookeeper.stop(self._world.time.now_us, self._random.uniform(*AWAY_S))

    def _leader_dies(self) -> None:
        leaders = [host for host in self._living() if host.leads]
        if not leaders:
            return
        process = self._random.choice(leaders).process
        process.let_pass = self._random.randrange(3)
        if self._random.random() < 0.5:
            process.dies_before = "node.write"
        else:
            process.dies_after = "node.write"
        # Something to assign.
        others = [host for host in self._living() if host.process is not process]
        if others and self._random.random() < 0.5:
            self._kill(self._random.choice(others))
        else:
            self._edit()

    def _dies_at_effect(self) -> None:
        process = self._random.choice(self._living()).process
        process.dies_at = process.effects + self._random.choice((0, 1, 5, 20, 60))

    def _clock(self) -> None:
        host = self._random.choice(self._living())
        turn_one_clock(host.clock, self._random.choice(CLOCK), self._random)

    def _edit(self) -> None:
        for _ in range(self._random.choice((1, 1, 2, 3))):
            self._persons.edit(sorted(self._world.hosts))

    def _replace(self) -> None:
        """Another process joins under a name whose process lives, stopped or not."""
        host = self._random.choice(self._living())
        if host.closing is not None:
            return
        if self._random.random() < 0.5:
            host.process.pause()
            self._later(LONG_S, host.process.resume)
        self._world.start_host(host.name, f"{host.folder or '/' + host.name}-again")

    # --- around it --------------------------------------------------------------------------------

    def _living(self) -> list[HostProcess]:
        return [host for _, host in sorted(self._world.hosts.items()) if host.works]

    def _has_come(self, due_us: int) -> bool:
        return self._world.time.now_us >= due_us

    def _start_again(self, name: str, dead: HostProcess) -> None:
        if self._world.hosts[name] is dead:
            self._world.start_host(name, dead.folder)

    def _later(self, span_s: tuple[float, float], action: Callable[[], None]) -> None:
        self._number += 1
        due_us = self._world.time.now_us + round(self._random.uniform(*span_s) * MICROSECONDS)
        heapq.heappush(self._ahead, (due_us, self._number, action))
