"""What is left of a connection that has ended: nothing that waits for the garbage collector."""

from __future__ import annotations

import gc
import uuid
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import segmentstore
from segmentstore import SegmentNotFoundError
from segmentstore.contracts.runtime import Runtime
from segmentstore.server.authorization import TokenAuthorization
from segmentstore.server.connection import WireConnection
from segmentstore.wire.commands import ReadSegment
from segmentstore.wire.tokens import TokenKey
from tests.server.wire_client import connected, served
from tests.store.harness import run, until

WRITER = uuid.UUID(int=7)


Connections = Callable[[], list[weakref.ref[WireConnection]]]


def tracked() -> list[WireConnection]:
    return [each for each in gc.get_objects() if type(each) is WireConnection]


@pytest.fixture
def connections() -> Iterator[Connections]:
    """Those of this test, which runs without the collector."""
    gc.collect()
    gc.disable()
    earlier = weakref.WeakSet(tracked())
    try:
        yield lambda: [weakref.ref(each) for each in tracked() if each not in earlier]
    finally:
        gc.enable()


def test_a_connection_is_freed_at_its_end(tmp_path: Path, connections: Connections) -> None:
    async def main() -> None:
        async with served(tmp_path) as (_, server):
            async with connected(server.port) as client:
                await client.create("s")
                await client.set_up("s")
                client.append(1, b"data")
                await client.acked(1)
                # It waits at the tail when the client leaves.
                client.put(ReadSegment("s", 4, 9, "", 7))
                (made,) = connections()
            await until(lambda: made() is None)

    run(main())


def test_one_that_the_library_has_is_freed_as_well(
    tmp_path: Path, connections: Connections
) -> None:
    async def main() -> None:
        async with segmentstore.open(tmp_path / "s"):
            async with segmentstore.connect(tmp_path / "s") as remote:
                await remote.create_segment("a")
                await remote.append("a", b"data")
                async with remote.writer("a", WRITER) as writer:
                    await writer.append(b"event")
                with pytest.raises(SegmentNotFoundError):
                    await remote.read("b", 0, 1)
                (made,) = connections()
            await until(lambda: made() is None)

    run(main())


def test_one_of_a_port_with_tokens_is_freed_as_well(
    tmp_path: Path, connections: Connections
) -> None:
    async def main() -> None:
        authorization = TokenAuthorization(TokenKey(bytes(64)), Runtime().clock)
        async with served(tmp_path, authorization=authorization) as (_, server):
            async with connected(server.port):
                (made,) = connections()
            await until(lambda: made() is None)

    run(main())
