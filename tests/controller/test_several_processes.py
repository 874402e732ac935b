"""A Controller whose store is divided: segments of others are changed over the wire.

The parts are two stores here. To the Controller they are one, as to clients: each has one of two
containers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

import segmentstore
from recovery.harness.services.server import free_port
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.segment_mapper import container_of
from segmentstore.controller import streams
from segmentstore.controller.host_connection import HostConnection
from segmentstore.controller.names import ROOT_TABLE, transaction_segment_name
from segmentstore.controller.remote_actions import RemoteActions
from segmentstore.controller.segment_actions import HostUnavailableError
from segmentstore.controller.stream_model import FIXED_ONE
from segmentstore.published_hosts import PublishedAddress
from segmentstore.service import SegmentStore
from segmentstore.users import PasswordHash, user_line
from segmentstore.wire.codec import encode
from segmentstore.wire.commands import GetStreamSegmentInfo, Hello
from tests.controller.grpc_client import GrpcClient
from tests.server.wire_client import served
from tests.store.certificates import make_certificates
from tests.store.harness import TINY, run

ROOT = container_of(ROOT_TABLE, 2)
OTHER = 1 - ROOT
STREAM = {"scope": "s", "stream": "a"}
SEGMENTS = [f"s/a/{number}.#epoch.0" for number in range(8)]
HALF = (1 << 64) - 1


class Ports(NamedTuple):
    """Of the store with the Controller, of the other one, and of the Controller."""

    here: int
    there: int
    controller: int

    @property
    def hosts(self) -> str:
        return f"{ROOT}=127.0.0.1:{self.here},{OTHER}=127.0.0.1:{self.there}"


def ports() -> Ports:
    return Ports(free_port(), free_port(), free_port())


def there(folder: Path, of: Ports, **options: Any) -> Any:
    """The store without the Controller."""
    options = {**TINY, "containers": 2, "serve": str(OTHER), "wire_hosts": of.hosts, **options}
    return segmentstore.open(folder / "there", wire_port=of.there, **options)


def here(folder: Path, of: Ports, **options: Any) -> Any:
    """The store with the Controller."""
    options = {**TINY, "containers": 2, "serve": str(ROOT), "wire_hosts": of.hosts, **options}
    return segmentstore.open(
        folder / "here", wire_port=of.here, controller_port=of.controller, **options
    )


async def names(store: SegmentStore) -> set[str]:
    return {info.name async for info in store.list_segments()} - {ROOT_TABLE}


@asynccontextmanager
async def client(of: Ports, trusted: bytes = b"") -> AsyncIterator[GrpcClient]:
    address = f"127.0.0.1:{of.controller}"
    channel = (
        grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(trusted))
        if trusted
        else grpc.aio.insecure_channel(address)
    )
    async with channel:
        yield GrpcClient(channel)


def secured(folder: Path) -> Mapping[str, Any]:
    """Settings of encrypted ports with users and tokens."""
    make_certificates(folder)
    (folder / "token").write_bytes(b"a key of tests, known to all of them")
    line = user_line("admin", PasswordHash.of("secret", b"salt" * 4), "prn::*,READ_UPDATE")
    (folder / "users").write_text(line + "\n")
    return {
        "tls_certificate_file": str(folder / "server.crt"),
        "tls_key_file": str(folder / "server.key"),
        "token_key_file": str(folder / "token"),
        "users_file": str(folder / "users"),
    }


@pytest.mark.parametrize("is_secured", [False, True])
def test_streams_and_transactions_have_segments_in_both(tmp_path: Path, is_secured: bool) -> None:
    options = secured(tmp_path / "keys") if is_secured else {}
    trusted = (tmp_path / "keys" / "ca.crt").read_bytes() if is_secured else b""
    headers = (("authorization", "Basic YWRtaW46c2VjcmV0"),) if is_secured else None
    of = ports()

    async def main() -> None:
        async with (
            there(tmp_path, of, **options) as second,
            here(tmp_path, of, **options) as first,
            client(of, trusted) as controller,
        ):

            async def call(method: str, **fields: Any) -> Any:
                return await controller.call(method, headers, **fields)

            await call("createScope", scope="s")
            await call("createStream", stream_info=STREAM, scaling={"segments": len(SEGMENTS)})
            parts = {of.here: await names(first), of.there: await names(second)}
            assert all(len(part & set(SEGMENTS)) > 1 for part in parts.values())
            for number, name in enumerate(SEGMENTS):
                uri = await call("getURI", stream_info=STREAM, segment_id=number)
                assert name in parts[uri.port]
            begun = await call("createTransaction", stream_info=STREAM, lease_ms=600_000)
            one = {"stream_info": STREAM, "transaction": begun.transaction}
            identity = (begun.transaction.high & HALF) << 64 | begun.transaction.low & HALF
            for port, store in ((of.here, first), (of.there, second)):
                for name in parts[port] & set(SEGMENTS):
                    await store.append(transaction_segment_name(name, identity), name.encode())
            await call("commitTransaction", **one)
            while (await call("checkTransactionState", **one)).status in {2, 4}:
                pass
            for port, store in ((of.here, first), (of.there, second)):
                for name in parts[port] & set(SEGMENTS):
                    assert await store.read(name, 0, 100) == name.encode()
            await call("truncateStream", stream_info=STREAM, cut=dict.fromkeys(range(8), 3))
            await call("sealStream", **STREAM)
            for store in (first, second):
                found = [info async for info in store.list_segments("s/a/")]
                assert {(info.start_offset, info.sealed) for info in found} == {(3, True)}
            await call("deleteStream", **STREAM)
            for store in (first, second):
                assert [name for name in await names(store) if name.startswith("s/a/")] == []

    run(main())


def test_a_stream_is_finished_when_the_other_process_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its creator does not call again."""
    of = ports()
    monkeypatch.setattr(streams, "FINISH_REPEATED_S", 0.5)

    async def main() -> None:
        async with here(tmp_path, of) as first, client(of) as controller:
            await controller.call("createScope", scope="s")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await controller.call(
                    "createStream", stream_info=STREAM, scaling={"segments": len(SEGMENTS)}
                )
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert f"the segments at 127.0.0.1:{of.there} cannot be" in caught.value.details()
            async with there(tmp_path, of) as second:
                found = set[str]()
                while not set(SEGMENTS) <= found:
                    await asyncio.sleep(0.01)
                    found = await names(first) | await names(second)

    run(main())


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    of = ports()
    both = f"0-1=127.0.0.1:{of.here}"

    async def main() -> None:
        with pytest.raises(ConfigError, match="wire_hosts: an address has containers that serve"):
            await here(tmp_path / "a", of, wire_hosts=both)
        with pytest.raises(ConfigError, match=f"the Controller is with container {ROOT}"):
            await here(tmp_path / "b", of, serve=str(OTHER))

    run(main())


