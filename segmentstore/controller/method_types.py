"""What a method of the Controller's service is: messages, the permission it needs, its statuses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from segmentstore.contracts.permission import Permission
from segmentstore.controller.controller import Controller
from segmentstore.controller.messages import MESSAGES
from segmentstore.controller.names import ScopedName
from segmentstore.controller.refusals import Reason

PAGE: Final = 1000
"""Names in an answer."""


class CallFacts(NamedTuple):
    """What a method may need of a call besides its request."""

    token: str
    """A delegation token for its resource."""
    request_id: str
    """Of `request_ids`."""


class Statuses(NamedTuple):
    """The field `status` of an answer that has one. 0 is success."""

    refusals: Mapping[Reason, int]
    failure: int = 1
    """For any other reason, and for errors of ours."""


class ControllerMethod(NamedTuple):
    """A unary call. `handle` takes the Controller, the request and the rest of the call."""

    name: str
    request: str
    response: str
    handle: Callable[[Controller, Any, CallFacts], Awaitable[Any]]
    resource: Callable[[Any], str]
    permission: Permission
    statuses: Statuses | None = None
    """None: the answer has no status, a refusal is a code of gRPC."""


def response(name: str, /, **fields: Any) -> Any:
    """A message."""
    return MESSAGES[name](**fields)


def done() -> Any:
    """A StatusResponse of success."""
    return MESSAGES["StatusResponse"]()


def token_message(names: Sequence[str], request: Any) -> Any:
    """The ContinuationToken behind a page of names; that of the request, if there are none."""
    last = names[-1] if names else request.token.token
    return MESSAGES["ContinuationToken"](token=last)


# Resources as Pravega's authorization names them.


def root(_: Any) -> str:
    """All scopes."""
    return "prn::/"


def scope_resource(scope: str) -> str:
    """A scope and what is in it."""
    return f"prn::/scope:{scope}"


def stream_resource(stream: ScopedName) -> str:
    """A stream."""
    return f"{scope_resource(stream.scope)}/stream:{stream.name}"


def group_resource(group: ScopedName) -> str:
    """A reader group."""
    return f"{scope_resource(group.scope)}/reader-group:{group.name}"


def table_resource(table: ScopedName) -> str:
    """A key-value table."""
    return f"{scope_resource(table.scope)}/key-value-table:{table.name}"
