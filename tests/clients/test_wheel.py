"""The Python wheel `pravega`, as it is on PyPI, against `segmentstore serve`."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import select
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO

import grpc
import pytest

from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from tests.clients.client_security import READER, ClientSecurity
from tests.clients.keyed_events import by_key, numbered
from tests.clients.pravega_controller import ControlledStore
from tests.clients.served_store import KILL_RUNS, ServedStore
from tests.clients.wheel_runs import STEP_S, finish_step, run_step, started_step
from tests.controller.grpc_client import GrpcClient
from tests.support.suites import by_target, slow

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def our_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedStore]:
    """One for all tests here, which use scopes of their own: it costs 1.5 s of a core."""
    with ServedStore(tmp_path_factory.mktemp("served"), containers=4) as running:
        yield running


@pytest.fixture(
    params=[
        pytest.param("ours", marks=pytest.mark.cluster),
        pytest.param("pravega", marks=[by_target, pytest.mark.cluster]),
    ]
)
def server(request: pytest.FixtureRequest) -> ServedStore:
    """With our Controller, and with Pravega's, which all tests share."""
    name = {"ours": "our_store", "pravega": "controlled_store"}[request.param]
    shared: ServedStore = request.getfixturevalue(name)
    shared.start()
    shared.scope = re.sub("[^a-z0-9]+", "-", request.node.name).strip("-")
    return shared


def test_a_reader_goes_on_where_another_one_of_its_group_left(server: ServedStore) -> None:
    first, second = run_step(server, "hand_over")
    assert first
    assert second
    assert by_key(first + second) == by_key(numbered(5_000))


@slow(3)
def test_a_reader_goes_on_with_bookkeeper(
    tmp_path: Path, shared_bookkeeper: BookKeeperCluster
) -> None:
    shared_bookkeeper.start()
    tier1 = shared_bookkeeper.url("/clients/wheel-reader")
    with ServedStore(tmp_path, containers=4, tier1=tier1) as server:
        first, second = run_step(server, "hand_over")
    assert by_key(first + second) == by_key(numbered(5_000))


@by_target
@pytest.mark.cluster
def test_streams_are_there_after_pravegas_controller_is_killed(
    controlled_store: ControlledStore,
) -> None:
    """With the store below it."""
    controlled_store.scope = "controller-kill"
    run_step(controlled_store, "make_ordered")
    with started_step(controlled_store, "write_ordered") as writing:
        assert writing.stdout is not None
        while int(writing.stdout.readline()) < 1_000:
            pass
        controlled_store.kill_both()
        controlled_store.start()
        assert finish_step(controlled_store, writing) == 4_000
    assert by_key(run_step(controlled_store, "read_ordered")) == by_key(numbered(4_000))


@slow(10)
def test_readers_of_a_group_share_the_segments(server: ServedStore) -> None:
    """The wheel moves segments to a new reader after 10 s, so that is how long it takes."""
    run_step(server, "make_shared")
    with (
        started_step(server, "write_on") as writing,
        started_step(server, "share") as first,
        started_step(server, "share") as second,
    ):
        found: dict[IO[bytes], list[str]] = {}
        lines = lines_of([first, second])
        while len(found) < 2:
            reader, line = next(lines)
            found.setdefault(reader, []).extend(json.loads(line))
        written = finish_step(server, writing)
        while sum(map(len, found.values())) < written:
            reader, line = next(lines)
            found[reader].extend(json.loads(line))
    # In what order two processes read the events of a key cannot be seen from here.
    assert sorted(itertools.chain(*found.values())) == sorted(numbered(written))


