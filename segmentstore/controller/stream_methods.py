"""Methods that change streams and describe them."""

from __future__ import annotations

from typing import Any, Final

from segmentstore.contracts.permission import Permission
from segmentstore.controller.controller import Controller
from segmentstore.controller.message_forms import (
    configuration_of,
    cut_of,
    segment_range,
    stream_config,
    stream_of,
)
from segmentstore.controller.method_types import (
    CallFacts,
    ControllerMethod,
    Statuses,
    done,
    response,
    scope_resource,
    stream_resource,
)
from segmentstore.controller.refusals import Reason
from segmentstore.controller.stream_model import ChangeKind

_STARTED: Final = 0
_IN_PROGRESS: Final = 0
_SCALED: Final = 1
_NO_SUCH_EPOCH: Final = 2
_SCALE_FAILED: Final = 3


async def _create_stream(controller: Controller, request: Any, facts: CallFacts) -> Any:
    stream, configuration = stream_of(request.stream_info), configuration_of(request)
    await controller.streams.create(stream, configuration, facts.request_id)
    return done()


async def _update_stream(controller: Controller, request: Any, _: CallFacts) -> Any:
    await controller.streams.update(stream_of(request.stream_info), configuration_of(request))
    return done()


async def _truncate_stream(controller: Controller, request: Any, _: CallFacts) -> Any:
    await controller.streams.truncate(stream_of(request.stream_info), cut_of(request.cut))
    return done()


async def _seal_stream(controller: Controller, request: Any, _: CallFacts) -> Any:
    await controller.streams.seal(stream_of(request))
    return done()


async def _delete_stream(controller: Controller, request: Any, facts: CallFacts) -> Any:
    await controller.streams.delete(stream_of(request), facts.request_id)
    return done()


async def _check_stream_exists(controller: Controller, request: Any, _: CallFacts) -> Any:
    exists = await controller.streams.exists(stream_of(request))
    return response("ExistsResponse", exists=exists)


async def _get_configuration(controller: Controller, request: Any, _: CallFacts) -> Any:
    stream = stream_of(request)
    record = await controller.streams.record(stream)
    return stream_config(stream, record.configuration)


async def _scale(controller: Controller, request: Any, _: CallFacts) -> Any:
    stream = stream_of(request.stream_info)
    ranges = [(each.low, each.high) for each in request.ranges]
    epoch, created = await controller.streams.scale(stream, list(request.sealed), ranges)
    return response(
        "ScaleResponse",
        status=_STARTED,
        segments=[segment_range(stream, each) for each in created],
        epoch=epoch,
    )


async def _check_scale(controller: Controller, request: Any, _: CallFacts) -> Any:
    """`epoch` is the one that the scale ends, as the answer to `scale` gave it."""
    record = await controller.streams.record(stream_of(request.stream_info))
    scaling = record.change is not None and record.change.kind is ChangeKind.SCALE_SEAL
    if request.epoch > record.epoch or request.epoch < 0:
        status = _NO_SUCH_EPOCH
    elif request.epoch == record.epoch or (request.epoch == record.epoch - 1 and scaling):
        status = _IN_PROGRESS
    else:
        status = _SCALED
    return response("StatusResponse", status=status)


def _of_info(request: Any) -> str:
    return stream_resource(stream_of(request))


def _of_request(request: Any) -> str:
    return stream_resource(stream_of(request.stream_info))


def _in_scope(request: Any) -> str:
    return scope_resource(request.stream_info.scope)


_MISSING: Final = {Reason.STREAM_NOT_FOUND: 2, Reason.SCOPE_NOT_FOUND: 2}
_CREATED: Final = Statuses({Reason.STREAM_EXISTS: 2, Reason.SCOPE_NOT_FOUND: 3, Reason.BAD_NAME: 4})
_UPDATED: Final = Statuses(
    {Reason.STREAM_NOT_FOUND: 2, Reason.SCOPE_NOT_FOUND: 3, Reason.STREAM_SEALED: 4}
)
_DELETED: Final = Statuses({**_MISSING, Reason.STREAM_NOT_SEALED: 3})
_SCALED_STATUSES: Final = Statuses({Reason.PRECONDITION_FAILED: 2})
_CHECKED: Final = Statuses(
    {Reason.STREAM_NOT_FOUND: _NO_SUCH_EPOCH, Reason.SCOPE_NOT_FOUND: _NO_SUCH_EPOCH},
    failure=_SCALE_FAILED,
)
_READ, _UPDATE = Permission.READ, Permission.READ_UPDATE

METHODS: Final = (
    ControllerMethod(
        "createStream",
        "StreamConfig",
        "StatusResponse",
        _create_stream,
        _in_scope,
        _UPDATE,
        _CREATED,
    ),
    ControllerMethod(
        "updateStream",
        "StreamConfig",
        "StatusResponse",
        _update_stream,
        _of_request,
        _UPDATE,
        _UPDATED,
    ),
    ControllerMethod(
        "truncateStream",
        "StreamCut",
        "StatusResponse",
        _truncate_stream,
        _of_request,
        _UPDATE,
        Statuses({Reason.STREAM_NOT_FOUND: 2, Reason.SCOPE_NOT_FOUND: 3}),
    ),
    ControllerMethod(
        "sealStream",
        "StreamInfo",
        "StatusResponse",
        _seal_stream,
        _of_info,
        _UPDATE,
        Statuses({Reason.STREAM_NOT_FOUND: 2, Reason.SCOPE_NOT_FOUND: 3}),
    ),
    ControllerMethod(
        "deleteStream",
        "StreamInfo",
        "StatusResponse",
        _delete_stream,
        _of_info,
        _UPDATE,
        _DELETED,
    ),
    ControllerMethod(
        "checkStreamExists", "StreamInfo", "ExistsResponse", _check_stream_exists, _of_info, _READ
    ),
    ControllerMethod(
        "getStreamConfiguration", "StreamInfo", "StreamConfig", _get_configuration, _of_info, _READ
    ),
    ControllerMethod(
        "scale",
        "ScaleRequest",
        "ScaleResponse",
        _scale,
        _of_request,
        _UPDATE,
        _SCALED_STATUSES,
    ),
    ControllerMethod(
        "checkScale",
        "ScaleStatusRequest",
        "StatusResponse",
        _check_scale,
        _of_request,
        _READ,
        _CHECKED,
    ),
)
