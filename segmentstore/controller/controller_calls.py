"""ControllerCalls: calls of the Controller's service, answered by a Controller.

Rules of this file:

- a call runs in a task of its own: a client that hangs up, or whose deadline passes, cuts off no
  change;
- refusals are answered with the status of the method, or a code that clients do not retry;
- a store that cannot be reached is UNAVAILABLE, which clients retry. Anything else is our bug: it
  is logged, at most once in some seconds, and answered with the failure status of the method;
- in a cluster another process may have become the Controller unseen. So a call there begins with a
  write of the log: if that succeeds, no other Controller had written a row when the call came.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any, Final, Protocol

import grpc
from google.protobuf.message import DecodeError

from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    NotPrimaryError,
    TierUnavailableError,
    describe,
)
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.rate_limiter import RateLimiter
from segmentstore.controller.authorization import (
    AllowAll,
    Authorizer,
    BusyAuthorizerError,
    ForbiddenCallError,
    Metadata,
    UnauthenticatedCallError,
)
from segmentstore.controller.controller import Controller
from segmentstore.controller.messages import MESSAGES
from segmentstore.controller.metadata_tables import RowConflictError
from segmentstore.controller.method_types import CallFacts, ControllerMethod
from segmentstore.controller.refusals import Reason, RefusedRequestError
from segmentstore.controller.request_ids import request_id_of
from segmentstore.controller.segment_actions import HostUnavailableError
from segmentstore.controller.shared_confirmation import SharedConfirmation
from segmentstore.stats_types import ControllerStats

_log = logging.getLogger(__name__)

STOP_S: Final = 5.0
"""How long calls on their way have when their server stops."""
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


class CallEnd(Exception):  # noqa: N818 - how a call ends, not an error of ours
    """The code and the words that a call is answered with."""

    def __init__(self, code: Any, words: str) -> None:
        super().__init__(words)
        self.code = code
        self.words = words


class CallAnswers(Protocol):
    """What answers the calls of a server."""

    async def answer(self, method: ControllerMethod, data: bytes, metadata: Metadata) -> bytes:
        """The answer's bytes for those of a request. Raises CallEnd."""


class CallCounts:
    """Numbers of a process's calls, whichever Controllers have answered them."""

    def __init__(self) -> None:
        self.begun = 0
        self.refusals: Counter[str] = Counter()
        self.logged = RateLimiter(_LOGS_PER_S)


class ControllerCalls:
    """Calls of one Controller, which is started."""

    def __init__(
        self,
        controller: Controller,
        authorizer: Authorizer | None = None,
        counts: CallCounts | None = None,
        *,
        confirms: bool = False,
    ) -> None:
        """With `confirms` each answer costs a share of one write of the log."""
        self._controller = controller
        self._authorizer = authorizer or AllowAll()
        self._counts = counts or CallCounts()
        self._confirmation = SharedConfirmation(controller.confirm) if confirms else None
        self.calls: set[asyncio.Task[bytes]] = set()
        """Those on their way."""

    async def answer(self, method: ControllerMethod, data: bytes, metadata: Metadata) -> bytes:
        call = own_task(self._answer(method, data, metadata), name=f"controller-{method.name}")
        self.calls.add(call)
        self._counts.begun += 1
        call.add_done_callback(self._ended)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            if call.cancelled():
                # Ours, not the caller's.
                raise CallEnd(grpc.StatusCode.UNAVAILABLE, "the Controller stops here") from None
            raise

    def _ended(self, call: asyncio.Task[bytes]) -> None:
        self.calls.discard(call)
        if not call.cancelled():
            call.exception()  # of the caller, if it is there still

    async def stop(self) -> None:
        """Wait up to `STOP_S` for calls on their way. Idempotent.

        What they have begun is finished by the Controller at its next start.
        """
        if self.calls:
            await asyncio.wait(self.calls, timeout=STOP_S)
        self.cut_off()
        if self.calls:
            await asyncio.wait(self.calls)

    def cut_off(self) -> None:
        """Cancel calls on their way; `stop` waits for their end."""
        for call in self.calls:
            call.cancel()

    def statistics(self) -> ControllerStats:
        """The numbers since it was made. O(streams with transactions)."""
        return {
            "calls": self._counts.begun,
            "calls_in_flight": len(self.calls),
            "transactions_open": self._controller.transactions.open_count,
            "refusals": dict(self._counts.refusals),
        }

    def health(self) -> list[str]:
        """A sentence for each change that was begun and cannot be finished so far."""
        return [f"controller: {each}" for each in self._controller.deadlines.failing()]

    async def _answer(self, method: ControllerMethod, data: bytes, metadata: Metadata) -> bytes:
        response = MESSAGES[method.response]
        statuses = method.statuses
        try:
            request = MESSAGES[method.request].FromString(data)
            token = await self._authorizer.authorize(
                metadata, method.resource(request), method.permission
            )
            if self._confirmation is not None:
                await self._confirmation.confirm()
            answer = await method.handle(
                self._controller, request, CallFacts(token, request_id_of(metadata))
            )
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

    def _end(self, method: ControllerMethod, code: Any, words: str) -> CallEnd:
        """How a call ends that is answered with a code of gRPC."""
        self._refused(method, code.name)
        return CallEnd(code, words)

    def _refused(self, method: ControllerMethod, reason: str) -> None:
        self._counts.refusals[f"{method.name}: {reason}"] += 1

    def _log(self, method: ControllerMethod, error: Exception) -> None:
        now_s = asyncio.get_running_loop().time()
        if not self._counts.logged.wait_s(now_s):
            self._counts.logged.reserve(now_s, 1)
            known = isinstance(error, _UNREACHABLE)
            _log.warning("%s: %s", method.name, describe(error), exc_info=None if known else error)


def _code(reason: Reason) -> Any:
    return grpc.StatusCode.NOT_FOUND if reason in _NOT_FOUND else grpc.StatusCode.INVALID_ARGUMENT
