"""What becomes of a connection that ends, and of the calls that were on their way."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import segmentstore
from segmentstore import (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    RemoteStore,
    StoreClosedError,
    StoreDisconnectedError,
    StoreUnreachableError,
)
from segmentstore.contracts.local_socket import STORE_SOCKET_NAME
from segmentstore.contracts.runtime import Runtime
from segmentstore.wire.codec import encode
from segmentstore.wire.commands import Hello
from segmentstore.wire.store_commands import NumbersGiven, StoreDescribed
from tests.client.one_store import connect_one, connections_of, impostor
from tests.store.harness import WorldDisk, open_tiny, read_all, run, until

WRITER = UUID(int=1)


class TestEnds:
    def test_what_is_on_its_way_is_of_unknown_outcome(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as embedded:
                await embedded.create_segment("x")
                store = await connect_one(tmp_path / "s")
                writer = await store.writer("x", WRITER).open()
                calls: list[Awaitable[object]] = [
                    store.append("x", b"a"),
                    store.append("x", b"b", 1),
                    writer.append(b"c"),
                    asyncio.ensure_future(store.seal("x")),
                ]
                read = asyncio.ensure_future(store.read("x", 0, 1, 60.0))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                unsent = asyncio.ensure_future(store.truncate("x", 0))
                await asyncio.sleep(0)
                store._connection.abort()
                for call in calls:
                    with pytest.raises(AppendOutcomeUnknownError) as caught:
                        await call
                    assert isinstance(caught.value.cause, StoreDisconnectedError)
                outcomes = await asyncio.gather(read, unsent, return_exceptions=True)
                assert [type(each) for each in outcomes] == [StoreDisconnectedError] * 2
                refused: list[Awaitable[object]] = [
                    store.append("x", b"d"),
                    writer.append(b"d"),
                    store.get_info("x"),
                ]
                for later in refused:
                    with pytest.raises(StoreDisconnectedError, match="has ended"):
                        await later
                await store.close()

        run(main())

    def test_events_that_a_stopped_container_refuses_are_no_surprise_to_the_loop(
        self, tmp_path: Path
    ) -> None:
        async def main() -> None:
            complaints: list[dict[str, Any]] = []
            asyncio.get_running_loop().set_exception_handler(
                lambda _, what: complaints.append(what)
            )
            disk = WorldDisk()
            async with (
                open_tiny(tmp_path / "s", runtime=Runtime(disk=disk)) as embedded,
                connect_one(tmp_path / "s") as store,
            ):
                await embedded.create_segment("x")
                writer = await store.writer("x", WRITER).open()
                disk.log_sync_fails()
                sent = [writer.append(b"<%d>" % number) for number in range(20)]
                for event in sent:
                    with pytest.raises((AppendOutcomeUnknownError, ContainerStoppedError)):
                        await event
            gc.collect()
            assert complaints == []

        run(main())

    def test_an_abort_waits_for_no_reply(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as embedded:
                await embedded.create_segment("x")
                store = await connect_one(tmp_path / "s")
                assert store.append_bytes_max == embedded.config.append_bytes_max
                sent = store.append("x", b"a")
                await asyncio.sleep(0)
                unsent = store.append("x", b"b")
                store.abort()
                store.abort()
                with pytest.raises(AppendOutcomeUnknownError):
                    await sent
                for refused in (unsent, store.append("x", b"c")):
                    with pytest.raises(StoreClosedError):
                        await refused
                await store.close()
                await until(lambda: connections_of(embedded) == 0)
                assert (await read_all(embedded, "x")) in {b"", b"a"}

        run(main())

    def test_a_stop_of_the_store_answers_what_it_took(self, tmp_path: Path) -> None:
        async def main() -> None:
            embedded = await open_tiny(tmp_path / "s")
            await embedded.create_segment("x")
            store = await connect_one(tmp_path / "s")
            writer = await store.writer("x", WRITER).open()
            # The store has them once a later request is answered.
            calls = [store.append("x", b"<%d>" % number) for number in range(10)]
            calls.append(store.append("x", b"!", attributes=[]))
            events = [writer.append(b"e"), writer.append(b"f")]
            read = asyncio.ensure_future(store.read("x", 1000, 1, 60.0))
            await store.get_info("x")
            await embedded.close()
            offsets = await asyncio.gather(*calls)
            assert offsets[0] == 0
            assert None not in await asyncio.gather(*events)
            with pytest.raises((StoreDisconnectedError, segmentstore.BadOffsetError)):
                await read
            with pytest.raises(StoreDisconnectedError):
                await store.get_info("x")
            await store.close()

        run(main())

    @pytest.mark.parametrize("cut_after", range(0, 400, 37))
    def test_a_writer_resends_after_any_cut(self, tmp_path: Path, cut_after: int) -> None:
        """Bytes of the client's direction arrive up to a place; then the connection is cut."""
        events = [b"<%d>" % number for number in range(30)]

        async def main() -> None:
            async with open_tiny(tmp_path / "s") as embedded:
                await embedded.create_segment("x")
                for cut in (cut_after, None):
                    store = await connect_one(tmp_path / "s")
                    writer = await store.writer("x", WRITER).open()
                    if cut is not None:
                        cut_sending(store, cut)
                    first = writer.last_event_number + 1
                    sent = [writer.append(each) for each in events[first:]]
                    if cut is None:
                        await asyncio.gather(*sent)
                    else:
                        await asyncio.gather(*sent, return_exceptions=True)
                    await store.close()
                assert await read_all(embedded, "x") == b"".join(events)

        run(main())

    def test_the_owner_is_killed_and_another_opens_the_store(self, tmp_path: Path) -> None:
        async def main() -> None:
            owner = await asyncio.create_subprocess_exec(
                sys.executable, "-c", OWNER, str(tmp_path / "s"), stdout=subprocess.PIPE
            )
            try:
                assert owner.stdout is not None
                assert await owner.stdout.readline() == b"open\n"
                store = await connect_one(tmp_path / "s")
                await store.create_segment("x")
                assert await store.append("x", b"kept") == 0
                waiting = asyncio.ensure_future(store.read("x", 4, 1, 60.0))
                await store.get_info("x")
                owner.send_signal(signal.SIGKILL)
                with pytest.raises(StoreDisconnectedError):
                    await waiting
                await store.close()
                assert (tmp_path / "s" / STORE_SOCKET_NAME).exists()
                with pytest.raises(StoreUnreachableError):
                    await connect_one(tmp_path / "s")
            finally:
                await owner.wait()
            async with open_tiny(tmp_path / "s"), connect_one(tmp_path / "s") as store:
                assert await store.read("x", 0, 10) == b"kept"

        run(main())

    def test_bad_bytes_of_a_client_end_its_connection_alone(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with (
                open_tiny(tmp_path / "s"),
                connect_one(tmp_path / "s") as store,
                connect_one(tmp_path / "s") as other,
            ):
                await other.create_segment("x")
                transport = store._connection._transport
                assert transport is not None
                transport.write(b"\x00\x00\x27\x12\x00\x00\x00\x04\xff\xff\xff\xff")
                with pytest.raises(StoreDisconnectedError):
                    await store.get_info("x")
                assert await other.append("x", b"a") == 0

        run(main())

    def test_bad_bytes_of_a_server_end_the_connection(self) -> None:
        async def main() -> None:
            greeting = (encode(Hello(16, 5, 1)), encode(StoreDescribed(1, "id", 100, 1, (0,))))
            for reply in (NumbersGiven(2, ()), StoreDescribed(2, "id", 100, 1, (0,))):
                async with impostor(*greeting, encode(reply)) as place:
                    store = await connect_one(place)
                    with pytest.raises((AppendOutcomeUnknownError, StoreDisconnectedError)):
                        await store.append("x", b"a")
                    await store.close()

        run(main())


def cut_sending(store: RemoteStore, count: int) -> None:
    """Have so many bytes more reach the other side, and then the connection cut."""
    connection = store._connection
    transport: Any = connection._transport

    class CutTransport:
        def __init__(self) -> None:
            self.left = count

        def writelines(self, parts: list[bytes]) -> None:
            data = b"".join(parts)[: self.left]
            self.left -= len(data)
            if data:
                transport.write(data)
            if not self.left:
                transport.close()

        def __getattr__(self, name: str) -> object:
            return getattr(transport, name)

    connection._transport = CutTransport()  # type: ignore[assignment]


OWNER = """
import signal, sys
import segmentstore

with segmentstore.blocking.open(sys.argv[1]):
    print("open", flush=True)
    signal.pause()
"""
