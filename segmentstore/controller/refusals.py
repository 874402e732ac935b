"""Why a request is refused: one error with a reason, which each method answers with a status of its
own.
"""

from __future__ import annotations

import enum


class Reason(enum.Enum):
    """What is wrong with a request."""

    BAD_NAME = enum.auto()
    BAD_ARGUMENT = enum.auto()
    SCOPE_NOT_FOUND = enum.auto()
    SCOPE_EXISTS = enum.auto()
    SCOPE_NOT_EMPTY = enum.auto()
    STREAM_NOT_FOUND = enum.auto()
    STREAM_EXISTS = enum.auto()
    STREAM_SEALED = enum.auto()
    STREAM_NOT_SEALED = enum.auto()
    SEGMENT_NOT_FOUND = enum.auto()
    BAD_CUT = enum.auto()
    PRECONDITION_FAILED = enum.auto()
    TRANSACTION_NOT_FOUND = enum.auto()
    TRANSACTION_ENDED = enum.auto()
    GROUP_NOT_FOUND = enum.auto()
    GROUP_CHANGED = enum.auto()
    SUBSCRIBER_NOT_FOUND = enum.auto()
    GENERATION_MISMATCH = enum.auto()
    TABLE_NOT_FOUND = enum.auto()
    TABLE_EXISTS = enum.auto()


class RefusedRequestError(Exception):
    """A request that the Controller does not carry out; nothing was changed.

    The caller's move: correct it. The message is for people.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
