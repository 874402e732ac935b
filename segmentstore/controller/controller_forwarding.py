"""ControllerForwarding: calls of the Controller's service that another host of the cluster answers.

A call is passed on once: the host that it is passed to answers it itself, or it is UNAVAILABLE.
It is given up as soon as another host has the Controller, for a stopped process closes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc

from segmentstore.contracts.owned_tasks import own_task
from segmentstore.controller.authorization import Metadata
from segmentstore.controller.controller_calls import CallEnd
from segmentstore.controller.controller_server import SERVICE
from segmentstore.controller.method_types import ControllerMethod
from segmentstore.controller.request_ids import REQUEST_ID
from segmentstore.published_hosts import PublishedAddress

FORWARDED: Final = "segmentstore-forwarded"
"""The header of a call that was passed on."""
FORWARDED_S: Final = 120.0
"""Longest that an answer may take."""
CHECK_S: Final = 1.0
"""How often it is checked whether the Controller is still there, while an answer is waited for."""
_PASSED_ON: Final = ("authorization", REQUEST_ID)
_RECONNECT_MS_MIN: Final = 100
_RECONNECT_MS_MAX: Final = 1_000


class ControllerForwarding:
    """Connections to Controllers of other hosts; `close` it at the end."""

    def __init__(
        self,
        owner: Callable[[], Awaitable[PublishedAddress | None]],
        trusted: Callable[[], bytes] | None,
    ) -> None:
        """`owner` says where the Controller is now. `trusted` gives certificates in PEM that the
        others' are checked against; None: no TLS.
        """
        self._owner = owner
        self._trusted = trusted
        self._channels: dict[PublishedAddress, Any] = {}
        self._in_flight: dict[asyncio.Task[bytes], PublishedAddress] = {}

    async def ask(
        self, to: PublishedAddress, method: ControllerMethod, data: bytes, metadata: Metadata
    ) -> bytes:
        """The answer of that host. Raises CallEnd: as it ends the call, or UNAVAILABLE."""
        await self._close_unused(to)
        work = self._ask(to, method, data, metadata)
        asked = own_task(work, name="controller-forwarded")
        self._in_flight[asked] = to
        try:
            while not (await asyncio.wait((asked,), timeout=CHECK_S))[0]:
                if await self._owner() != to:
                    raise CallEnd(grpc.StatusCode.UNAVAILABLE, "the Controller has moved")
            return asked.result()
        finally:
            asked.cancel()
            del self._in_flight[asked]

    async def close(self) -> None:
        """Close the connections: calls on their way end as UNAVAILABLE. Idempotent."""
        for to in list(self._channels):
            await self._channels.pop(to).close()

    async def _ask(
        self, to: PublishedAddress, method: ControllerMethod, data: bytes, metadata: Metadata
    ) -> bytes:
        headers = [(name, value) for name, value in metadata if name in _PASSED_ON]
        channel = self._channels.get(to)
        if channel is None:
            try:
                channel = self._channels[to] = self._open(to)
            except OSError as error:
                detail = f"the certificates of other hosts cannot be read: {error}"
                raise CallEnd(grpc.StatusCode.UNAVAILABLE, detail) from error
        call = channel.unary_unary(f"/{SERVICE}/{method.name}")(
            data, metadata=(*headers, (FORWARDED, "1")), timeout=FORWARDED_S
        )
        try:
            answer: bytes = await call
        except grpc.aio.AioRpcError as error:
            raise _end_of(to, error) from None
        except asyncio.CancelledError:
            if self._channels.get(to) is channel:
                raise
            raise CallEnd(grpc.StatusCode.UNAVAILABLE, "the host stops") from None
        return answer

    def _open(self, to: PublishedAddress) -> Any:
        host = f"[{to.host}]" if ":" in to.host else to.host
        address = f"{host}:{to.port}"
        options = (
            ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MS_MIN),
            ("grpc.min_reconnect_backoff_ms", _RECONNECT_MS_MIN),
            ("grpc.max_reconnect_backoff_ms", _RECONNECT_MS_MAX),
        )
        if self._trusted is None:
            return grpc.aio.insecure_channel(address, options)
        credentials = grpc.ssl_channel_credentials(self._trusted())
        return grpc.aio.secure_channel(address, credentials, options)

    async def _close_unused(self, but: PublishedAddress) -> None:
        """Close connections to hosts that had the Controller before."""
        # All at once: beside the first close another call may come here.
        unused = self._channels.keys() - {but, *self._in_flight.values()}
        for channel in [self._channels.pop(to) for to in unused]:
            await channel.close()


def _end_of(to: PublishedAddress, error: Any) -> CallEnd:
    """As the client is to see it; a connection that broke is of unknown outcome, and repeatable."""
    code = error.code()
    if code in (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED):
        code = grpc.StatusCode.UNAVAILABLE
    return CallEnd(code, f"{error.details()} (by the Controller at {to.host}:{to.port})")
