"""The Controller of a cluster: any host answers, it follows its container, and clients of Pravega's
wire protocol find the next owner of a segment by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from segmentstore.contracts.segment_mapper import container_of
from segmentstore.controller.authorization import Metadata
from segmentstore.controller.controller_calls import CallEnd
from segmentstore.controller.controller_forwarding import ControllerForwarding
from segmentstore.controller.controller_server import METHODS, SERVICE, ControllerServer
from segmentstore.controller.messages import MESSAGES
from segmentstore.controller.method_types import ControllerMethod
from segmentstore.controller.names import ROOT_TABLE, segment_name
from segmentstore.published_hosts import PublishedAddress
from segmentstore.wire.commands import SetupAppend, WrongHost
from tests.client.cluster_world import ClusterWorld, run_cluster
from tests.controller.controller_world import STREAM
from tests.controller.grpc_client import GrpcClient
from tests.controller.test_several_processes import secured
from tests.server.wire_client import WRITER, connected
from tests.store.harness import bury, read_all, run

CONTAINERS: Final = 4
ROOT: Final = container_of(ROOT_TABLE, CONTAINERS)
INFO: Final = {"scope": STREAM.scope, "stream": STREAM.name}
SEGMENTS: Final = 8
UNAVAILABLE: Final = grpc.StatusCode.UNAVAILABLE


@asynccontextmanager
async def ported(folder: Path, *names: str, **options: Any) -> AsyncIterator[ClusterWorld]:
    """Hosts with ports of this machine, which share the containers."""
    options = {"containers": CONTAINERS, "controllers": True, **options}
    world = ClusterWorld(folder, links=False, **options)
    await world.assign(*names)
    await world.start(*names)
    try:
        await world.until_served(shared=True)
        yield world
        await world.close()
    finally:
        await bury()


@asynccontextmanager
async def controller_of(
    world: ClusterWorld, name: str, trusted: bytes = b""
) -> AsyncIterator[GrpcClient]:
    address = f"127.0.0.1:{world.hosts[name].store.config.controller_port}"
    channel = (
        grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(trusted))
        if trusted
        else grpc.aio.insecure_channel(address)
    )
    async with channel:
        yield GrpcClient(channel)


async def ask(client: GrpcClient, method: str, headers: Any = None, **fields: Any) -> Any:
    """As Pravega's clients do: once more while the Controller is not there."""
    while True:
        try:
            return await client.call(method, headers, **fields)
        except grpc.aio.AioRpcError as error:
            if error.code() is not UNAVAILABLE:
                raise
        await asyncio.sleep(0.01)


async def where(client: GrpcClient, number: int) -> int:
    return int((await ask(client, "getURI", stream_info=INFO, segment_id=number)).port)


async def append(client: GrpcClient, number: int, event: int) -> int:
    """One event to a segment, where the Controller says that it is; the writer's number before."""
    name = segment_name(STREAM, number)
    while True:
        async with connected(await where(client, number)) as wire:
            wire.put(SetupAppend(2, WRITER, name, ""))
            reply = await wire.take()
            if not isinstance(reply, WrongHost):
                wire.append(event, b"event %d" % event)
                await wire.acked(event)
                return int(getattr(reply, "last_event_number"))  # noqa: B009 - of AppendSetup
        await asyncio.sleep(0.01)


def test_clients_follow_segments_and_the_controller_between_hosts(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            ported(tmp_path, "one", "two") as world,
            controller_of(world, "one") as first,
            controller_of(world, "two") as second,
        ):
            both = (first, second)
            once = (("requestid", "-7"),)
            await ask(first, "createScope", once, scope=STREAM.scope)
            await ask(second, "createStream", stream_info=INFO, scaling={"segments": SEGMENTS})
            ports = {world.hosts[name].address.port for name in world.hosts}
            for number in range(SEGMENTS):
                name = world.owner(container_of(segment_name(STREAM, number), CONTAINERS))
                for client in both:
                    assert await where(client, number) == world.hosts[name].address.port
                assert await append(first, number, 0) < 0
            assert {await where(first, number) for number in range(SEGMENTS)} == ports
            begun = await ask(first, "createTransaction", stream_info=INFO, lease_ms=60_000)

            # The Controller, and all segments of the host that had it, go to the other one.
            old = world.owner(ROOT)
            new = next(name for name in world.hosts if name != old)
            await world.drain(old)
            await world.until_served()
            for number in range(SEGMENTS):
                async with connected(world.hosts[old].address.port) as wire:
                    name = segment_name(STREAM, number)
                    await wire.ask(SetupAppend(2, WRITER, name, ""), WrongHost)
                assert await where(first, number) == world.hosts[new].address.port
                assert await append(second, number, 1) == 0
            for client in both:
                assert (await ask(client, "createScope", once, scope=STREAM.scope)).status == 0
                assert (await ask(client, "createScope", scope=STREAM.scope)).status == 2
            found = await ask(second, "getControllerServerList")
            assert len(found.servers) == 2
            ended = {"stream_info": INFO, "transaction": begun.transaction}
            assert (await ask(second, "commitTransaction", **ended)).status == 0
            while (await ask(first, "checkTransactionState", **ended)).status != 3:
                pass

            # Any host answers still, the drained one too, and the next one to come.
            await world.start("three")
            async with controller_of(world, "three") as third:
                current = await ask(third, "getCurrentSegments", **INFO)
                assert len(current.ranges) == SEGMENTS
            for number in range(SEGMENTS):
                name = segment_name(STREAM, number)
                owner = world.owner(container_of(name, CONTAINERS))
                data = await read_all(world.hosts[owner].store, name)
                assert data.count(b"event 0") == data.count(b"event 1") == 1

    run(main())


