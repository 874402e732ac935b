"""What the gateway promises about ends: its own, its parent's, and the patience of those who use
it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from durablelog.bookkeeper.gateway import gateway_ledger_store, shared_gateway
from durablelog.bookkeeper.gateway.gateway_ledger_store import GatewayLedgerStore
from durablelog.bookkeeper.gateway.gateway_process import GatewayProcess
from durablelog.bookkeeper.gateway.gateway_protocol import HANDSHAKE_REPLY, hello
from durablelog.bookkeeper.gateway.gateway_settings import (
    GATEWAY_CLOSED,
    LOG_VARIABLE,
    METADATA_SERVICE,
    TOKEN_VARIABLE,
    GatewaySettings,
)
from durablelog.bookkeeper.gateway.handshake import connect
from durablelog.bookkeeper.gateway.shared_gateway import (
    DEATHS_MAX,
    DEATHS_WITHIN_S,
    GatewayDeaths,
    OwnGateway,
)
from durablelog.bookkeeper.ledger_store import OK, LedgerError, LedgerState, Replication
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from recovery.harness.services.pausing import pause_process
from recovery.harness.services.server import free_port
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from tests.contracts.ledger_store_contract import Results, append_all, entry, read_all
from tests.durablelog.bookkeeper.gateway_world import (
    ENDING_S,
    ReportingExecutor,
    Watched,
    opened,
    run,
    store_of,
)
from tests.durablelog.bookkeeper.kept_gateway import kept_gateway
from tests.store.harness import until
from tests.support.suites import slow

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def cluster(shared_bookkeeper: BookKeeperCluster) -> BookKeeperCluster:
    shared_bookkeeper.start()
    return shared_bookkeeper


def test_a_killed_gateway_is_an_error_for_every_entry_in_flight_and_the_next_call_starts_another(
    cluster: BookKeeperCluster,
) -> None:
    async def scenario(store: GatewayLedgerStore, first: OwnGateway) -> None:
        writer = await store.create(Replication(), {})
        results = Results(writer)
        await append_all(writer, results, [[entry(number)] for number in range(50)])
        for number in range(50, 400):
            writer.append([entry(number)])
        await results.until(60)
        # Those behind have no answer for sure, however fast it is.
        pause_process(first.process.pid)
        for number in range(400, 800):
            writer.append([entry(number)])
        os.kill(first.process.pid, signal.SIGKILL)
        codes = [result.code for result in await results.until(800)]
        good = codes.index(GATEWAY_CLOSED)
        assert codes == [OK] * good + [GATEWAY_CLOSED] * (800 - good)
        assert "gateway" in (store.health() or "")
        writer.append([b"to no gateway"])
        assert (await results.until(801))[800].code == GATEWAY_CLOSED
        await writer.close()

        ledger = await store.recover(writer.ledger_id)
        assert store.health() is None
        assert ledger.state is LedgerState.CLOSED
        assert good <= ledger.last_entry + 1 <= 800
        found = await read_all(store, writer.ledger_id, 0, ledger.last_entry)
        assert found == [entry(number) for number in range(ledger.last_entry + 1)]
        again = await store.create(Replication(), {})
        await append_all(again, Results(again), [[b"goes on"]])

    run(cluster, scenario)


def test_a_reading_ends_with_its_gateway(cluster: BookKeeperCluster) -> None:
    async def scenario(store: GatewayLedgerStore, gateway: OwnGateway) -> None:
        writer = await store.create(Replication(), {})
        await append_all(writer, Results(writer), [[bytes(1 << 20)]] * 20)
        reading = store.read(writer.ledger_id, 0, 19)
        await anext(reading)
        os.kill(gateway.process.pid, signal.SIGKILL)
        with pytest.raises(LedgerError) as failure:
            _ = [batch async for batch in reading]
        assert failure.value.code == GATEWAY_CLOSED

    run(cluster, scenario)


def test_entries_for_a_fenced_ledger_are_not_kept(cluster: BookKeeperCluster) -> None:
    async def scenario(store: GatewayLedgerStore, _gateway: OwnGateway) -> None:
        sent, together = 200, 5
        writer = await store.create(Replication(), {})
        results = Results(writer)
        await append_all(writer, results, [[b"x"]])
        await store.recover(writer.ledger_id)
        used = [(await store.gateway_usage())[1]]
        for end in range(together, sent + 1, together):
            for _ in range(together):
                writer.append([bytes(1 << 20)])
            assert OK not in {result.code for result in (await results.until(1 + end))[1:]}
            _, direct, held = await store.gateway_usage()
            assert held == 0
            used.append(direct)
        # How many of those that are sent together are there at the same time is chance, and which
        # threads' chunks they take. Each may have a copy for each of three bookies.
        assert used[-1] - used[0] < sent // 2 << 20

    run(cluster, scenario)


def test_stores_of_a_process_share_one_gateway_that_ends_with_the_last(
    cluster: BookKeeperCluster,
) -> None:
    async def scenario() -> None:
        async with opened(cluster) as other:
            async with opened(cluster) as one:
                assert await one.list_ids() == await other.list_ids()
                with kept_gateway() as gateway:
                    assert gateway.users == 3
                    watched = Watched(gateway.process.pid)
            writer = await other.create(Replication(), {})
            await append_all(writer, Results(writer), [[b"still here"]])
            await writer.close()
        assert await asyncio.to_thread(watched.ends)

    asyncio.run(scenario())


def test_closing_ends_a_gateway_that_hangs(cluster: BookKeeperCluster) -> None:
    async def scenario() -> None:
        async with opened(cluster):
            with kept_gateway() as gateway:
                pid = gateway.process.pid
                watched = Watched(pid)
            pause_process(pid)
        assert await asyncio.to_thread(watched.ends)

    asyncio.run(scenario())


def test_a_gateway_ends_with_its_parent_and_leaves_nothing(tmp_path: Path) -> None:
    program = (
        "from durablelog.bookkeeper.gateway.gateway_process import GatewayProcess\n"
        "gateway = GatewayProcess('token')\n"
        "print(gateway.pid, gateway.data_socket, flush=True)\n"
        "gateway.wait()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        pid, _, path = parent.stdout.readline().strip().partition(" ")
    watched = Watched(int(pid))
    assert Path(path).exists()
    parent.kill()
    parent.wait()
    assert watched.ends()
    assert not Path(path).parent.exists()


def test_a_gateway_ends_with_its_parent_though_a_forked_child_of_that_holds_the_pipe() -> None:
    program = (
        "import os, signal\n"
        "from durablelog.bookkeeper.gateway.gateway_process import GatewayProcess\n"
        "gateway = GatewayProcess('token')\n"
        # A child closes the pipe itself, but not a copy that it does not know.
        "os.dup(gateway._process.stdin.fileno())\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    signal.pause()\n"
        "print(gateway.pid, child, gateway.data_socket, flush=True)\n"
        "signal.pause()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        pid, child, path = parent.stdout.readline().strip().split(" ")
    watched, holder = Watched(int(pid)), Watched(int(child))
    try:
        held = pipes(int(child)) & pipes(int(pid))
        assert held, "the child does not hold the gateway's standard input"
        parent.kill()
        assert watched.ends()
        assert held <= pipes(int(child))
        assert not Path(path).parent.exists()
    finally:
        parent.kill()
        parent.wait()
        os.kill(int(child), signal.SIGKILL)
        assert holder.ends()


def pipes(pid: int) -> set[str]:
    """Pipes that a process has open."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile, as a file that Java has loaded
            found.add(os.readlink(descriptor))
    return {link for link in found if link.startswith("pipe:")}


