"""TakeOverScenario: very many take-overs of containers that are a log and nothing else.

It checks what an assignment is to keep: one owner at a time acknowledges, nothing acknowledged is
lost, doubled or out of its order, and everything is served again. What whole stores do behind it,
ClusterScenario checks, with far fewer take-overs.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from functools import partial

from recovery.harness.checkers.cluster import check
from recovery.harness.checkers.logged_appends import LoggedAppend, check_appends
from recovery.harness.cluster_record import Acknowledgement
from recovery.harness.history import History, Violation
from recovery.harness.runs.cluster_plan import HOSTS, PAUSE_S
from recovery.harness.runs.hosts_scenario import ROOT, HostsScenario
from recovery.harness.runs.plan import Plan
from recovery.harness.runs.run_result import RunResult
from recovery.harness.simulation.cluster_world import HostProcess
from recovery.harness.simulation.logged_hosts import LoggedHost, LoggedHosts
from recovery.harness.simulation.virtual_loop import MICROSECONDS
from segmentstore.contracts.errors import (
    ContainerNotServedError,
    ContainerStoppedError,
    NotPrimaryError,
)

_LATENCY_S = (0.001, 0.05)
_AT_ONCE = 16
"""Containers that get an append in one pass."""
_READINGS = 60
"""A second apart."""


class TakeOverScenario(HostsScenario):
    """One run of a plan; used once."""

    def __init__(self, plan: Plan, *, keep_trace: bool = False) -> None:
        settings = dict(plan.settings)
        self._pause_s: float = settings[PAUSE_S]
        world = LoggedHosts(
            plan.seed,
            ROOT,
            containers=settings["containers"],
            rates=plan.rates,
            keep_trace=keep_trace,
        )
        super().__init__(plan, world, settings[HOSTS])
        self._logs = world.logs
        self._appends: list[LoggedAppend] = []
        self._underway: set[asyncio.Task[None]] = set()
        self._sent = 0
        self._stamps = itertools.count()
        self._random: random.Random = world.random("appends")

    def begin_work(self) -> Sequence[asyncio.Task[None]]:
        """As HostsScenario: appends to containers, by hosts that believe to serve them."""
        return [self.clients.start(self._append_all())]

    def end_work(self) -> None:
        """As HostsScenario: what is on its way arrives, or never does."""
        self.world.run_task(self.clients, asyncio.sleep(1.0))

    def read_all(self, name: str) -> None:
        """As HostsScenario: an append to each container succeeds."""
        begun = len(self._appends)
        missing = set(range(self.world.containers))
        for _ in range(_READINGS):
            for container in sorted(missing):
                self._send(container, to_latest=True)
            self.world.run_task(self.clients, asyncio.sleep(1.0))
            missing -= {each.container for each in self._appends[begun:]}
            if not missing:
                return
        # Some move at any time: the load is being balanced.
        detail = f"{name}: containers {sorted(missing)} acknowledge nothing"
        self.violations.append(Violation("availability", detail))

    def result(self) -> RunResult:
        """As HostsScenario."""
        world = self.world
        for error in world.unforeseen:
            self.note(error, "an opening or a close of a host")
        logs = {
            container: [bytes(frame.payload) for frame in self._logs.frames(container)]
            for container in range(world.containers)
        }
        return RunResult(
            plan=self.plan,
            violations=[
                *self.violations,
                *(Violation("errors", f"in the background: {each}") for each in world.unhandled),
                *check(self.record, None, orderly=self.orderly),
                *check_appends(self._appends, logs),
            ],
            crashes=self.record.counts["kills"],
            openings=world.openings,
            calls=self._sent,
            appends=len(self._appends),
            virtual_s=world.time.now_us / MICROSECONDS,
            longest_recovery_s=self.served_s,
            effects=world.effects,
            points=world.points.counts(),
            digest=world.trace.digest(),
            history=History(),
            trace=world.trace.lines,
            cluster=dict(sorted(self.record.counts.items())),
            longest_unserved_s=self.record.longest_unserved_s,
        )

    # --- appends ----------------------------------------------------------------------------------

    async def _append_all(self) -> None:
        """A few containers, by chance, in each pass."""
        count = self.world.containers
        while self.working:
            for container in self._random.sample(range(count), _AT_ONCE):
                self._send(container)
            await asyncio.sleep(self._random.uniform(0.1, self._pause_s))

    def _send(self, container: int, *, to_latest: bool = False) -> None:
        """Send one append to some host that believes to serve it, be that stopped or fenced; or to
        the one that opened its log last.
        """
        hosts = self.world.serving(container)
        if not hosts:
            return
        host = self._random.choice(hosts)
        if to_latest:
            host = max(hosts, key=lambda each: _epoch(each, container))
        self._sent += 1
        data = self._sent.to_bytes(8)
        arrives_s = self.world.time.now_us / MICROSECONDS + self._random.uniform(*_LATENCY_S)
        host.process.loop.call_at(arrives_s, partial(self._arrive, host, container, data))

    def _arrive(self, host: HostProcess, container: int, data: bytes) -> None:
        task = host.process.start(self._append(host, container, data))
        self._underway.add(task)
        task.add_done_callback(self._underway.discard)

    async def _append(self, host: HostProcess, container: int, data: bytes) -> None:
        view = host.view
        assert isinstance(view, LoggedHost)
        owner = view.running(container)
        if owner is None:
            return
        epoch, begun = owner.epoch, next(self._stamps)
        try:
            await view.containers.append(container, data)
        except (ContainerNotServedError, NotPrimaryError):
            return
        except ContainerStoppedError:
            self.record.counts["unknown outcomes"] += 1
            return
        ended = next(self._stamps)
        self._appends.append(LoggedAppend(container, data, begun, ended))
        self.record.acknowledgements.append(
            Acknowledgement(container, epoch, host.process.name, begun, ended)
        )


def _epoch(host: HostProcess, container: int) -> int:
    owner = host.running(container)
    return 0 if owner is None else owner.epoch