def test_hosts_with_users_pass_calls_on_with_the_user_and_change_segments_of_others(
    tmp_path: Path,
) -> None:
    options = secured(tmp_path / "keys")
    trusted = (tmp_path / "keys" / "ca.crt").read_bytes()
    user = (("authorization", "Basic YWRtaW46c2VjcmV0"),)

    async def main() -> None:
        async with ported(tmp_path, "one", "two", **options) as world:
            other = next(name for name in world.hosts if name != world.owner(ROOT))
            async with controller_of(world, other, trusted) as client:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await ask(client, "createScope", scope=STREAM.scope)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
                assert (await ask(client, "createScope", user, scope=STREAM.scope)).status == 0
                policy = {"segments": SEGMENTS}
                made = await ask(client, "createStream", user, stream_info=INFO, scaling=policy)
                assert made.status == 0
            for host in world.hosts.values():
                assert [info async for info in host.store.list_segments(f"{STREAM}/")]

    run(main())


def test_a_call_says_which_host_has_the_controller_without_a_port(tmp_path: Path) -> None:
    async def main() -> None:
        async with ported(tmp_path, "one", controllers=False) as world:
            world.controllers = True
            await world.start("two")
            await world.move(ROOT, "one")
            async with controller_of(world, "two") as client:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await client.call("createScope", scope=STREAM.scope)
                assert caught.value.code() is UNAVAILABLE
                assert "the host one serves it without controller_port" in caught.value.details()

    run(main())


