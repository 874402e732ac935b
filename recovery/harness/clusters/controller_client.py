"""ControllerClient: calls of the Controller's service by gRPC, at any of several hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import grpc

from segmentstore.controller.controller_server import METHODS, SERVICE
from segmentstore.controller.messages import MESSAGES
from segmentstore.controller.names import ScopedName

_CALL_S: Final = 5.0
"""After so long another host is asked: a stopped one ends no call."""
_AGAIN_S: Final = 0.1
_AGAIN: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    # A call that this client did not cancel: gRPC says so of some whose connection ended.
    grpc.StatusCode.CANCELLED,
)
"""Codes of calls whose outcome is unknown. Pravega's own client repeats them, too."""
_METHODS: Final = {method.name: method for method in METHODS}
_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class ControllerClient:
    """Of the Controllers at these addresses; `close` it at the end."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(addresses)
        self._channels: dict[str, Any] = {}
        self._asked = 0

    async def make_stream(self, stream: ScopedName, segments: int) -> list[int]:
        """Create a scope and a stream in it, unless they are there; the ids of its segments."""
        info = MESSAGES["StreamInfo"](scope=stream.scope, stream=stream.name)
        await self.call("createScope", scope=stream.scope)
        scaling = MESSAGES["ScalingPolicyMessage"](segments=segments)
        await self.call("createStream", stream_info=info, scaling=scaling)
        found = await self.call("getCurrentSegments", scope=stream.scope, stream=stream.name)
        return [each.segment_id.segment_id for each in found.ranges]

    async def address_of(self, stream: ScopedName, segment_id: int) -> tuple[str, int]:
        """Host and port that serve a segment, as the Controller knows."""
        info = MESSAGES["StreamInfo"](scope=stream.scope, stream=stream.name)
        uri = await self.call("getURI", stream_info=info, segment_id=segment_id)
        return uri.endpoint, uri.port

    async def call(self, method: str, **fields: Any) -> Any:
        """The answer of a call, which is repeated at the hosts in turn until one answers."""
        described = _METHODS[method]
        request = MESSAGES[described.request](**fields).SerializeToString()
        response = MESSAGES[described.response]
        while True:
            stub = self._channel().unary_unary(
                f"/{SERVICE}/{method}", response_deserializer=response.FromString
            )
            try:
                return await stub(request, timeout=_CALL_S)
            except grpc.aio.AioRpcError as error:
                if error.code() not in _AGAIN:
                    raise
            self._asked += 1
            await asyncio.sleep(_AGAIN_S)

    def _channel(self) -> Any:
        address = self._addresses[self._asked % len(self._addresses)]
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(address, _OPTIONS)
        return self._channels[address]

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        while self._channels:
            await self._channels.popitem()[1].close()
