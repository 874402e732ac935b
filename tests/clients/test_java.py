"""Pravega's Java client 0.13.0, unchanged, against `segmentstore serve`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from tests.clients.client_security import ClientSecurity
from tests.clients.java_program import passed_steps, started_program
from tests.clients.pravega_controller import ControlledStore
from tests.clients.served_store import KILL_RUNS, ServedStore
from tests.support.suites import by_target, slow

pytestmark = pytest.mark.timeout(900)

STEPS = (
    "lease",
    "sealing",
    "scaling",
    "checkpoint",
    "events",
    "streamCuts",
    "subscribers",
    "recreation",
    "largeEvent",
    "batches",
    "transactions",
    "completedTransactions",
    "byteStream",
    "revisions",
    "synchronizer",
    "table",
    "tablePages",
    "administration",
)


def all_pass(server: ServedStore, steps: tuple[str, ...] = STEPS) -> None:
    with started_program(server, *steps) as process:
        assert passed_steps(server, process) == set(steps)


def test_all_steps_pass_on_the_file_log(tmp_path: Path) -> None:
    with ServedStore(tmp_path, containers=4) as server:
        all_pass(server)


@slow(30)
def test_all_steps_pass_on_bookkeeper(tmp_path: Path, shared_bookkeeper: BookKeeperCluster) -> None:
    shared_bookkeeper.start()
    tier1 = shared_bookkeeper.url("/clients/java")
    with ServedStore(tmp_path, containers=4, tier1=tier1) as server:
        all_pass(server)


@slow(12)
def test_all_steps_pass_with_tls_and_users(tmp_path: Path) -> None:
    security = ClientSecurity(tmp_path / "keys")
    with ServedStore(tmp_path / "server", security, containers=4) as server:
        all_pass(server, (*STEPS, "wrongPassword"))


@by_target
@pytest.mark.cluster
def test_all_steps_pass_with_pravegas_controller(controlled_store: ControlledStore) -> None:
    all_pass(controlled_store, without("completedTransactions"))


@by_target
@pytest.mark.cluster
def test_steps_pass_with_users_of_pravegas_controller(
    tmp_path: Path, shared_bookkeeper: BookKeeperCluster
) -> None:
    shared_bookkeeper.start()
    security = ClientSecurity(tmp_path / "keys")
    with ControlledStore(tmp_path / "server", shared_bookkeeper.zookeeper, security) as server:
        # It lists the completed transactions of a store if all of them are of one stream.
        all_pass(server, ("completedTransactions",))
        # Its tokens for a key-value table name no segment of the table.
        rest = without("completedTransactions", "table", "tablePages")
        all_pass(server, (*rest, "wrongPassword"))


def without(*steps: str) -> tuple[str, ...]:
    """The other ones. They fail with Pravega's Controller, with any store."""
    return tuple(step for step in STEPS if step not in steps)


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=by_target) for seed in range(KILL_RUNS)])
def test_events_are_there_once_after_twenty_kills(tmp_path: Path, seed: int) -> None:
    with ServedStore(tmp_path, containers=4) as server:
        survives(server, seed)


@by_target
@pytest.mark.cluster
def test_events_are_there_once_after_kills_below_pravegas_controller(
    controlled_store: ControlledStore,
) -> None:
    survives(controlled_store, 0)


def survives(server: ServedStore, seed: int) -> None:
    rng = random.Random(seed)
    with started_program(server, "survival") as process:
        assert process.stdout is not None
        for begin in range(1_000, 19_000, 900):
            kill, written = begin + rng.randrange(500), 0
            while written < kill:
                line = process.stdout.readline()
                assert line, server.condition()
                if line.startswith(b"written "):
                    written = int(line.split()[1])
            server.restart(kill=True)
        assert passed_steps(server, process) == {"survival"}
