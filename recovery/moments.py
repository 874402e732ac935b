"""Moments: which state of a container is asked for: as of an operation, a time, or a checkpoint.
Pure.

Rule: the state at a moment is what replay gives up to and with the operation before the first one
that is behind the moment. A clock that was set back makes no operation earlier than those before
it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from segmentstore.contracts.errors import InvalidArgumentError, SegmentStoreError

_CHECKPOINT: Final = "checkpoint:"
_NUMBER: Final = re.compile(r"[0-9]+")
_SEQUENCE_MAX: Final = 2**64 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_SHOWN_MIN_MS: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
_SHOWN_MAX_MS: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND


class MomentNotKeptError(SegmentStoreError):
    """Neither the archive nor the log has what the state at a moment needs.

    The caller's move: name a moment between the first and the last that the message gives.
    """

    def __init__(self, container_id: int, detail: str) -> None:
        super().__init__(f"container {container_id}: {detail}")
        self.container_id = container_id
        self.detail = detail


@dataclass(frozen=True, slots=True)
class AtSequence:
    """Behind the operation of this number, or the last one before it: numbers have gaps."""

    sequence_number: int

    def __str__(self) -> str:
        return f"operation {self.sequence_number}"


@dataclass(frozen=True, slots=True)
class AtTime:
    """Before the first operation whose time stamp is later."""

    time_ms: int
    """Milliseconds since 1970 UTC."""

    def __str__(self) -> str:
        return shown_time(self.time_ms)


@dataclass(frozen=True, slots=True)
class AtCheckpoint:
    """As of the checkpoint of this number, which must be there and be readable."""

    sequence_number: int

    def __str__(self) -> str:
        return f"checkpoint {self.sequence_number}"


Moment: TypeAlias = AtSequence | AtTime | AtCheckpoint


def is_behind(moment: Moment, sequence_number: int, timestamp_ms: int) -> bool:
    """Whether an operation is behind the moment: the state at it is without the operation."""
    if isinstance(moment, AtTime):
        return timestamp_ms > moment.time_ms
    return sequence_number > moment.sequence_number


def parse_moment(text: str) -> Moment:
    """`123` an operation, `checkpoint:123` a checkpoint, else a time as ISO 8601 has it.

    A time without an offset is UTC. Raises InvalidArgumentError.
    """
    if _NUMBER.fullmatch(text):
        return AtSequence(_number(text, text))
    if text.startswith(_CHECKPOINT):
        number = text.removeprefix(_CHECKPOINT)
        if _NUMBER.fullmatch(number):
            return AtCheckpoint(_number(text, number))
    else:
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            pass
        else:
            time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
            return AtTime((time - _EPOCH) // _MILLISECOND)
    raise InvalidArgumentError(
        "at",
        text,
        "it is no number of an operation (123), no checkpoint (checkpoint:123), and no time "
        "(2026-01-31T12:00:00Z)",
    )


def _number(text: str, digits: str) -> int:
    number = int(digits)
    if number > _SEQUENCE_MAX:
        raise InvalidArgumentError("at", text, f"no operation has a number above {_SEQUENCE_MAX}")
    return number


def shown_time(time_ms: int) -> str:
    """A time for people, e.g. `2026-01-31T12:00:00.250+00:00`; "the end" for those behind the year
    9999, "the beginning" for those before the year 1.
    """
    if time_ms > _SHOWN_MAX_MS:
        return "the end"
    if time_ms < _SHOWN_MIN_MS:
        return "the beginning"
    return (_EPOCH + time_ms * _MILLISECOND).isoformat(timespec="milliseconds")