def test_a_call_that_was_passed_on_is_given_up_when_another_host_has_the_controller() -> None:
    method = METHODS[0]

    async def silent(_: bytes, __: object) -> bytes:
        asked.set()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    asked = asyncio.Event()

    async def main() -> None:
        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(silent)
        handlers = grpc.method_handlers_generic_handler(SERVICE, {method.name: handler})
        server.add_generic_rpc_handlers((handlers,))
        there = PublishedAddress("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        owner: list[PublishedAddress | None] = [there]

        async def now() -> PublishedAddress | None:
            return owner[0]

        forwarding = ControllerForwarding(now, None)
        call = asyncio.ensure_future(forwarding.ask(there, method, b"", ()))
        await asked.wait()
        owner[0] = PublishedAddress("127.0.0.1", 1)
        with pytest.raises(CallEnd, match="moved") as caught:
            await call
        assert caught.value.code is UNAVAILABLE
        owner[0] = there
        asked.clear()
        call = asyncio.ensure_future(forwarding.ask(there, method, b"", ()))
        await asked.wait()
        await forwarding.close()
        with pytest.raises(CallEnd, match="the host stops"):
            await call
        await server.stop(0)
        with pytest.raises(CallEnd) as caught:
            await forwarding.ask(there, method, b"", ())
        assert caught.value.code is UNAVAILABLE
        await forwarding.close()

    run(main())


def test_a_call_ends_as_unavailable_where_certificates_cannot_be_read(tmp_path: Path) -> None:
    async def main() -> None:
        there = PublishedAddress("127.0.0.1", 1)

        async def now() -> PublishedAddress | None:
            return there

        forwarding = ControllerForwarding(now, (tmp_path / "certificates.pem").read_bytes)
        with pytest.raises(CallEnd, match="certificates of other hosts") as caught:
            await forwarding.ask(there, METHODS[0], b"", ())
        assert caught.value.code is UNAVAILABLE
        await forwarding.close()

    run(main())


def test_the_service_listens_on_an_address_of_ipv6() -> None:
    class Answers:
        async def answer(self, method: ControllerMethod, data: bytes, metadata: Metadata) -> bytes:
            return data

    async def main() -> None:
        server = ControllerServer(Answers(), "::1", 0)
        await server.start()
        there = PublishedAddress("::1", server.port)

        async def now() -> PublishedAddress | None:
            return there

        forwarding = ControllerForwarding(now, None)
        assert await forwarding.ask(there, METHODS[0], b"whole", ()) == b"whole"
        await forwarding.close()
        await server.stop()

    run(main())


# --- in virtual time: one container, which has the Controller and all segments --------------------

METHOD: Final = {method.name: method for method in METHODS}


async def call(world: ClusterWorld, name: str, method: str, /, **fields: Any) -> Any:
    """What the Controller of a host answers. Raises CallEnd."""
    described, seat = METHOD[method], world.hosts[name].seat
    assert seat is not None
    request = MESSAGES[described.request](**fields).SerializeToString()
    answer = await seat.answer(described, request, [("segmentstore-forwarded", "1")])
    return MESSAGES[described.response].FromString(answer)


async def until_answered(world: ClusterWorld, name: str, method: str, /, **fields: Any) -> Any:
    while True:
        try:
            return await call(world, name, method, **fields)
        except CallEnd as end:
            if end.code is not UNAVAILABLE:
                raise
        await asyncio.sleep(0.01)


async def make_stream(world: ClusterWorld, name: str) -> None:
    await until_answered(world, name, "createScope", scope=STREAM.scope)
    await until_answered(world, name, "createStream", stream_info=INFO, scaling={"segments": 1})


async def scale(world: ClusterWorld, name: str) -> None:
    fields = {"stream_info": INFO, "sealed": [0], "ranges": [{"low": 0.0, "high": 1.0}]}
    assert (await until_answered(world, name, "scale", **fields)).status == 0


def on_two_hosts(folder: Path, body: Any) -> None:
    async def main(world: ClusterWorld) -> None:
        await world.until_served()
        await body(world)

    # Rows stay in memory, where a host that was cut off finds them.
    options = {"containers": 1, "controllers": True, "tail_bytes_max": 1 << 20}
    run_cluster(folder, main, "one", shared=False, **options)


def test_a_host_that_was_cut_off_answers_nothing_that_is_not_true_any_more(tmp_path: Path) -> None:
    async def main(world: ClusterWorld) -> None:
        await make_stream(world, "one")
        # It reaches neither ZooKeeper nor the bookies, and goes on otherwise.
        world.hosts["one"].process.sleep()
        cut_off = world.hosts["one"]
        await world.start("two")
        await world.until(lambda: world.hosts["two"].store.served == [0])
        await scale(world, "two")
        following = {"stream_info": INFO, "segment_id": 0}
        assert cut_off.store.served == [0]
        # To a client "nothing follows" means that the stream is sealed.
        late = asyncio.ensure_future(
            call(world, "one", "getSegmentsImmediatelyFollowing", **following)
        )
        await asyncio.sleep(5)
        assert not late.done()
        cut_off.process.wake()
        with pytest.raises(CallEnd) as caught:
            await late
        assert caught.value.code is UNAVAILABLE
        found = await until_answered(world, "two", "getSegmentsImmediatelyFollowing", **following)
        assert len(found.successors) == 1

    on_two_hosts(tmp_path, main)


def test_a_controller_that_comes_back_knows_what_others_did(tmp_path: Path) -> None:
    async def main(world: ClusterWorld) -> None:
        await make_stream(world, "one")
        begun = await call(world, "one", "createTransaction", stream_info=INFO, lease_ms=600_000)
        await world.start("two")
        await world.move(0, "two")
        of = {"stream_info": INFO, "transaction": begun.transaction}
        with pytest.raises(CallEnd) as caught:
            await call(world, "one", "commitTransaction", **of)
        assert caught.value.code is UNAVAILABLE
        assert (await until_answered(world, "two", "abortTransaction", **of)).status == 0
        await world.move(0, "one")
        refused = await until_answered(world, "one", "commitTransaction", **of)
        assert refused.status not in {0, 3}

    on_two_hosts(tmp_path, main)


def test_a_term_that_was_cancelled_answers_no_more(tmp_path: Path) -> None:
    async def main(world: ClusterWorld) -> None:
        await make_stream(world, "one")
        seat = world.hosts["one"].seat
        assert seat is not None
        term = seat._term
        assert term is not None
        term.task.cancel()
        await asyncio.wait((term.task,))
        with pytest.raises(CallEnd) as caught:
            await call(world, "one", "createScope", scope="another")
        assert caught.value.code is UNAVAILABLE

    on_two_hosts(tmp_path, main)
