"""Gateways that hang, that cannot be started, and services that are away: every call ends, and
closing always works.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import socket
import subprocess
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from durablelog.bookkeeper.gateway import (
    add_connection,
    gateway_ledger_store,
    gateway_settings,
    shared_gateway,
)
from durablelog.bookkeeper.gateway.gateway_control import GatewayControl, GatewayHangsError
from durablelog.bookkeeper.gateway.gateway_ledger_store import GatewayLedgerStore
from durablelog.bookkeeper.gateway.gateway_settings import (
    GATEWAY_CLOSED,
    LOG_VARIABLE,
    METADATA_SERVICE,
    TIMEOUT,
    GatewaySettings,
)
from durablelog.bookkeeper.gateway.shared_gateway import GatewayDeaths, OwnGateway
from durablelog.bookkeeper.ledger_store import OK, LedgerError, Replication
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from recovery.harness.services.pausing import pause_process
from recovery.harness.services.server import free_port
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime, thread_executor
from tests.contracts.ledger_store_contract import Results, append_all, read_all
from tests.durablelog.bookkeeper.gateway_world import ReportingExecutor, Watched, opened, run
from tests.durablelog.bookkeeper.kept_gateway import kept_gateway
from tests.store.harness import until
from tests.support.suites import slow


@pytest.fixture(scope="module")
def cluster(shared_bookkeeper: BookKeeperCluster) -> BookKeeperCluster:
    shared_bookkeeper.start()
    return shared_bookkeeper


@pytest.fixture(autouse=True)
def _no_deaths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_gateway._state, "deaths", GatewayDeaths())


SEEN = 50
"""So many readings with the same number of entries: no more come."""


def pid_of_gateway() -> int:
    with kept_gateway() as gateway:
        return gateway.process.pid


def test_a_gateway_that_says_nothing_to_a_call_is_ended_and_the_next_call_starts_another(
    cluster: BookKeeperCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(cluster) as store:
            pid = pid_of_gateway()
            hung = Watched(pid)
            pause_process(pid)
            with monkeypatch.context() as impatient:
                for name in ("CREATE_S", "_LATE_S"):
                    impatient.setattr(gateway_ledger_store, name, 0.1)
                with pytest.raises(LedgerError, match="did not answer") as failure:
                    await store.create(Replication(), {})
            assert failure.value.code == TIMEOUT
            assert "did not answer" in (store.health() or "")
            await (await store.create(Replication(), {})).close()
            assert store.health() is None
            assert pid_of_gateway() != pid
            assert await asyncio.to_thread(hung.ends)

    asyncio.run(asyncio.wait_for(scenario(), 240))


@slow(15)
def test_a_gateway_that_hangs_is_noticed_without_a_request(
    cluster: BookKeeperCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(cluster) as store:
            pid = pid_of_gateway()
            hung = Watched(pid)
            pause_process(pid)
            said: set[str | None] = set()
            # No longer than that: the next one may be late while it starts.
            with monkeypatch.context() as impatient:
                impatient.setattr(add_connection, "SILENCE_S", 3.0)
                impatient.setattr(add_connection, "_SILENCE_SEEN_S", 2.0)
                while "said nothing for 3 s" not in (store.health() or ""):
                    said.add(store.health())
                    await asyncio.sleep(0.01)
            assert said == {None, "the gateway has said nothing for 2 s"}
            assert await asyncio.to_thread(hung.ends)
            await (await store.create(Replication(), {})).close()
            assert store.health() is None
            assert pid_of_gateway() != pid

    asyncio.run(asyncio.wait_for(scenario(), 240))


@slow(3)
def test_closing_works_though_every_thread_waits_for_a_gateway_that_hangs(
    cluster: BookKeeperCluster,
) -> None:
    async def scenario() -> None:
        executor = ReportingExecutor("describe")
        lanes = {"bookkeeper-gateway": executor}
        settings = GatewaySettings(metadata_uri=cluster.metadata_uri)
        runtime = Runtime(
            executor=lambda name, threads: lanes.get(name) or thread_executor(name, threads)
        )
        store = GatewayLedgerStore(settings, runtime)
        await store.open()
        pid = pid_of_gateway()
        hung = Watched(pid)
        pause_process(pid)
        calls = asyncio.gather(
            *(store.describe(number) for number in range(20)), return_exceptions=True
        )
        await executor.begun.wait()
        await store.close()
        assert await asyncio.to_thread(hung.ends)
        assert all(isinstance(outcome, LedgerError) for outcome in await calls)

    asyncio.run(asyncio.wait_for(scenario(), 240))


def test_no_thread_waits_without_an_end_for_a_gateway_that_takes_connections_and_says_nothing() -> (
    None
):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        control = GatewayControl("127.0.0.1", silent.getsockname()[1], "token")
        with pytest.raises(GatewayHangsError) as failure:
            control.call("dataSocket", answer_s=0.05)
        assert failure.value.code == TIMEOUT


@slow(6)
def test_a_gateway_that_cannot_be_started_again_is_an_error_that_passes(
    cluster: BookKeeperCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with opened(cluster) as store:
            pid = pid_of_gateway()
            ended = Watched(pid)
            os.kill(pid, signal.SIGKILL)
            assert await asyncio.to_thread(ended.ends)
            for variable in (LOG_VARIABLE, "SEGMENTSTORE_BOOKKEEPER_JARS"):
                with monkeypatch.context() as wrong:
                    wrong.setenv(variable, str(tmp_path / "missing"))
                    with pytest.raises(LedgerError) as failure:
                        await store.list_ids()
                    assert failure.value.code == GATEWAY_CLOSED
                    assert store.health() is not None
            await store.list_ids()
            assert store.health() is None

    asyncio.run(asyncio.wait_for(scenario(), 240))


def test_a_first_gateway_that_cannot_be_started_says_why_and_leaves_nothing(
    cluster: BookKeeperCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with monkeypatch.context() as wrong:
        wrong.setenv(LOG_VARIABLE, str(tmp_path / "missing"))
        with pytest.raises(LedgerError, match="missing") as failure:
            shared_gateway.acquire_own(0.0, random.SystemRandom())
    assert failure.value.code == GATEWAY_CLOSED
    assert list(tmp_path.iterdir()) == []

    async def not_installed() -> None:
        async with opened(cluster):
            raise AssertionError("it opened")

    monkeypatch.setenv("SEGMENTSTORE_BOOKKEEPER_JARS", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="install"):
        asyncio.run(not_installed())


class GivenBack:
    """A gateway that notes who gave it back."""

    def __init__(self) -> None:
        self.by: list[int] = []

    def release(self) -> None:
        self.by.append(threading.get_ident())


class KeepingExecutor(ThreadPoolExecutor):
    """Keeps its first call."""

    def __init__(self) -> None:
        super().__init__(1)
        self.first: asyncio.Future[Future[Any]] = asyncio.get_running_loop().create_future()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        call = super().submit(function, *arguments, **named)
        if not self.first.done():
            self.first.set_result(call)
        return call


def test_a_gateway_that_comes_just_as_its_opener_leaves_is_given_back_by_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateway = GivenBack()
    monkeypatch.setattr(gateway_ledger_store, "acquire_own", lambda _now, _random: gateway)

    async def scenario() -> None:
        executor = KeepingExecutor()
        lanes = {"bookkeeper-gateway": executor}
        runtime = Runtime(
            executor=lambda name, threads: lanes.get(name) or thread_executor(name, threads)
        )
        store = GatewayLedgerStore(GatewaySettings(metadata_uri="zk://nowhere/ledgers"), runtime)
        opening = asyncio.gather(store.open())
        # The loop stands still meanwhile: it does not know yet that the gateway is there.
        assert (await executor.first).result() is gateway
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await store.close()

    asyncio.run(scenario())
    assert len(gateway.by) == 1
    assert gateway.by != [threading.get_ident()]


def test_a_connection_that_fails_without_zookeeper_is_none_that_ends_a_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(
        cast("dict[str, str]", gateway_settings.CLIENT_SETTINGS), "zkTimeout", "500"
    )
    port = free_port()

    async def scenario() -> None:
        settings = GatewaySettings(metadata_uri=f"zk+hierarchical://127.0.0.1:{port}/ledgers")
        store = GatewayLedgerStore(settings, Runtime())
        with pytest.raises(LedgerError, match="Exception") as failure:
            await store.open()
        assert failure.value.code == METADATA_SERVICE
        assert str(failure.value).count(f"code {METADATA_SERVICE}") == 1
        await store.close()

    asyncio.run(scenario())


@slow(5)
def test_readings_that_are_not_taken_hold_up_no_other_store_of_the_gateway(
    cluster: BookKeeperCluster,
) -> None:
    async def scenario() -> None:
        async with opened(cluster) as greedy, opened(cluster) as other:
            writer = await greedy.create(Replication(), {})
            await append_all(writer, Results(writer), [[bytes(1 << 20)]] * 12)
            await writer.close()
            readings = [
                cast("AsyncGenerator[Sequence[memoryview]]", greedy.read(writer.ledger_id, 0, 11))
                for _ in range(4)
            ]
            for reading in readings:
                await anext(reading)
            assert await read_all(other, writer.ledger_id, 0, 0) == [bytes(1 << 20)]
            for reading in readings:
                await reading.aclose()

    asyncio.run(asyncio.wait_for(scenario(), 240))


async def make_until_too_late(store: GatewayLedgerStore, made: list[int]) -> None:
    """A process that was asked to stop may answer a little longer."""
    while True:
        made.append((await store.create(Replication(), {})).ledger_id)


@slow(6)
def test_a_ledger_that_was_created_too_late_is_deleted_by_the_gateway(
    cluster: BookKeeperCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(cluster) as store:
            pid = pid_of_gateway()
            before = await store.list_ids()
            made: list[int] = []
            cluster.pause_zookeeper()
            try:
                with monkeypatch.context() as impatient:
                    impatient.setattr(gateway_ledger_store, "CREATE_S", 0.2)
                    # It says so itself, and is not taken to hang.
                    impatient.setattr(gateway_ledger_store, "_LATE_S", 60.0)
                    with pytest.raises(LedgerError, match="within 200 ms") as failure:
                        await make_until_too_late(store, made)
                assert failure.value.code == TIMEOUT
            finally:
                cluster.resume_zookeeper()
            made += [(await store.create(Replication(), {})).ledger_id for _ in range(2)]
            late = made[-2] - 1
            assert late not in made
            while await store.list_ids() != [*before, *made]:
                pass
            assert pid_of_gateway() == pid

    asyncio.run(asyncio.wait_for(scenario(), 240))


def ledgers_open_to_read(process: int) -> int:
    """How many of them are in the memory of a gateway behind a full collection."""
    listed = subprocess.run(
        ["jmap", "-histo:live", str(process)], capture_output=True, text=True, check=True
    ).stdout
    (count,) = re.findall(r"(\d+) +\d+ +org\S+\.ReadOnlyLedgerHandle\b", listed) or ["0"]
    return int(count)


@slow(30)
def test_a_ledger_that_is_open_too_late_for_its_reading_is_closed(
    cluster: BookKeeperCluster,
) -> None:
    async def scenario(store: GatewayLedgerStore, gateway: OwnGateway) -> None:
        writer = await store.create(Replication(), {})
        await append_all(writer, Results(writer), [[b"x"]])
        await writer.close()
        pid = gateway.process.pid
        cluster.pause_zookeeper()
        try:
            with pytest.raises(LedgerError):
                await read_all(store, writer.ledger_id, 0, 0)
        finally:
            cluster.resume_zookeeper()
        # Behind the answer to the late opening, which comes in the order of the questions.
        assert await read_all(store, writer.ledger_id, 0, 0) == [b"x"]
        await until(lambda: ledgers_open_to_read(pid) == 0)

    run(cluster, scenario)


WINDOW_BYTES = 64 << 20
ENTRY_BYTES = 1 << 20


@slow(8)
def test_entries_for_bookies_that_take_nothing_fill_the_gateway_no_further_than_its_window(
    cluster: BookKeeperCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("addEntryTimeoutSec", "addEntryQuorumTimeoutSec"):
        # No entry is given up before the window is full.
        monkeypatch.setitem(cast("dict[str, str]", gateway_settings.CLIENT_SETTINGS), name, "120")
    sent = 200
    fit = WINDOW_BYTES // (ENTRY_BYTES + 1024)

    async def scenario(store: GatewayLedgerStore, _gateway: OwnGateway) -> None:
        writer = await store.create(Replication(), {})
        results = Results(writer)
        held = most = 0
        for bookie in range(cluster.bookies):
            cluster.pause_bookie(bookie)
        try:
            for _ in range(sent):
                writer.append([bytes(ENTRY_BYTES)])
            while held < fit:
                _, direct, held = await store.gateway_usage()
                most = max(most, direct)
                assert held <= fit
        finally:
            for bookie in range(cluster.bookies):
                cluster.resume_bookie(bookie)
        while len(results.got) < sent:
            _, direct, held = await store.gateway_usage()
            most = max(most, direct)
            assert held <= fit
        # The client has a copy for each of three bookies besides. The pool rounds those, which are
        # a little over 1 MiB, to a third of its chunks of 4 MiB: five windows. One bookie may be
        # half a window behind when they go on (the entry and its copy), and each thread has chunks
        # of its own.
        assert most <= 7 * WINDOW_BYTES < sent * 4 * ENTRY_BYTES

    run(cluster, scenario)


@slow(15)
def test_entries_of_many_stores_fit_the_memory_of_their_gateway_together(
    cluster: BookKeeperCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their windows do not, with the client's copies for each bookie. Stores that have filled
    theirs leave room for others.
    """
    for name in ("addEntryTimeoutSec", "addEntryQuorumTimeoutSec"):
        monkeypatch.setitem(cast("dict[str, str]", gateway_settings.CLIENT_SETTINGS), name, "120")
    sent = 70
    fit = (768 << 20) // 8 // (ENTRY_BYTES + 1024)

    async def scenario(store: GatewayLedgerStore, _gateway: OwnGateway) -> None:
        async def held() -> int:
            _, _, count = await store.gateway_usage()
            assert count <= fit
            return count

        async with opened(cluster) as second, opened(cluster) as third:
            writers = [await each.create(Replication(), {}) for each in (store, second, third)]
            all_results = [Results(writer) for writer in writers]
            for bookie in range(cluster.bookies):
                cluster.pause_bookie(bookie)
            try:
                for _ in range(sent):
                    for writer in writers[:2]:
                        writer.append([bytes(ENTRY_BYTES)])
                # Each has at most twice what is left.
                most, seen = 0, 0
                while most < fit * 4 // 5 - 2 or seen < SEEN:
                    count = await held()
                    seen = seen + 1 if count <= most else 0
                    most = max(most, count)
                for _ in range(sent):
                    writers[2].append([bytes(ENTRY_BYTES)])
                while await held() < most + 3:
                    pass
            finally:
                for bookie in range(cluster.bookies):
                    cluster.resume_bookie(bookie)
            while any(len(results.got) < sent for results in all_results):
                await held()
        assert {code for results in all_results for code, *_ in results.got} == {OK}

    run(cluster, scenario)