def test_signals_to_all_processes_of_a_program_leave_its_gateway_running() -> None:
    """A terminal sends them, and a service manager. The program needs it to close its stores."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    gateway = GatewayProcess("token")
    try:
        for number in numbers:
            os.kill(gateway.pid, number)
        assert {number for number in numbers if ignores(gateway.pid, number)} == set(numbers)
        assert gateway.control.call("dataSocket") == [gateway.data_socket]
    finally:
        gateway.stop()
    assert gateway.wait() == 0


def ignores(pid: int, number: signal.Signals) -> bool:
    """Whether a process ignores a signal, as the kernel reports it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = [int(line.split()[1], 16) for line in lines if line.startswith("SigIgn:")]
    return bool(mask >> (number - 1) & 1)


def test_a_gateway_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOG_VARIABLE, str(tmp_path))
    with pytest.raises(LedgerError, match=f"{TOKEN_VARIABLE} is not set") as failure:
        GatewayProcess("")
    assert failure.value.code == GATEWAY_CLOSED
    assert [path.name for path in tmp_path.glob("gateway-*/stderr.log")] == ["stderr.log"]


def test_one_that_dies_again_and_again_is_left_alone_for_a_while() -> None:
    deaths = GatewayDeaths()
    for number in range(DEATHS_MAX):
        deaths.add(100.0 + number)
    for now in (100.0 + DEATHS_MAX, 99.9 + DEATHS_WITHIN_S):
        with pytest.raises(LedgerError, match="died") as failure:
            deaths.add(now)
        assert failure.value.code == GATEWAY_CLOSED
    deaths.add(100.0 + DEATHS_WITHIN_S)


