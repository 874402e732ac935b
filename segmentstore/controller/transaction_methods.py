"""Methods on transactions."""

from __future__ import annotations

from typing import Any, Final

from segmentstore.contracts.permission import Permission
from segmentstore.controller.controller import Controller
from segmentstore.controller.message_forms import (
    segment_range,
    stream_of,
    transaction_id,
    transaction_of,
)
from segmentstore.controller.method_types import (
    CallFacts,
    ControllerMethod,
    Statuses,
    done,
    response,
    stream_resource,
)
from segmentstore.controller.refusals import Reason
from segmentstore.controller.transaction_model import PingOutcome, TransactionState

_UNKNOWN_STATE: Final = 0
_STATES: Final = {
    None: _UNKNOWN_STATE,
    TransactionState.OPEN: 1,
    TransactionState.COMMITTING: 2,
    TransactionState.COMMITTED: 3,
    TransactionState.ABORTING: 4,
    TransactionState.ABORTED: 5,
}
_UNKNOWN_PING: Final = 7
_PINGS: Final = {
    PingOutcome.OK: 0,
    PingOutcome.LEASE_TOO_LARGE: 1,
    PingOutcome.TOO_OLD: 2,
    PingOutcome.COMMITTED: 5,
    PingOutcome.ABORTED: 6,
    PingOutcome.UNKNOWN: _UNKNOWN_PING,
}


async def _create(controller: Controller, request: Any, facts: CallFacts) -> Any:
    stream = stream_of(request.stream_info)
    created, segments = await controller.create_transaction(
        stream, request.lease_ms, facts.request_id
    )
    return response(
        "CreateTxnResponse",
        transaction=transaction_id(created),
        segments=[segment_range(stream, each) for each in segments],
        token=facts.token,
    )


async def _ping(controller: Controller, request: Any, _: CallFacts) -> Any:
    stream, transaction = stream_of(request.stream_info), transaction_of(request.transaction)
    outcome = await controller.transactions.ping(stream, transaction, request.lease_ms)
    return response("StatusResponse", status=_PINGS[outcome])


async def _commit(controller: Controller, request: Any, _: CallFacts) -> Any:
    stream = stream_of(request.stream_info)
    await controller.streams.record(stream)
    await controller.transactions.commit(stream, transaction_of(request.transaction))
    return done()


async def _abort(controller: Controller, request: Any, _: CallFacts) -> Any:
    stream = stream_of(request.stream_info)
    await controller.streams.record(stream)
    await controller.transactions.abort(stream, transaction_of(request.transaction))
    return done()


async def _state(controller: Controller, request: Any, _: CallFacts) -> Any:
    stream, transaction = stream_of(request.stream_info), transaction_of(request.transaction)
    state = await controller.transactions.state(stream, transaction)
    return response("StatusResponse", status=_STATES[state])


async def _completed(controller: Controller, request: Any, _: CallFacts) -> Any:
    stream = stream_of(request.stream_info)
    await controller.streams.record(stream)
    ended = [
        response(
            "CompletedTxn",
            transaction=transaction_id(each),
            outcome=int(state is TransactionState.ABORTED),
        )
        for each, state in await controller.transactions.completed(stream)
    ]
    return response("ListCompletedTxnResponse", transactions=ended)


def _of_request(request: Any) -> str:
    return stream_resource(stream_of(request.stream_info))


_ENDED: Final = Statuses(
    {
        Reason.STREAM_NOT_FOUND: 2,
        Reason.SCOPE_NOT_FOUND: 2,
        Reason.TRANSACTION_NOT_FOUND: 3,
    }
)
_UPDATE: Final = Permission.READ_UPDATE

METHODS: Final = (
    ControllerMethod(
        "createTransaction", "CreateTxnRequest", "CreateTxnResponse", _create, _of_request, _UPDATE
    ),
    ControllerMethod(
        "pingTransaction",
        "PingTxnRequest",
        "StatusResponse",
        _ping,
        _of_request,
        _UPDATE,
        Statuses({}, failure=_UNKNOWN_PING),
    ),
    ControllerMethod(
        "commitTransaction", "TxnRequest", "StatusResponse", _commit, _of_request, _UPDATE, _ENDED
    ),
    ControllerMethod(
        "abortTransaction", "TxnRequest", "StatusResponse", _abort, _of_request, _UPDATE, _ENDED
    ),
    ControllerMethod(
        "checkTransactionState",
        "TxnRequest",
        "StatusResponse",
        _state,
        _of_request,
        Permission.READ,
        Statuses({}, failure=_UNKNOWN_STATE),
    ),
    ControllerMethod(
        "listCompletedTransactions",
        "ListCompletedTxnRequest",
        "ListCompletedTxnResponse",
        _completed,
        _of_request,
        Permission.READ,
    ),
)
