"""Mutants of clusters (DESIGN 4.2, 4.5): which host serves what, and what it reports of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from recovery.harness.mutants.mutant import Edit, Hunt, Mutant, ScenarioOf
from recovery.harness.runs.cluster_plan import HOSTS, PAUSE_S, draw_cluster_plan
from recovery.harness.runs.cluster_scenario import ClusterScenario
from recovery.harness.runs.plan import CLUSTER, Cycle, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHunt(Hunt):
    """Drawn plans of clusters with these faults in turn, and no others."""

    faults: tuple[str, ...]
    hosts: int = 3
    containers: int = 5
    pause_s: int = 15
    """From one of them to the next."""
    workload: str = CLUSTER
    scenario: ScenarioOf = ClusterScenario
    seeds_max: int = 12

    def plan(self, name: str, number: int) -> Plan:
        """The plan of seed `number` for the mutant of this name."""
        plan = draw_cluster_plan(f"mutants/{name}/{number}")
        settings = {
            **plan.settings,
            PAUSE_S: 4.0,
            HOSTS: self.hosts,
            "containers": self.containers,
            **self.settings,
        }
        cycles = tuple(
            Cycle(operations=self.pause_s, ending="kill", fault=fault) for fault in self.faults
        )
        return replace(plan, settings=settings, rates=dict(self.rates), cycles=cycles)


_VIEW: Final = "segmentstore.cluster.cluster_view:ClusterView"
_HOST: Final = "segmentstore.cluster.cluster_host:ClusterHost"
_ASSIGNER: Final = "segmentstore.cluster.assigner:Assigner"
_PLACEMENT: Final = "segmentstore.cluster.placement:Placement"
_REPORTS: Final = "segmentstore.cluster.host_reports:record_of"

_FENCES: Final = (
    "4.2 Opening fences. So a container that its owner can release is started behind that alone."
)
_TAKEN: Final = "4.1 What an orderly stop has taken becomes durable, and is acknowledged."
_TRUE: Final = "4.5 Answers stay true: no success is reported before it is true."
_ONE_MAP: Final = "4.2 Of two who change one record the second one is refused."
_SERVED: Final = "4.5 A host that dies or hangs takes no container with it: others serve it."
_ASKED: Final = "4.5 What a person asks of the cluster comes about."

_ORDERLY: Final = ("host.closed", "host.edits", "host.closed", "host.edits")
_DEATHS: Final = ("host.killed", "host.paused.long", "host.killed")

CLUSTERS: Final = (
    Mutant(
        "started-before-it-is-released",
        _FENCES,
        "A host starts a container at once, which another one is about to stop: it fences it.",
        (
            Edit(
                "segmentstore.cluster.follow_plan:steps",
                "if number in held:",
                "if False:",
            ),
        ),
        ClusterHunt(faults=_ORDERLY, rates={"node.watch.late": 0.5}),
    ),
    Mutant(
        "running-before-it-serves",
        _TRUE,
        "A host reports that a container runs as soon as it begins to start it.",
        (
            Edit(
                _REPORTS,
                "ReportedState(status.state.value),",
                "ReportedState(status.state.value.replace('starting', 'running')),",
            ),
        ),
        ClusterHunt(faults=_ORDERLY),
    ),
    Mutant(
        "released-before-it-is-stopped",
        _TRUE,
        "A host reports a container no more as soon as it begins to stop it.",
        (
            Edit(
                _REPORTS,
                "if status.state is not HostState.STOPPED",
                "if status.state not in (HostState.STOPPED, HostState.STOPPING)",
            ),
        ),
        ClusterHunt(faults=_ORDERLY),
    ),
    Mutant(
        "drain-drops-the-queue",
        _TAKEN,
        "A container that is stopped refuses what it had taken, and does not wait for its log.",
        (
            Edit(
                "segmentstore.container.segment_container:SegmentContainer.stop",
                "await self._processor.close(self._stop_cause)",
                "self._processor.fail(self._stop_cause)",
            ),
        ),
        ClusterHunt(faults=("host.closed",) * 4, hosts=2, containers=8, settings={PAUSE_S: 0.4}),
    ),
    Mutant(
        "returned-container-not-checked",
        _FENCES,
        "A host that is given a container back which another one has had goes on as before.",
        (
            Edit(
                f"{_HOST}._confirm_returned",
                "has_missed = self._map.epoch > self._acted_epoch + 1",
                "return",
            ),
        ),
        # The other host loses its session as well before the first has seen that it lost its own.
        ClusterHunt(
            faults=("host.session-lost",) * 30,
            hosts=2,
            containers=8,
            pause_s=2,
            rates={"node.watch.late": 0.8},
            settings={PAUSE_S: 60.0},
            seeds_max=80,
        ),
    ),
    Mutant(
        "map-written-blindly",
        _ONE_MAP,
        "A map is written at whichever version is there, not at the one that it follows from.",
        (
            Edit(
                "segmentstore.cluster.cluster_nodes:ClusterNodes.write_map",
                "await self._nodes.write(self.map_path, data, before.version)",
                "await self._nodes.write(\n"
                "    self.map_path, data, (await self._nodes.read(self.map_path)).version\n"
                ")",
            ),
        ),
        ClusterHunt(
            faults=("host.edits", "host.killed", "host.edits", "host.edits", "host.closed"),
            pause_s=1,
            rates={"node.watch.late": 0.3},
            seeds_max=30,
        ),
    ),
    Mutant(
        "edit-lost-in-the-wait-for-hosts",
        _ONE_MAP,
        "The leader decides from the map before its wait for hosts, and writes at the version "
        "behind it.",
        (
            Edit(
                f"{_ASSIGNER}._assign",
                "await asyncio.sleep(SETTLE_S)",
                "first = _map_of(seen)\nawait asyncio.sleep(SETTLE_S)",
            ),
            Edit(
                f"{_ASSIGNER}._assign",
                "before = _map_of(seen)",
                'before = locals().get("first", _map_of(seen))',
            ),
        ),
        ClusterHunt(faults=("host.killed.all", *("host.edits",) * 12) * 3, pause_s=2, seeds_max=30),
    ),
    Mutant(
        "map-not-followed",
        _SERVED,
        "A host and the leader keep the map that they have read first.",
        (
            Edit(
                f"{_VIEW}._note",
                "self._stale.add(path)",
                "if path != self._nodes.map_path:\n    self._stale.add(path)",
            ),
        ),
        ClusterHunt(faults=_DEATHS),
    ),
    Mutant(
        "leader-keeps-its-first-view",
        _SERVED,
        "The leader decides for ever from the hosts that it has seen first.",
        (
            Edit(
                f"{_ASSIGNER}._assign",
                "self._count, seen.records, before)",
                'self._count, self.__dict__.setdefault("first", seen.records), before)',
            ),
        ),
        ClusterHunt(faults=_DEATHS),
    ),
    Mutant(
        "host-gives-up-following",
        _SERVED,
        "A host that ZooKeeper did not answer follows the map no more.",
        (Edit(f"{_HOST}._follow", "again_s = loop.time() + backoff.next_s()", "return"),),
        ClusterHunt(
            faults=("host.zookeeper-away", "host.killed", "host.cut-off", "host.killed"),
            rates={"node.read.failed": 0.1},
        ),
    ),
    Mutant(
        "failure-not-reported",
        "4.5 Answers stay true: a container that a failure stopped is reported with its cause.",
        "A container that a failure has stopped is missing in the record of its host.",
        (
            Edit(
                _REPORTS,
                "if status.state is not HostState.STOPPED",
                "if status.state not in (HostState.STOPPED, HostState.FAILED)",
            ),
        ),
        ClusterHunt(faults=("host.session-lost", "host.paused.long") * 3),
    ),
    Mutant(
        "replaced-host-goes-on",
        "4.2 Opening fences: of two processes with one name one serves.",
        "A process goes on as a host whose name another process has taken since.",
        (
            Edit(
                f"{_HOST}._step",
                "assigned = AssignmentMap() if self._is_replaced else self._map",
                "assigned = self._map",
            ),
        ),
        ClusterHunt(
            faults=("host.replaced", "host.edits", "host.edits", "host.edits", "host.edits"),
            pause_s=30,
            hosts=2,
        ),
    ),
    Mutant(
        "pins-not-heeded",
        _ASKED,
        "A container that is pinned stays where balance has it.",
        (
            Edit(
                f"{_PLACEMENT}.pinned_to",
                "return host_id if host_id in self.allowed(container_id) else None",
                "return None",
            ),
        ),
        ClusterHunt(faults=_ORDERLY),
    ),
    Mutant(
        "drained-host-keeps-its-containers",
        _ASKED,
        "A host that is drained gets no container, and keeps its own.",
        (
            Edit(
                "segmentstore.cluster.assignment:_Planner._move_off",
                "unwanted = set(placement.hosts).difference(placement.open_hosts)",
                "unwanted = set()",
            ),
        ),
        ClusterHunt(faults=("host.edits",), pause_s=5),
    ),
    Mutant(
        "moves-without-bound",
        "4.5 Every queue has a bound: few containers are moved at a time.",
        "All containers of a host are moved at once.",
        (
            Edit(
                "segmentstore.cluster.assignment:_Planner._move",
                "if len(self._moves) >= MOVES_AT_ONCE:\n    return False",
                "pass",
            ),
        ),
        ClusterHunt(faults=("host.closed", "host.edits", "host.closed"), hosts=2, containers=8),
    ),
)