@slow(8)
def test_a_death_counts_also_if_the_last_store_has_left_the_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it has when the next one is started: it leaves with its connection."""
    monkeypatch.setattr(shared_gateway, "_state", type(shared_gateway._state)())
    rng = random.SystemRandom()
    shared_gateway.acquire_own(0.0, rng).release()
    for number in range(DEATHS_MAX + 1):
        gateway = shared_gateway.acquire_own(float(number), rng)
        gateway.process.kill()
        gateway.release()
    with pytest.raises(LedgerError, match="died"):
        shared_gateway.acquire_own(DEATHS_WITHIN_S, rng)
    shared_gateway.acquire_own(1 + DEATHS_WITHIN_S, rng).release()


def test_a_gateway_elsewhere_is_attached_to_and_outlives_the_store(
    cluster: BookKeeperCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "a secret")
    command = [sys.executable, "-m", "durablelog.bookkeeper.gateway"]
    foreground = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert foreground.stdout is not None
    with foreground.stdout:
        address = foreground.stdout.readline().strip()

    async def scenario() -> None:
        ledgers = []
        for _ in range(2):
            async with opened(cluster, address) as store:
                writer = await store.create(Replication(), {})
                await append_all(writer, Results(writer), [[b"by another's gateway"]])
                ledgers.append(writer.ledger_id)
                assert (await store.recover(ledgers[0])).last_entry == 0
        with monkeypatch.context() as wrong:
            wrong.setenv(TOKEN_VARIABLE, "not the secret")
            with pytest.raises(ConfigError, match=TOKEN_VARIABLE):
                async with opened(cluster, address):
                    pass

    try:
        asyncio.run(scenario())
    finally:
        foreground.terminate()
        assert foreground.wait(ENDING_S) == 0
    with pytest.raises(LedgerError) as failure:
        asyncio.run(store_of(cluster, address).open())
    assert failure.value.code == GATEWAY_CLOSED


ATTACHED = """
import asyncio, signal, sys
from durablelog.bookkeeper.gateway.gateway_ledger_store import GatewayLedgerStore, GatewaySettings
from durablelog.bookkeeper.ledger_store import Replication
from segmentstore.contracts.runtime import Runtime

async def main():
    settings = GatewaySettings(metadata_uri=sys.argv[1], password=b"secret", attach=sys.argv[2])
    store = GatewayLedgerStore(settings, Runtime())
    await store.open()
    writer = await store.create(Replication(), {})
    writer.append([b"x"])
    print(store._link.session, writer.ledger_id, flush=True)
    signal.pause()

