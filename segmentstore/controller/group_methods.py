"""Methods on reader groups and subscribers, and on key-value tables."""

from __future__ import annotations

from typing import Any, Final

from segmentstore.contracts.permission import Permission
from segmentstore.controller.controller import Controller
from segmentstore.controller.message_forms import (
    cut_of,
    group_configuration_of,
    group_message,
    segment_ranges,
    stream_of,
    table_configuration_of,
    table_message,
)
from segmentstore.controller.method_types import (
    PAGE,
    CallFacts,
    ControllerMethod,
    Statuses,
    done,
    group_resource,
    response,
    scope_resource,
    stream_resource,
    table_resource,
    token_message,
)
from segmentstore.controller.names import ScopedName
from segmentstore.controller.refusals import Reason


def _name(request: Any) -> ScopedName:
    return ScopedName(request.scope, request.name)


# --- reader groups --------------------------------------------------------------------------------


async def _create_group(controller: Controller, request: Any, _: CallFacts) -> Any:
    group, wanted = _name(request), group_configuration_of(request).with_generation(0)
    configuration = await controller.groups.create(group, wanted)
    return response("CreateReaderGroupResponse", configuration=group_message(group, configuration))


async def _group_configuration(controller: Controller, request: Any, _: CallFacts) -> Any:
    group = _name(request)
    configuration = await controller.groups.configuration(group)
    return response("ReaderGroupConfigResponse", configuration=group_message(group, configuration))


async def _update_group(controller: Controller, request: Any, _: CallFacts) -> Any:
    configuration = group_configuration_of(request)
    generation = await controller.groups.update(_name(request), configuration)
    return response("UpdateReaderGroupResponse", generation=generation)


async def _delete_group(controller: Controller, request: Any, facts: CallFacts) -> Any:
    await controller.groups.delete(_name(request), request.uuid, facts.request_id)
    return done()


async def _subscribers(controller: Controller, request: Any, _: CallFacts) -> Any:
    subscribers = await controller.groups.subscribers(stream_of(request))
    return response("SubscribersResponse", subscribers=subscribers)


async def _report_cut(controller: Controller, request: Any, _: CallFacts) -> Any:
    stream = stream_of(request.stream_cut.stream_info)
    scope, slash, name = request.subscriber.partition("/")
    group = ScopedName(scope, name) if slash else ScopedName(stream.scope, scope)
    await controller.groups.report_cut(
        stream, group, request.uuid, request.generation, cut_of(request.stream_cut.cut)
    )
    return done()


# --- key-value tables -----------------------------------------------------------------------------


async def _create_table(controller: Controller, request: Any, facts: CallFacts) -> Any:
    configuration = table_configuration_of(request)
    await controller.key_value_tables.create(_name(request), configuration, facts.request_id)
    return done()


async def _delete_table(controller: Controller, request: Any, facts: CallFacts) -> Any:
    await controller.key_value_tables.delete(_name(request), facts.request_id)
    return done()


async def _table_configuration(controller: Controller, request: Any, _: CallFacts) -> Any:
    table = _name(request)
    configuration = await controller.key_value_tables.configuration(table)
    return response(
        "KeyValueTableConfigResponse", configuration=table_message(table, configuration)
    )


async def _table_segments(controller: Controller, request: Any, facts: CallFacts) -> Any:
    table = _name(request)
    return segment_ranges(table, await controller.key_value_tables.segments(table), facts.token)


async def _list_tables(controller: Controller, request: Any, _: CallFacts) -> Any:
    after = request.token.token
    tables = await controller.key_value_tables.page(request.scope.scope, after, PAGE)
    return response(
        "KVTablesInScopeResponse",
        tables=[response("KeyValueTableInfo", scope=each.scope, name=each.name) for each in tables],
        token=token_message([each.name for each in tables], request),
    )


# --- resources ------------------------------------------------------------------------------------


def _of_group(request: Any) -> str:
    return group_resource(_name(request))


