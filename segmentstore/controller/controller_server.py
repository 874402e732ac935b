"""ControllerServer: the Controller's gRPC service on a port.

Rules of this file:

- a call runs in a task of its own: a client that hangs up, or whose deadline passes, cuts off no
  change;
- refusals are answered with the status of the method, or a code that clients do not retry;
- a store that cannot be reached is UNAVAILABLE, which clients retry. Anything else is our bug: it
  is logged, at most once in some seconds, and answered with the failure status of the method;
- nothing escapes: an exception would cost a caller 90 s of retries.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    ConfigError,
    ContainerStoppedError,
    NotPrimaryError,
    TierUnavailableError,
    describe,
)
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.rate_limiter import RateLimiter
from segmentstore.controller import (
    group_methods,
    scope_methods,
    segment_methods,
    stream_methods,
    transaction_methods,
)
from segmentstore.controller.authorization import (
    AllowAll,
    Authorizer,
    BusyAuthorizerError,
    ForbiddenCallError,
    UnauthenticatedCallError,
)
from segmentstore.controller.controller import Controller
from segmentstore.controller.messages import MESSAGES
from segmentstore.controller.metadata_tables import RowConflictError
from segmentstore.controller.method_types import ControllerMethod
from segmentstore.controller.refusals import Reason, RefusedRequestError
from segmentstore.controller.segment_actions import HostUnavailableError
from segmentstore.stats_types import ControllerStats

_log = logging.getLogger(__name__)

SERVICE: Final = "io.pravega.controller.stream.api.grpc.v1.ControllerService"
METHODS: Final[tuple[ControllerMethod, ...]] = (
    *scope_methods.METHODS,
    *stream_methods.METHODS,
    *segment_methods.METHODS,
    *transaction_methods.METHODS,
    *group_methods.METHODS,
)
STOP_S: Final = 5.0
"""How long calls on their way have when the server stops."""
_REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024
_LOGS_PER_S: Final = 0.2
_UNREACHABLE: Final = (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    HostUnavailableError,
    NotPrimaryError,
    RowConflictError,
    TierUnavailableError,
)
_NOT_FOUND: Final = {
    Reason.SCOPE_NOT_FOUND,
    Reason.STREAM_NOT_FOUND,
    Reason.SEGMENT_NOT_FOUND,
    Reason.TRANSACTION_NOT_FOUND,
    Reason.GROUP_NOT_FOUND,
    Reason.TABLE_NOT_FOUND,
}


class _CallEnd(Exception):  # noqa: N818 - how a call ends, not an error of ours
    """The code and the words that a call is answered with."""

    def __init__(self, code: Any, words: str) -> None:
        super().__init__(words)
        self.code = code
        self.words = words


class ControllerServer:
    """A listener. `start` it once, `stop` it before the Controller."""

    def __init__(
        self,
        controller: Controller,
        host: str,
        port: int,
        authorizer: Authorizer | None = None,
        key_pair: Callable[[], tuple[bytes, bytes]] | None = None,
    ) -> None:
        """`key_pair` gives the key and the certificates for a new connection, in PEM; None: no TLS.

        It is called on threads of gRPC. Port 0: any free one.
        """
        self._controller = controller
        self._host = host
        self.port = port
        """Where it listens, once it is started."""
        self._authorizer = authorizer or AllowAll()
        self._key_pair = key_pair
        self._server: Any = None
        self.calls: set[asyncio.Task[bytes]] = set()
        """Those on their way."""
        self._begun = 0
        self._refusals: Counter[str] = Counter()
        self._logged = RateLimiter(_LOGS_PER_S)

    async def start(self) -> None:
        """Listen. Raises ConfigError if the port cannot be had."""
        options = [
            ("grpc.max_receive_message_length", _REQUEST_BYTES_MAX),
            # Two processes with one port would take each other's calls.
            ("grpc.so_reuseport", 0),
        ]
        server = grpc.aio.server(options=options)
        handlers = {
            method.name: grpc.unary_unary_rpc_method_handler(self._handler(method))
            for method in METHODS
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        address = f"{self._host}:{self.port}"
        try:
            if self._key_pair is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, _credentials(self._key_pair))
            await server.start()
        except RuntimeError as error:
            raise ConfigError("controller", f"{address} cannot be listened on: {error}") from error
        self.port, self._server = port, server

    async def stop(self) -> None:
        """Take no more calls, and wait up to `STOP_S` for those on their way. Idempotent.

        What they have begun is finished by the Controller at its next start.
        """
        server, self._server = self._server, None
        if server is None:
            return
        await server.stop(STOP_S)
        if self.calls:
            await asyncio.wait(self.calls, timeout=STOP_S)
        for call in self.calls:
            call.cancel()
        if self.calls:
            await asyncio.wait(self.calls)

    def statistics(self) -> ControllerStats:
        """The numbers since it was made. O(streams with transactions)."""
        return {
            "calls": self._begun,
            "calls_in_flight": len(self.calls),
            "transactions_open": self._controller.transactions.open_count,
            "refusals": dict(self._refusals),
        }

    def health(self) -> list[str]:
        """A sentence for each change that was begun and cannot be finished so far."""
        return [f"controller: {each}" for each in self._controller.deadlines.failing()]

    def _handler(self, method: ControllerMethod) -> Callable[[bytes, Any], Any]:
        async def handle(data: bytes, context: Any) -> bytes:
            work = self._answer(method, data, context.invocation_metadata() or ())
            call = own_task(work, name=f"controller-{method.name}")
            self.calls.add(call)
            self._begun += 1
            call.add_done_callback(self.calls.discard)
            try:
                return await asyncio.shield(call)
            except _CallEnd as end:
                await context.abort(end.code, end.words)
                raise

        return handle

    async def _answer(self, method: ControllerMethod, data: bytes, metadata: Any) -> bytes:
        response = MESSAGES[method.response]
        statuses = method.statuses
        try:
            request = MESSAGES[method.request].FromString(data)
            token = await self._authorizer.authorize(
                metadata, method.resource(request), method.permission
            )
            answer = await method.handle(self._controller, request, token)
        except DecodeError as error:
            raise self._end(method, grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        except UnauthenticatedCallError as error:
            raise self._end(method, grpc.StatusCode.UNAUTHENTICATED, str(error)) from error
        except ForbiddenCallError as error:
            raise self._end(method, grpc.StatusCode.PERMISSION_DENIED, str(error)) from error
        except BusyAuthorizerError as error:
            raise self._end(method, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)) from error
        except RefusedRequestError as error:
            if statuses is None:
                raise self._end(method, _code(error.reason), str(error)) from error
            self._refused(method, error.reason.name)
            status = statuses.refusals.get(error.reason, statuses.failure)
            answer = response(status=status)
        except _UNREACHABLE as error:
            self._log(method, error)
            raise self._end(method, grpc.StatusCode.UNAVAILABLE, describe(error)) from error
        except Exception as error:
            self._log(method, error)
            if statuses is None:
                raise self._end(method, grpc.StatusCode.INTERNAL, describe(error)) from error
            self._refused(method, "INTERNAL")
            answer = response(status=statuses.failure)
        data = answer.SerializeToString()
        assert isinstance(data, bytes)
        return data

    def _end(self, method: ControllerMethod, code: Any, words: str) -> _CallEnd:
        """How a call ends that is answered with a code of gRPC."""
        self._refused(method, code.name)
        return _CallEnd(code, words)

    def _refused(self, method: ControllerMethod, reason: str) -> None:
        self._refusals[f"{method.name}: {reason}"] += 1

    def _log(self, method: ControllerMethod, error: Exception) -> None:
        now_s = asyncio.get_running_loop().time()
        if not self._logged.wait_s(now_s):
            self._logged.reserve(now_s, 1)
            known = isinstance(error, _UNREACHABLE)
            _log.warning("%s: %s", method.name, describe(error), exc_info=None if known else error)


def _credentials(key_pair: Callable[[], tuple[bytes, bytes]]) -> Any:
    """Credentials of gRPC that ask for the key pair at each new connection."""
    known = key_pair()

    def changed() -> Any:
        nonlocal known
        pair = key_pair()
        if pair == known:
            return None
        known = pair
        return grpc.ssl_server_certificate_configuration([pair])

    return grpc.dynamic_ssl_server_credentials(
        grpc.ssl_server_certificate_configuration([known]), changed
    )


def _code(reason: Reason) -> Any:
    return grpc.StatusCode.NOT_FOUND if reason in _NOT_FOUND else grpc.StatusCode.INVALID_ARGUMENT
