"""Methods that readers and writers ask: which segments a stream has, and where they are."""

from __future__ import annotations

from typing import Any, Final

from segmentstore.contracts.permission import Permission
from segmentstore.controller.controller import Controller
from segmentstore.controller.message_forms import (
    cut_of,
    segment_id,
    segment_range,
    segment_ranges,
    stream_of,
)
from segmentstore.controller.method_types import (
    CallFacts,
    ControllerMethod,
    Statuses,
    response,
    root,
    stream_resource,
)
from segmentstore.controller.names import segment_name
from segmentstore.published_hosts import PublishedAddress


async def _current_segments(controller: Controller, request: Any, facts: CallFacts) -> Any:
    stream = stream_of(request)
    return segment_ranges(stream, await controller.streams.current(stream), facts.token)


async def _epoch_segments(controller: Controller, request: Any, facts: CallFacts) -> Any:
    stream = stream_of(request.stream_info)
    return segment_ranges(
        stream, await controller.streams.epoch(stream, request.epoch), facts.token
    )


async def _head_segments(controller: Controller, request: Any, facts: CallFacts) -> Any:
    """The time asked for is ignored, as by Pravega's Controller: the answer is the head."""
    stream = stream_of(request.stream_info)
    head = await controller.streams.head(stream)
    segments = [
        response("SegmentLocation", segment_id=segment_id(stream, each), offset=offset)
        for each, offset in head.items()
    ]
    return response("SegmentsAtTime", segments=segments, token=facts.token)


async def _following(controller: Controller, request: Any, facts: CallFacts) -> Any:
    stream = stream_of(request.stream_info)
    found = await controller.streams.successors(stream, request.segment_id)
    successors = [
        response("Successor", range=segment_range(stream, segment), predecessors=predecessors)
        for segment, predecessors in found
    ]
    return response("SuccessorResponse", successors=successors, token=facts.token)


async def _between(controller: Controller, request: Any, facts: CallFacts) -> Any:
    stream = stream_of(request.stream_info)
    segments = await controller.streams.between(stream, cut_of(request.first), cut_of(request.last))
    ids = [segment_id(stream, each.segment_id) for each in segments]
    return response("StreamCutRangeResponse", segments=ids, token=facts.token)


async def _is_segment_valid(controller: Controller, request: Any, _: CallFacts) -> Any:
    stream = stream_of(request.stream_info)
    valid = await controller.streams.is_segment_valid(stream, request.segment_id)
    return response("ValidityResponse", valid=valid)


async def _is_cut_valid(controller: Controller, request: Any, _: CallFacts) -> Any:
    stream = stream_of(request.stream_info)
    valid = await controller.streams.is_cut_valid(stream, cut_of(request.cut))
    return response("ValidityResponse", valid=valid)


async def _uri(controller: Controller, request: Any, _: CallFacts) -> Any:
    """Also of segments that are not there: clients ask before they create some."""
    name = segment_name(stream_of(request.stream_info), request.segment_id)
    return _node(await controller.hosts.address_of(name))


async def _delegation_token(_: Controller, __: Any, facts: CallFacts) -> Any:
    return response("DelegationToken", token=facts.token)


async def _servers(controller: Controller, _: Any, __: CallFacts) -> Any:
    servers = [_node(each) for each in await controller.hosts.controllers()]
    return response("ServerResponse", servers=servers)


async def _ignored(_: Controller, __: Any, ___: CallFacts) -> Any:
    """Watermarks are not written."""
    return response("StatusResponse")


def _node(address: PublishedAddress) -> Any:
    return response("NodeUri", endpoint=address.host, port=address.port)


def _of_info(request: Any) -> str:
    return stream_resource(stream_of(request))


def _of_request(request: Any) -> str:
    return stream_resource(stream_of(request.stream_info))


def _of_position(request: Any) -> str:
    return stream_resource(stream_of(request.position.stream_info))


_READ, _UPDATE = Permission.READ, Permission.READ_UPDATE

METHODS: Final = (
    ControllerMethod(
        "getCurrentSegments", "StreamInfo", "SegmentRanges", _current_segments, _of_info, _READ
    ),
    ControllerMethod(
        "getEpochSegments",
        "GetEpochSegmentsRequest",
        "SegmentRanges",
        _epoch_segments,
        _of_request,
        _READ,
    ),
    ControllerMethod(
        "getSegments", "GetSegmentsRequest", "SegmentsAtTime", _head_segments, _of_request, _READ
    ),
    ControllerMethod(
        "getSegmentsImmediatelyFollowing",
        "SegmentId",
        "SuccessorResponse",
        _following,
        _of_request,
        _READ,
    ),
    ControllerMethod(
        "getSegmentsImmediatlyFollowing",
        "SegmentId",
        "SuccessorResponse",
        _following,
        _of_request,
        _READ,
    ),
    ControllerMethod(
        "getSegmentsBetween",
        "StreamCutRange",
        "StreamCutRangeResponse",
        _between,
        _of_request,
        _READ,
    ),
    ControllerMethod(
        "isSegmentValid", "SegmentId", "ValidityResponse", _is_segment_valid, _of_request, _READ
    ),
    ControllerMethod(
        "isStreamCutValid", "StreamCut", "ValidityResponse", _is_cut_valid, _of_request, _READ
    ),
    ControllerMethod("getURI", "SegmentId", "NodeUri", _uri, _of_request, _READ),
    ControllerMethod(
        "getDelegationToken", "StreamInfo", "DelegationToken", _delegation_token, _of_info, _READ
    ),
    ControllerMethod("getControllerServerList", "Nothing", "ServerResponse", _servers, root, _READ),
    ControllerMethod(
        "noteTimestampFromWriter",
        "TimestampFromWriter",
        "StatusResponse",
        _ignored,
        _of_position,
        _UPDATE,
        Statuses({}, failure=3),
    ),
    ControllerMethod(
        "removeWriter",
        "RemoveWriterRequest",
        "StatusResponse",
        _ignored,
        _of_request,
        _UPDATE,
        Statuses({}, failure=3),
    ),
)
