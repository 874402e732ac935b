"""A client of the Controller's service, over a real channel, with our own descriptors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from segmentstore.controller.authorization import Authorizer
from segmentstore.controller.controller import Controller
from segmentstore.controller.controller_calls import ControllerCalls
from segmentstore.controller.controller_server import METHODS, SERVICE, ControllerServer
from segmentstore.controller.messages import MESSAGES
from tests.controller.controller_world import make_controller
from tests.controller.fake_store import FakeDisk, FakeProcess

_METHODS = {method.name: method for method in METHODS}


class GrpcClient:
    """Calls by name: `await client.call("createScope", scope="s")`."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    async def call(self, method: str, /, headers: Any = None, **fields: Any) -> Any:
        described = _METHODS[method]
        request = MESSAGES[described.request](**fields)
        return await self.raw(method, request.SerializeToString(), headers)

    async def raw(self, method: str, data: bytes, headers: Any = None) -> Any:
        response = MESSAGES[_METHODS[method].response]
        stub = self._channel.unary_unary(
            f"/{SERVICE}/{method}", response_deserializer=response.FromString
        )
        return await stub(data, metadata=headers, timeout=120)


class Served:
    """A Controller behind its server, and a client."""

    def __init__(
        self,
        controller: Controller,
        server: ControllerServer,
        calls: ControllerCalls,
        disk: FakeDisk,
        client: GrpcClient,
    ) -> None:
        self.controller = controller
        self.server = server
        self.calls = calls
        self.disk = disk
        self.client = client
        self.call = client.call


@asynccontextmanager
async def served(
    authorizer: Authorizer | None = None,
    process: FakeProcess | None = None,
    key_pair: Callable[[], tuple[bytes, bytes]] | None = None,
    root_certificates: bytes = b"",
) -> AsyncIterator[Served]:
    process = process or FakeProcess(FakeDisk())
    controller = make_controller(process)
    await controller.start()
    calls = ControllerCalls(controller, authorizer)
    server = ControllerServer(calls, "127.0.0.1", 0, key_pair)
    await server.start()
    address = f"127.0.0.1:{server.port}"
    if key_pair is None:
        opened = grpc.aio.insecure_channel(address)
    else:
        trusted = grpc.ssl_channel_credentials(root_certificates)
        opened = grpc.aio.secure_channel(address, trusted)
    async with opened as channel:
        try:
            yield Served(controller, server, calls, process.disk, GrpcClient(channel))
        finally:
            await server.stop()
            await calls.stop()
            await controller.stop()
