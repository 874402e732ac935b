"""Transient segments of a cluster: a host deletes what connections to another one have left in a
container that it is given, in virtual time.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from recovery.harness.services.server import free_port
from recovery.harness.simulation.memory_links import MemoryLink
from segmentstore.wire.codec import encode
from segmentstore.wire.commands import Command, CreateTransientSegment, Hello, SegmentCreated
from segmentstore.wire.formats import REPLIES
from segmentstore.wire.frame_decoder import FrameDecoder
from tests.client.cluster_world import ClusterHostProcess, ClusterWorld, run_cluster
from tests.server.wire_client import WRITER
from tests.store.bookkeeper_world import name_in
from tests.store.harness import open_tiny, run

CONTAINER = 1
PARENT = name_in(CONTAINER, 4)


class Replies(asyncio.Protocol):
    """The client's end of a connection."""

    def __init__(self) -> None:
        self.taken: asyncio.Queue[Command] = asyncio.Queue()
        self._decoder = FrameDecoder(REPLIES)

    def data_received(self, data: bytes) -> None:
        for reply in self._decoder.feed(data):
            self.taken.put_nowait(reply)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(encode(Hello(16, 5)))
        transport.write(encode(CreateTransientSegment(7, WRITER, PARENT, "")))


async def created(host: ClusterHostProcess) -> str:
    """The name of a transient segment, made by a connection that lasts as long as the host."""
    replies = Replies()
    host.links.append(MemoryLink(replies, host.server.accept(), delay_s=0.0005))
    assert isinstance(await replies.taken.get(), Hello)
    reply = await replies.taken.get()
    assert isinstance(reply, SegmentCreated)
    return reply.segment


async def names_at(world: ClusterWorld, name: str) -> list[str]:
    """Of the segments that are left at a host when it has cleaned up."""
    host = world.hosts[name]
    await world.until(lambda: CONTAINER in host.store.served)
    await host.server.context.finish()
    return [info.name async for info in host.store.list_segments(PARENT)]


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "moved"])
def test_the_next_owner_deletes_those_of_the_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_killed: bool
) -> None:
    async def body(world: ClusterWorld) -> None:
        old = world.owner(CONTAINER)
        (new,) = set(world.hosts) - {old}
        host = world.hosts[old]
        name = await created(host)
        assert await names_at(world, old) == [name]
        if is_killed:
            world.kill(old)
            assert await names_at(world, new) == []
            return
        await world.move(CONTAINER, new)
        assert await names_at(world, new) == []
        host.cut()
        await host.server.no_connections()
        await host.server.context.finish()

    run_cluster(tmp_path, body, "one", "two")
    assert "transient segment" not in caplog.text


def test_a_connection_to_the_new_owner_keeps_its_own(tmp_path: Path) -> None:
    async def body(world: ClusterWorld) -> None:
        old = world.owner(CONTAINER)
        (new,) = set(world.hosts) - {old}
        await world.move(CONTAINER, new)
        name = await created(world.hosts[new])
        assert await names_at(world, new) == [name]
        world.hosts[new].cut()
        await world.hosts[new].server.no_connections()
        assert await names_at(world, new) == []

    run_cluster(tmp_path, body, "one", "two")


def test_those_of_a_crash_are_deleted_behind_a_port(tmp_path: Path) -> None:
    name = f"{PARENT}#transient.{'0' * 32}.{'1' * 32}"

    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await store.create_segment(name)
        async with open_tiny(tmp_path / "s", wire_port=free_port()) as store:
            while [info async for info in store.list_segments()]:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0)

    run(main())
