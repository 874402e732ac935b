"""The reply to a request that failed: which error becomes which command. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from segmentstore.contracts.errors import (
    AppendTooLargeError,
    BadOffsetError,
    ContainerMismatchError,
    InvalidArgumentError,
    InvalidNameError,
    NotPrimaryError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentTruncatedError,
    TooManyAttributesError,
    describe,
)
from segmentstore.server.segment_kinds import NotAStreamSegmentError
from segmentstore.tables.errors import (
    BadKeyVersionError,
    KeyNotFoundError,
    NotATableError,
    TableNotEmptyError,
    UnsupportedTableOperationError,
    WrongKeyLengthError,
)
from segmentstore.wire.commands import (
    ILLEGAL_ARGUMENT,
    NO_OFFSET,
    Command,
    ErrorMessage,
    NoSuchSegment,
    OperationUnsupported,
    SegmentAlreadyExists,
    SegmentIsSealed,
    SegmentIsTruncated,
    TableKeyBadVersion,
    TableKeyDoesNotExist,
    TableSegmentNotEmpty,
    WrongHost,
)

_SHOWN_MAX: Final = 4096
"""Characters of an error's text. It may quote what the client has sent, and a text has 64 KiB."""
_OF_TABLES: Final[dict[type[Exception], Callable[[int, str, str], Command]]] = {
    BadKeyVersionError: TableKeyBadVersion,
    KeyNotFoundError: TableKeyDoesNotExist,
    TableNotEmptyError: TableSegmentNotEmpty,
}


def refusal(
    error: Exception, request_id: int, segment: str, offset: int = NO_OFFSET
) -> Command | None:
    """What a client gets for an error; `offset` is the one it asked for.

    None: it cannot be answered so that the client does the right thing. The connection ends, and
    the client asks again.
    """
    if isinstance(error, SegmentNotFoundError):
        return NoSuchSegment(request_id, error.name, "", offset)
    if isinstance(error, SegmentSealedError):
        return SegmentIsSealed(request_id, error.name, "", offset)
    if isinstance(error, SegmentExistsError):
        return SegmentAlreadyExists(request_id, error.name, "")
    if isinstance(error, SegmentTruncatedError):
        return SegmentIsTruncated(request_id, error.name, error.start_offset, "", offset)
    if isinstance(error, NotPrimaryError):
        return WrongHost(request_id, segment, "", "")
    for kind, reply in _OF_TABLES.items():
        if isinstance(error, kind):
            return reply(request_id, segment, "")
    if isinstance(error, UnsupportedTableOperationError):
        return OperationUnsupported(request_id, error.operation, "")
    if isinstance(
        error,
        InvalidArgumentError
        | InvalidNameError
        | BadOffsetError
        | AppendTooLargeError
        | ContainerMismatchError
        | TooManyAttributesError
        | NotATableError
        | NotAStreamSegmentError
        | WrongKeyLengthError,
    ):
        return ErrorMessage(request_id, segment, describe(error)[:_SHOWN_MAX], ILLEGAL_ARGUMENT)
    return None