asyncio.run(main())
"""


def attached_process(cluster: BookKeeperCluster, gateway: OwnGateway) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ATTACHED, cluster.metadata_uri, f"127.0.0.1:{gateway.process.port}"],
        cwd=ROOT,
        env={**os.environ, TOKEN_VARIABLE: gateway.token},
        stdout=subprocess.PIPE,
        text=True,
    )


def await_end_of_session(gateway: OwnGateway, session: int, ledger_id: int) -> None:
    """Raises the error of a call in a session that is over."""
    while True:
        gateway.control.call("describe", session, ledger_id, 10_000)


def test_a_killed_process_leaves_nothing_in_a_gateway_and_disturbs_no_other(
    cluster: BookKeeperCluster,
) -> None:
    async def scenario(store: GatewayLedgerStore, gateway: OwnGateway) -> None:
        writer = await store.create(Replication(), {})
        results = Results(writer)
        await append_all(writer, results, [[entry(0)]])
        process = attached_process(cluster, gateway)
        try:
            assert process.stdout is not None
            with process.stdout:
                session, ledger_id = map(int, process.stdout.readline().split())
            gateway.control.call("describe", session, ledger_id, 10_000)
        finally:
            process.kill()
            process.wait()
        with pytest.raises(LedgerError) as failure:
            await asyncio.to_thread(await_end_of_session, gateway, session, ledger_id)
        assert failure.value.code == GATEWAY_CLOSED
        writer.append([entry(1)])
        assert (await results.until(2))[1].code == OK
        assert (await store.recover(ledger_id)).state is LedgerState.CLOSED

    run(cluster, scenario)


@pytest.mark.parametrize("address", ["", "somewhere", ":1", "host:", "host:port"])
def test_an_address_that_is_none_is_refused(
    cluster: BookKeeperCluster, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "a secret")
    with pytest.raises(ConfigError, match="HOST:PORT"):
        asyncio.run(store_of(cluster, address).open())


def test_the_data_socket_takes_no_client_without_the_token() -> None:
    async def scenario() -> None:
        with kept_gateway() as gateway:
            for greeting in (
                hello(b"A", "guess"),
                hello(b"R", ""),
                b"GET / HTTP/1.1\r\n\r\n",
                bytes(100),
            ):
                stranger = await connect(gateway.data_socket, greeting)
                with stranger:
                    try:
                        assert await asyncio.get_running_loop().sock_recv(stranger, 1) == b""
                    except ConnectionResetError:
                        pass  # what it had not read of ours, it refused that way

    asyncio.run(scenario())


def test_silent_connections_to_the_data_socket_shut_no_client_out() -> None:
    gateway = GatewayProcess("token", archive=["-Dsegmentstore.gateway.handshake.millis=2000"])
    silent = [socket.socket(socket.AF_UNIX) for _ in range(256)]
    try:
        for connection in silent:
            connection.connect(gateway.data_socket)
        with socket.socket(socket.AF_UNIX) as late:
            late.connect(gateway.data_socket)  # waits for its turn to be accepted
            late.sendall(hello(b"A", "token"))
            code, _ = HANDSHAKE_REPLY.unpack(late.recv(HANDSHAKE_REPLY.size, socket.MSG_WAITALL))
            assert code == OK
    finally:
        for connection in silent:
            connection.close()
        gateway.stop()


def test_no_cluster_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_ledger_store, "CONNECT_S", 1.0)
    # A Java process that has just begun may be late to say so; it does not hang.
    monkeypatch.setattr(gateway_ledger_store, "_LATE_S", 60.0)
    port = free_port()

    async def scenario() -> None:
        settings = GatewaySettings(metadata_uri=f"zk+hierarchical://127.0.0.1:{port}/ledgers")
        store = GatewayLedgerStore(settings, Runtime())
        with pytest.raises(LedgerError) as failure:
            await store.open()
        assert failure.value.code == METADATA_SERVICE
        assert store.health() is not None
        await store.close()

    asyncio.run(scenario())


def test_closing_does_not_wait_for_a_cluster_that_does_not_answer() -> None:
    async def scenario() -> None:
        executor = ReportingExecutor("connect")
        with socket.create_server(("127.0.0.1", 0)) as silent, kept_gateway():
            uri = f"zk+hierarchical://127.0.0.1:{silent.getsockname()[1]}/ledgers"
            store = GatewayLedgerStore(
                GatewaySettings(metadata_uri=uri), Runtime(executor=lambda *_: executor)
            )
            opening = asyncio.gather(store.open(), return_exceptions=True)
            await executor.begun.wait()
            await store.close()
            assert not executor.calls[0].done()
            (outcome,) = await opening
            assert isinstance(outcome, LedgerError)
            assert outcome.code == GATEWAY_CLOSED
            with pytest.raises(LedgerError, match="closed"):
                await store.open()

    asyncio.run(scenario())


def test_a_ledger_whose_maker_left_is_deleted(cluster: BookKeeperCluster) -> None:
    async def scenario() -> None:
        executor = ReportingExecutor("create")
        settings = GatewaySettings(metadata_uri=cluster.metadata_uri)
        store = GatewayLedgerStore(settings, Runtime(executor=lambda *_: executor))
        await store.open()
        before = await store.list_ids()
        cluster.pause_zookeeper()
        try:
            making = asyncio.gather(store.create(Replication(), {}))
            await executor.begun.wait()
            making.cancel()
        finally:
            cluster.resume_zookeeper()
        with pytest.raises(asyncio.CancelledError):
            await making
        await asyncio.to_thread(executor.calls[0].result)
        while await store.list_ids() != before:
            pass
        await store.close()

    asyncio.run(asyncio.wait_for(scenario(), 240))


class Answering(ThreadPoolExecutor):
    """Its control calls of this name are answered by the test."""

    def __init__(self, name: str) -> None:
        super().__init__(8)
        self.asked: Future[Any] | None = None
        self._name = name

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        if arguments[:1] != (self._name,):
            return super().submit(function, *arguments, **named)
        self.asked = Future()
        return self.asked


@pytest.mark.parametrize("name", ["create", "recover", "delete"])
def test_what_a_client_says_of_a_call_whose_session_has_ended_is_no_answer(
    cluster: BookKeeperCluster, name: str
) -> None:
    """Closed under a call, BookKeeper's client may give -999, which would stop a log for good."""

    async def scenario() -> None:
        executor = Answering(name)
        settings = GatewaySettings(metadata_uri=cluster.metadata_uri)
        store = GatewayLedgerStore(settings, Runtime(executor=lambda *_: executor))
        await store.open()
        calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "create": lambda: store.create(Replication(), {}),
            "recover": lambda: store.recover(1),
            "delete": lambda: store.delete(1),
        }
        calling = asyncio.ensure_future(calls[name]())
        await until(lambda: executor.asked is not None)
        assert executor.asked is not None
        assert store._link is not None
        store._link.connection.close("it is cut")
        executor.asked.set_exception(LedgerError(-999, name, "closed meanwhile"))
        with pytest.raises(LedgerError, match="it is cut") as failure:
            await calling
        assert failure.value.code == GATEWAY_CLOSED
        await store.close()

    asyncio.run(asyncio.wait_for(scenario(), 240))
