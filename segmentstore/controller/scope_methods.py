"""Methods on scopes, and lists of what is in them."""

from __future__ import annotations

from typing import Any, Final

from segmentstore.contracts.permission import Permission
from segmentstore.controller.controller import Controller
from segmentstore.controller.message_forms import stream_info
from segmentstore.controller.method_types import (
    PAGE,
    CallFacts,
    ControllerMethod,
    Statuses,
    done,
    response,
    root,
    scope_resource,
    token_message,
)
from segmentstore.controller.refusals import Reason


async def _create_scope(controller: Controller, request: Any, facts: CallFacts) -> Any:
    await controller.scopes.create(request.scope, facts.request_id)
    return done()


async def _delete_scope(controller: Controller, request: Any, facts: CallFacts) -> Any:
    await controller.scopes.delete(request.scope, facts.request_id)
    return done()


async def _delete_scope_recursive(controller: Controller, request: Any, facts: CallFacts) -> Any:
    await controller.scopes.delete_recursively(request.scope, facts.request_id)
    return done()


async def _check_scope_exists(controller: Controller, request: Any, _: CallFacts) -> Any:
    return response("ExistsResponse", exists=await controller.scopes.exists(request.scope))


async def _list_scopes(controller: Controller, request: Any, _: CallFacts) -> Any:
    scopes = await controller.scopes.page(request.token.token, PAGE)
    return response("ScopesResponse", scopes=scopes, token=token_message(scopes, request))


async def _list_streams(controller: Controller, request: Any, _: CallFacts) -> Any:
    return await _streams_page(controller, request, None)


async def _list_streams_for_tag(controller: Controller, request: Any, _: CallFacts) -> Any:
    return await _streams_page(controller, request, request.tag)


async def _streams_page(controller: Controller, request: Any, tag: str | None) -> Any:
    after = request.token.token
    streams = await controller.streams.page(request.scope.scope, after, PAGE, tag)
    return response(
        "StreamsInScopeResponse",
        streams=[stream_info(each) for each in streams],
        token=token_message([each.name for each in streams], request),
    )


def _of_scope(request: Any) -> str:
    return scope_resource(request.scope)


def _in_scope(request: Any) -> str:
    return scope_resource(request.scope.scope)


_LISTED: Final = Statuses({Reason.SCOPE_NOT_FOUND: 2})
_CREATED: Final = Statuses({Reason.SCOPE_EXISTS: 2, Reason.BAD_NAME: 3})
_DELETED: Final = Statuses({Reason.SCOPE_NOT_FOUND: 2, Reason.SCOPE_NOT_EMPTY: 3})
_READ, _UPDATE = Permission.READ, Permission.READ_UPDATE

METHODS: Final = (
    ControllerMethod(
        "createScope", "ScopeInfo", "StatusResponse", _create_scope, root, _UPDATE, _CREATED
    ),
    ControllerMethod(
        "deleteScope", "ScopeInfo", "StatusResponse", _delete_scope, root, _UPDATE, _DELETED
    ),
    ControllerMethod(
        "deleteScopeRecursive",
        "ScopeInfo",
        "StatusResponse",
        _delete_scope_recursive,
        root,
        _UPDATE,
        _DELETED,
    ),
    ControllerMethod(
        "checkScopeExists", "ScopeInfo", "ExistsResponse", _check_scope_exists, _of_scope, _READ
    ),
    ControllerMethod("listScopes", "ScopesRequest", "ScopesResponse", _list_scopes, root, _READ),
    ControllerMethod(
        "listStreamsInScope",
        "StreamsInScopeRequest",
        "StreamsInScopeResponse",
        _list_streams,
        _in_scope,
        _READ,
        _LISTED,
    ),
    ControllerMethod(
        "listStreamsInScopeForTag",
        "StreamsInScopeWithTagRequest",
        "StreamsInScopeResponse",
        _list_streams_for_tag,
        _in_scope,
        _READ,
        _LISTED,
    ),
)