def test_a_refusal_names_the_process(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path, containers=2, serve=str(ROOT)) as (_, server):
            actions = RemoteActions(PublishedAddress("127.0.0.1", server.port), str)
            elsewhere = next(name for name in SEGMENTS if container_of(name, 2) == OTHER)
            with pytest.raises(HostUnavailableError, match="it answers WrongHost"):
                await actions.create(elsewhere, FIXED_ONE, 0)
            await actions.close()
            with pytest.raises(HostUnavailableError, match="the Controller stops"):
                await actions.create(elsewhere, FIXED_ONE, 0)

    run(main())


@pytest.mark.parametrize("answer", [b"", b"\0\0\0\1\0\0\0\0", encode(Hello(16, 5))])
def test_requests_fail_when_the_connection_ends_and_the_next_one_connects(answer: bytes) -> None:
    connections: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(await reader.read(1000))
        writer.write(answer)
        writer.close()

    async def main() -> None:
        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        connection = HostConnection(PublishedAddress("127.0.0.1", port), None)
        for count in (1, 2):
            asked = [
                connection.ask(lambda number: GetStreamSegmentInfo(number, "s", ""))
                for _ in range(2)
            ]
            for error in await asyncio.gather(*asked, return_exceptions=True):
                assert isinstance(error, HostUnavailableError)
            assert len(connections) == count
        await connection.close()
        listening.close()

    run(main())
