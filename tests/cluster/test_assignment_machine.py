"""Hosts that come, leave, flap, fail starts and drain: decisions are legal, and all ends well."""

from __future__ import annotations

import dataclasses

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from segmentstore.cluster import map_edits
from segmentstore.cluster.assignment import assign
from segmentstore.cluster.assignment_map import (
    AssignmentMap,
    decode_assignment_map,
    encode_assignment_map,
)
from segmentstore.cluster.host_record import HostRecord, ReportedState
from tests.cluster.decision_checks import check_decision, open_to, spread
from tests.cluster.hosts_model import START_MS, host, step, with_state
from tests.support.suites import examples

CONTAINERS = 9
HOST_IDS = st.sampled_from(["a", "b", "c", "d"])
NUMBERS = st.integers(0, CONTAINERS - 1)


class HostsAndLeaders(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = START_MS
        self.map = AssignmentMap()
        self.registered: dict[str, HostRecord] = {}
        self.without_session: dict[str, HostRecord] = {}
        self.failing: set[tuple[int, str]] = set()

    # --- hosts ----------------------------------------------------------------------------------

    @rule(host_id=HOST_IDS, capacity=st.sampled_from([50, 100, 100, 250]))
    def start_host(self, host_id: str, capacity: int) -> None:
        """One that runs is restarted so fast that no decision sees it absent."""
        self.without_session.pop(host_id, None)
        self.registered[host_id] = host(host_id, capacity, started_ms=self.now_ms)

    @rule(host_id=HOST_IDS)
    def kill_host(self, host_id: str) -> None:
        self.registered.pop(host_id, None)
        self.without_session.pop(host_id, None)

    @rule(host_id=HOST_IDS)
    def lose_session(self, host_id: str) -> None:
        if host_id in self.registered:
            self.without_session[host_id] = self.registered.pop(host_id)

    @rule(host_id=HOST_IDS)
    def regain_session(self, host_id: str) -> None:
        if host_id in self.without_session:
            self.registered[host_id] = self.without_session.pop(host_id)

    @rule(host_id=HOST_IDS)
    def terminate(self, host_id: str) -> None:
        if host_id in self.registered:
            record = self.registered[host_id]
            self.registered[host_id] = dataclasses.replace(record, draining=True)

    @rule(host_id=HOST_IDS, steps=st.integers(1, 3))
    def act(self, host_id: str, steps: int) -> None:
        for _ in range(steps):
            if host_id in self.registered:
                step(self.now_ms, host_id, self.registered, self.map, self.failing)
                self.fence_earlier_owners(host_id)

    def fence_earlier_owners(self, host_id: str) -> None:
        """What this host serves stops on others, of which it could not know."""
        served = {
            number
            for number, report in self.registered[host_id].containers.items()
            if report.state is ReportedState.RUNNING and report.since_ms == self.now_ms
        }
        for others in (self.registered, self.without_session):
            for other, record in others.items():
                for number in served & record.containers.keys() if other != host_id else ():
                    others[other] = with_state(
                        others[other], number, ReportedState.FAILED, self.now_ms
                    )

    @rule(number=NUMBERS, host_id=HOST_IDS)
    def fail_starts(self, number: int, host_id: str) -> None:
        self.failing ^= {(number, host_id)}

    @rule(number=NUMBERS, host_id=HOST_IDS)
    def stop_by_failure(self, number: int, host_id: str) -> None:
        record = self.registered.get(host_id)
        if record is not None and number in record.containers:
            self.registered[host_id] = with_state(record, number, ReportedState.FAILED, self.now_ms)

    # --- persons --------------------------------------------------------------------------------

    @rule(number=NUMBERS, host_id=HOST_IDS)
    def pin(self, number: int, host_id: str) -> None:
        if (number, host_id) not in self.map.forbidden:
            self.map = map_edits.pin(self.map, CONTAINERS, number, host_id)

    @rule(number=NUMBERS)
    def unpin(self, number: int) -> None:
        self.map = map_edits.unpin(self.map, CONTAINERS, number)

    @rule(host_id=HOST_IDS)
    def drain(self, host_id: str) -> None:
        self.map = map_edits.drain(self.map, host_id)

    @rule(host_id=HOST_IDS)
    def undrain(self, host_id: str) -> None:
        self.map = map_edits.undrain(self.map, host_id)

    @rule(number=NUMBERS, host_id=HOST_IDS)
    def forbid(self, number: int, host_id: str) -> None:
        if self.map.pins.get(number) != host_id:
            self.map = map_edits.forbid(self.map, CONTAINERS, number, host_id)

    @precondition(lambda self: self.map.forbidden)
    @rule(data=st.data())
    def allow(self, data: st.DataObject) -> None:
        number, host_id = data.draw(st.sampled_from(sorted(self.map.forbidden)))
        self.map = map_edits.allow(self.map, CONTAINERS, number, host_id)

    # --- leaders --------------------------------------------------------------------------------

    @rule(passed_ms=st.sampled_from([1, 1_000, 20_000, 70_000, 400_000]))
    def decide(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.decide_now()

    @rule(ahead_ms=st.integers(-120_000, 120_000))
    def follow_another_leader(self, ahead_ms: int) -> None:
        """Its clock differs; it knows what the node holds."""
        self.now_ms += ahead_ms
        self.map = decode_assignment_map(encode_assignment_map(self.map), "map")
        self.decide_now()

    def decide_now(self) -> None:
        after = assign(self.now_ms, CONTAINERS, self.registered, self.map)
        check_decision(CONTAINERS, self.registered, self.map, after)
        assert assign(self.now_ms, CONTAINERS, self.registered, after) is after
        self.map = after

    # --- the end --------------------------------------------------------------------------------

    def teardown(self) -> None:
        """No more faults: the hosts and the leader settle, in some minutes of their time."""
        self.failing.clear()
        self.registered |= self.without_session
        self.without_session.clear()
        for pause_ms in [5_000] * 40 + [300_000] * 8 + [5_000] * 20:
            self.now_ms += pause_ms
            self.decide_now()
            for host_id in sorted(self.registered):
                self.act(host_id, 1)
        settled = self.map
        self.now_ms += 300_000
        self.decide_now()
        assert self.map is settled
        assert (settled.moves, settled.passed_over) == ({}, {})
        for number in range(CONTAINERS):
            self.check_served(number)
        self.check_even()

    def check_served(self, number: int) -> None:
        having = {
            host_id: record.containers[number].state
            for host_id, record in self.registered.items()
            if number in record.containers
        }
        owner, may = self.map.owners.get(number), open_to(number, self.registered, self.map)
        assert having == ({owner: ReportedState.RUNNING} if owner else {})
        assert owner in may if may else owner is None or (number, owner) not in self.map.forbidden
        if (pinned := self.map.pins.get(number)) in may:
            assert owner == pinned

    def check_even(self) -> None:
        counted = dataclasses.replace(
            self.map,
            owners={
                number: owner
                for number, owner in self.map.owners.items()
                if owner in open_to(number, self.registered, self.map)
            },
        )
        least = spread(counted, self.registered)
        for number, owner in counted.owners.items():
            if self.map.pins.get(number) == owner:
                continue
            for host_id in open_to(number, self.registered, self.map):
                other = dataclasses.replace(counted, owners={**counted.owners, number: host_id})
                assert spread(other, self.registered) >= least


TestHostsAndLeaders = HostsAndLeaders.TestCase
TestHostsAndLeaders.settings = settings(
    max_examples=examples(200), stateful_step_count=50, deadline=None
)