def _of_table(request: Any) -> str:
    return table_resource(_name(request))


def _of_stream(request: Any) -> str:
    return stream_resource(stream_of(request))


def _of_cut(request: Any) -> str:
    return stream_resource(stream_of(request.stream_cut.stream_info))


def _of_scope(request: Any) -> str:
    return scope_resource(request.scope)


def _in_scope(request: Any) -> str:
    return scope_resource(request.scope.scope)


_NO_GROUP: Final = Statuses({Reason.GROUP_NOT_FOUND: 2})
_NO_TABLE: Final = Statuses({Reason.TABLE_NOT_FOUND: 2})
_NO_STREAM: Final = {Reason.STREAM_NOT_FOUND: 2, Reason.SCOPE_NOT_FOUND: 2}
_READ, _UPDATE = Permission.READ, Permission.READ_UPDATE

METHODS: Final = (
    ControllerMethod(
        "createReaderGroup",
        "ReaderGroupConfiguration",
        "CreateReaderGroupResponse",
        _create_group,
        _of_scope,
        _READ,
        Statuses({Reason.SCOPE_NOT_FOUND: 2, Reason.BAD_NAME: 3}),
    ),
    ControllerMethod(
        "getReaderGroupConfig",
        "ReaderGroupInfo",
        "ReaderGroupConfigResponse",
        _group_configuration,
        _of_group,
        _READ,
        _NO_GROUP,
    ),
    ControllerMethod(
        "updateReaderGroup",
        "ReaderGroupConfiguration",
        "UpdateReaderGroupResponse",
        _update_group,
        _of_group,
        _READ,
        Statuses({Reason.GROUP_NOT_FOUND: 2, Reason.GROUP_CHANGED: 3}),
    ),
    ControllerMethod(
        "deleteReaderGroup",
        "ReaderGroupInfo",
        "StatusResponse",
        _delete_group,
        _of_group,
        _READ,
        _NO_GROUP,
    ),
    ControllerMethod(
        "listSubscribers",
        "StreamInfo",
        "SubscribersResponse",
        _subscribers,
        _of_stream,
        _READ,
        Statuses(_NO_STREAM),
    ),
    ControllerMethod(
        "updateSubscriberStreamCut",
        "SubscriberStreamCut",
        "StatusResponse",
        _report_cut,
        _of_cut,
        _READ,
        Statuses(
            {
                **_NO_STREAM,
                Reason.SUBSCRIBER_NOT_FOUND: 3,
                Reason.BAD_CUT: 4,
                Reason.GENERATION_MISMATCH: 5,
            }
        ),
    ),
    ControllerMethod(
        "createKeyValueTable",
        "KeyValueTableConfig",
        "StatusResponse",
        _create_table,
        _of_scope,
        _UPDATE,
        Statuses({Reason.TABLE_EXISTS: 2, Reason.SCOPE_NOT_FOUND: 3, Reason.BAD_NAME: 4}),
    ),
    ControllerMethod(
        "getKeyValueTableConfiguration",
        "KeyValueTableInfo",
        "KeyValueTableConfigResponse",
        _table_configuration,
        _of_table,
        _READ,
        _NO_TABLE,
    ),
    ControllerMethod(
        "getCurrentSegmentsKeyValueTable",
        "KeyValueTableInfo",
        "SegmentRanges",
        _table_segments,
        _of_table,
        _READ,
    ),
    ControllerMethod(
        "listKeyValueTablesInScope",
        "KVTablesInScopeRequest",
        "KVTablesInScopeResponse",
        _list_tables,
        _in_scope,
        _READ,
        Statuses({Reason.SCOPE_NOT_FOUND: 2}),
    ),
    ControllerMethod(
        "deleteKeyValueTable",
        "KeyValueTableInfo",
        "StatusResponse",
        _delete_table,
        _of_table,
        _UPDATE,
        _NO_TABLE,
    ),
)