def lines_of(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[tuple[IO[bytes], bytes]]:
    """Lines as they come, with where they come from."""
    outputs = [process.stdout for process in processes if process.stdout is not None]
    while True:
        for output in select.select(outputs, [], [])[0]:
            yield output, output.readline()


def test_an_event_larger_than_a_frame_is_in_its_place(server: ServedStore) -> None:
    written, read = run_step(server, "large_event")
    assert len(written) == 3
    assert read == written


def test_transactions_are_read_once_committed_and_never_once_aborted(server: ServedStore) -> None:
    found = run_step(server, "transactions")
    assert sorted(found.pop("read")) == sorted(f"committed {number}" for number in range(30))
    assert found == {
        "open before": [True, True, True],
        "open after": [False, False, True],
        "commit after abort": "TxnFailedException",
    }


@slow(4)
def test_a_transaction_that_its_writer_left_is_aborted(server: ServedStore) -> None:
    """The wheel's lease is 90 s, and cannot be set."""
    with started_step(server, "leave_transaction") as left:
        transaction, _ = left.communicate(timeout=STEP_S)
    with started_step(server, "outlive_transaction") as waiting:
        assert waiting.stdin is not None
        waiting.stdin.write(transaction)
        found = finish_step(server, waiting, 2 * STEP_S)
    assert found["waited"] > 60
    # It names the transaction that is not open any more.
    assert found["commit"] == transaction.decode().strip()
    assert by_key(found["read"]) == by_key(numbered(10))


def test_a_byte_stream_is_read_back_and_truncated(server: ServedStore) -> None:
    assert run_step(server, "byte_stream") == {
        "equal": True,
        "tail": 3_000_000,
        "head": 1_500_000,
        "behind the head": True,
    }


def test_a_stream_is_sealed_before_it_is_deleted(server: ServedStore) -> None:
    found = run_step(server, "seal_and_delete")
    assert by_key(found.pop("read")) == by_key(numbered(100))
    assert "Not Sealed" in found.pop("delete of an open stream")
    assert found == {
        "created again": [False, False],
        "tags": ["red"],
        "sealed": True,
        "listed": ["_MARKstream", "_MARKtagged", "stream", "tagged"],
        "deleted": True,
        "deleted again": False,
    }


def test_with_tls_a_user_does_what_it_may(tmp_path: Path) -> None:
    security = ClientSecurity(tmp_path / "keys")
    with ServedStore(tmp_path / "server", security, containers=4) as server:
        use_as_users(server, security)


@by_target
@pytest.mark.cluster
def test_with_pravegas_controller_a_user_does_what_it_may(
    tmp_path: Path, shared_bookkeeper: BookKeeperCluster
) -> None:
    shared_bookkeeper.start()
    security = ClientSecurity(tmp_path / "keys")
    with ControlledStore(tmp_path / "server", shared_bookkeeper.zookeeper, security) as server:
        use_as_users(server, security)


def use_as_users(server: ServedStore, security: ClientSecurity) -> None:
    first, second = run_step(server, "hand_over")
    assert by_key(first + second) == by_key(numbered(5_000))
    refused = run_step(server, "refused_calls", **security.environment(READER))
    assert refused.pop("listed") == ["_MARKstream", "stream"]
    # A writer is not given the reason: its connection is refused.
    assert refused.pop("write") is not None
    assert {name for name, reason in refused.items() if "PermissionDenied" in reason} == {
        "scope",
        "stream",
        "seal",
    }


def test_events_stay_in_order_while_the_stream_is_scaled(server: ServedStore) -> None:
    scales = iter(
        (
            [(0.0, 0.1), (0.1, 0.25)],
            # Pravega's Controller keeps at least so many segments as the policy says.
            [(0.25, 0.8), (0.8, 1.0)],
        )
    )

    def scale() -> None:
        asyncio.run(scale_stream(server, next(scales)))

    write_meanwhile(server, [800, 2_400], scale)


async def scale_stream(server: ServedStore, ranges: Sequence[tuple[float, float]]) -> None:
    """The wheel has no call for it. Ends when the stream is scaled.

    The numbers of segments begin behind those of streams that were deleted before, by other tests.
    """
    stream = {"scope": server.scope, "stream": "stream"}
    low, high = ranges[0][0], ranges[-1][1]
    async with grpc.aio.insecure_channel(server.address) as channel:
        client = GrpcClient(channel)
        current = (await client.call("getCurrentSegments", **stream)).ranges
        started = await client.call(
            "scale",
            stream_info=stream,
            sealed=[
                each.segment_id.segment_id
                for each in current
                if low <= each.low and each.high <= high
            ],
            ranges=[{"low": low, "high": high} for low, high in ranges],
        )
        assert started.status == 0
        state = 0
        while not state:
            answer = await client.call("checkScale", stream_info=stream, epoch=started.epoch)
            state = answer.status
        assert state == 1


def test_events_are_there_once_after_kills(server: ServedStore) -> None:
    write_while_killing(server, [800, 2_400])


@slow(20)
def test_events_are_there_once_after_kills_on_bookkeeper(
    tmp_path: Path, shared_bookkeeper: BookKeeperCluster
) -> None:
    shared_bookkeeper.start()
    tier1 = shared_bookkeeper.url("/clients/wheel")
    with ServedStore(tmp_path, containers=4, tier1=tier1) as server:
        write_while_killing(server, [800, 2_400])


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=by_target) for seed in range(KILL_RUNS)])
def test_events_are_there_once_after_twenty_kills(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    # Further apart than what is in flight: each comes after some events of a new connection.
    kills = [kill + rng.randrange(60) for kill in range(200, 3_800, 180)]
    with ServedStore(tmp_path, containers=4) as server:
        write_while_killing(server, kills)


def write_while_killing(server: ServedStore, kills: Sequence[int]) -> None:
    write_meanwhile(server, kills, partial(server.restart, kill=True))


def write_meanwhile(server: ServedStore, times: Sequence[int], act: Callable[[], None]) -> None:
    """4,000 events, each once and in order per key. `act` is called each time that about so many
    have been handed over.
    """
    run_step(server, "make_ordered")
    with started_step(server, "write_ordered") as writing:
        assert writing.stdout is not None
        for time in times:
            while int(writing.stdout.readline()) < time:
                pass
            act()
        assert finish_step(server, writing) == 4_000
    assert by_key(run_step(server, "read_ordered")) == by_key(numbered(4_000))
