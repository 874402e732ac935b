"""Pravega's clients, unchanged, on hosts of a cluster: containers move and hosts die while they
write, and each event is there once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from tests.clients.java_program import passed_steps, started_program
from tests.clients.served_hosts import CONTAINERS, ROOT, AssignedHosts, ServedHosts
from tests.clients.test_java import STEPS
from tests.support.suites import by_target, slow

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def hosts(tmp_path: Path, shared_bookkeeper: BookKeeperCluster) -> Iterator[ServedHosts]:
    shared_bookkeeper.start()
    tier1 = shared_bookkeeper.url(f"/clients/{tmp_path.name}")
    with ServedHosts(tmp_path, f"{tier1}?session_timeout_s=4") as running:
        yield running


@slow(60)
def test_all_java_steps_pass_while_each_container_moves(hosts: ServedHosts) -> None:
    """Once: a client that misses the next owner for a second tries again after 10 s, then 30."""
    with started_program(hosts, *STEPS) as process:
        for container in range(CONTAINERS):
            move(hosts, container)
        assert passed_steps(hosts, process) == set(STEPS)


@slow(60)
def test_java_events_are_there_once_after_moves_and_kills_of_hosts(hosts: ServedHosts) -> None:
    steps = disturbances(hosts)
    with started_program(hosts, "survival") as process:
        assert process.stdout is not None
        for begin in range(1_000, 19_000, 2_000):
            written = 0
            while written < begin:
                line = process.stdout.readline()
                assert line, hosts.condition()
                if line.startswith(b"written "):
                    written = int(line.split()[1])
            next(steps)()
        assert passed_steps(hosts, process) == {"survival"}


@by_target
def test_java_events_are_there_once_where_pravegas_controller_assigns(
    tmp_path: Path, shared_bookkeeper: BookKeeperCluster
) -> None:
    """It gives the containers of a killed host to the others, and some back when it returns."""
    shared_bookkeeper.start()
    tier1 = shared_bookkeeper.url("/clients/assigned?session_timeout_s=4")
    with (
        AssignedHosts(tmp_path, tier1, shared_bookkeeper.zookeeper, "assigned") as hosts,
        started_program(hosts, "survival") as process,
    ):
        assert process.stdout is not None
        for begin, killed in zip((2_000, 8_000, 14_000), hosts.hosts, strict=True):
            hosts.wait_until_assigned(*hosts.hosts)
            written = 0
            while written < begin:
                line = process.stdout.readline()
                assert line, hosts.condition()
                if line.startswith(b"written "):
                    written = int(line.split()[1])
            hosts.hosts[killed].kill()
            hosts.wait_until_assigned(*hosts.hosts.keys() - {killed})
            hosts.hosts[killed].start()
        assert passed_steps(hosts, process) == {"survival"}


@by_target
def test_java_steps_pass_where_pravegas_controller_assigns(
    tmp_path: Path, shared_bookkeeper: BookKeeperCluster
) -> None:
    shared_bookkeeper.start()
    tier1 = shared_bookkeeper.url("/clients/assigned-steps")
    zookeeper = shared_bookkeeper.zookeeper
    with AssignedHosts(tmp_path, tier1, zookeeper, "assigned-steps") as hosts:
        # It lists no completed transactions, as soon as they are of two streams.
        steps = tuple(step for step in STEPS if step != "completedTransactions")
        with started_program(hosts, *steps) as process:
            assert passed_steps(hosts, process) == set(steps)


def move(hosts: ServedHosts, container: int) -> None:
    """To another host."""
    owner = hosts.owner(container)
    hosts.move(container, next(name for name in hosts.hosts if name != owner))


def disturbances(hosts: ServedHosts) -> Iterator[Callable[[], None]]:
    """Moves of each container in turn, the Controller's between them; and kills of its host."""

    def kill() -> None:
        host = hosts.hosts[hosts.owner(ROOT)]
        host.kill()
        hosts.wait_until_served()
        host.start()

    for container in itertools.cycle(range(CONTAINERS)):
        yield lambda: move(hosts, ROOT)
        yield lambda container=container: move(hosts, container)  # type: ignore[misc]
        yield kill
