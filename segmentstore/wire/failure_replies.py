"""Replies that refuse a request.

Fields are in the order of the wire. A default is what the wire means by a missing field.
`stack` is a stack trace, empty unless a server is configured to send it.
InvalidEventNumber and ConditionalCheckFailed are with the appends.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from segmentstore.wire.append_commands import NO_OFFSET

TOKEN_UNSPECIFIED: Final = -1
TOKEN_REFUSED: Final = 0
"""Final: the client does not try again."""
TOKEN_EXPIRED: Final = 1
"""The client gets a new token and repeats the request."""
RUNTIME_ERROR: Final = -1
ILLEGAL_ARGUMENT: Final = 0


class WrongHost(NamedTuple):
    """The segment's container is elsewhere. `correct_host` is always empty."""

    request_id: int
    segment: str
    correct_host: str
    stack: str = ""


class SegmentIsSealed(NamedTuple):
    """The segment takes no changes. Of an append, `offset` is the event number."""

    request_id: int
    segment: str
    stack: str = ""
    offset: int = NO_OFFSET


class SegmentAlreadyExists(NamedTuple):
    """A segment of the name is there."""

    request_id: int
    segment: str
    stack: str = ""


class NoSuchSegment(NamedTuple):
    """There is no such segment. Of a read, `offset` is the one asked for."""

    request_id: int
    segment: str
    stack: str = ""
    offset: int = NO_OFFSET


class SegmentIsTruncated(NamedTuple):
    """The segment begins at `start_offset`; `offset` is the one asked for."""

    request_id: int
    segment: str
    start_offset: int
    stack: str = ""
    offset: int = NO_OFFSET


class OperationUnsupported(NamedTuple):
    """The server does not execute this command."""

    request_id: int
    operation: str
    stack: str = ""


class AuthTokenCheckFailed(NamedTuple):
    """The delegation token does not allow the request. `code`: TOKEN_..."""

    request_id: int
    stack: str = ""
    code: int = TOKEN_UNSPECIFIED


class ErrorMessage(NamedTuple):
    """Anything else that the client is to know. `code`: RUNTIME_ERROR or ILLEGAL_ARGUMENT."""

    request_id: int
    segment: str
    message: str
    code: int


class TableSegmentNotEmpty(NamedTuple):
    """A table was to be deleted if empty, and has keys."""

    request_id: int
    segment: str
    stack: str = ""


class TableKeyDoesNotExist(NamedTuple):
    """A version was expected of a key that is absent."""

    request_id: int
    segment: str
    stack: str = ""


class TableKeyBadVersion(NamedTuple):
    """A key has another version than the expected, or is there and should be absent."""

    request_id: int
    segment: str
    stack: str = ""
