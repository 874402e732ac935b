"""What the public functions accept: checked here, at the door, and nowhere behind it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from segmentstore.contracts import forks
from segmentstore.contracts.attributes import (
    VALUE_MAX,
    VALUE_MIN,
    AttributeUpdate,
    KeyedUpdate,
    UpdateType,
)
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import (
    AppendTooLargeError,
    InvalidArgumentError,
    WrongEventLoopError,
)

# As get_running_loop, without its error: an append can afford it.
running_loop = asyncio._get_running_loop  # noqa: SLF001
"""The event loop that runs in this thread; None if there is none."""

OFFSET_MAX = 2**63 - 1
UPDATES_MAX = 1024
"""Attribute updates of one call; the format counts them in 16 bits."""


def checked_offset(argument: str, value: object, low: int = 0) -> None:
    """Raise InvalidArgumentError unless `value` is an int from `low` to 2^63 - 1."""
    if type(value) is not int or not low <= value <= OFFSET_MAX:
        raise InvalidArgumentError(
            argument, value, f"it is a whole number from {low} to {OFFSET_MAX}"
        )


def checked_wait(value: object) -> None:
    """Raise InvalidArgumentError unless `value` is None or seconds, 0 or more."""
    if value is not None and not (isinstance(value, int | float) and value >= 0):
        raise InvalidArgumentError("wait", value, "it is None or a number of seconds, 0 or more")


def checked_updates(updates: Sequence[object]) -> tuple[KeyedUpdate, ...]:
    """The updates in the engine's form.

    Raises InvalidArgumentError for the first that is malformed.
    """
    try:
        updates = tuple(updates)
    except TypeError:
        raise InvalidArgumentError(
            "attributes", updates, "it is a sequence of AttributeUpdate"
        ) from None
    if len(updates) > UPDATES_MAX:
        raise InvalidArgumentError(
            "attributes", len(updates), f"at most {UPDATES_MAX} updates in one call"
        )
    result = []
    for update in updates:
        if not isinstance(update, AttributeUpdate):
            _refuse_update(update)
        fields: tuple[object, object, object, object] = update
        attribute_id, update_type, value, expected = fields
        # One condition for all: an append with attributes is as hot as one without.
        if not (
            isinstance(attribute_id, uuid.UUID)
            and isinstance(update_type, UpdateType)
            and type(value) is int
            and VALUE_MIN <= value <= VALUE_MAX
            and (expected is None or (type(expected) is int and VALUE_MIN <= expected <= VALUE_MAX))
        ):
            _refuse_update(update)
        # Its `bytes`, without the call of a property.
        result.append((attribute_id.int.to_bytes(16), update_type, value, expected))
    return tuple(result)


def _refuse_update(update: object) -> NoReturn:
    """Raise what is wrong with an update."""
    if not isinstance(update, AttributeUpdate) or not isinstance(update.id, uuid.UUID):
        raise InvalidArgumentError(
            "attributes", update, "each is an AttributeUpdate whose id is a uuid.UUID"
        )
    if not isinstance(update.type, UpdateType):
        raise InvalidArgumentError("attributes", update, "its type is an UpdateType")
    if update.value is None:
        raise InvalidArgumentError("attributes", update, "it has no value")
    raise InvalidArgumentError("attributes", update, "values are signed 64-bit integers")


def checked_ids(ids: object) -> list[uuid.UUID]:
    """Ids of attributes. Raises InvalidArgumentError for the first that is none."""
    if not isinstance(ids, Iterable):
        raise InvalidArgumentError("ids", ids, "it is None or an iterable of uuid.UUID")
    checked = list(ids)
    for each in checked:
        if not isinstance(each, uuid.UUID):
            raise InvalidArgumentError("ids", each, "an attribute's id is a uuid.UUID")
    return checked


def check_loop(loop: asyncio.AbstractEventLoop, birth: forks.Birth) -> None:
    """The door of a session's calls. Raises WrongEventLoopError, ForkedStoreError."""
    if running_loop() is not loop:
        birth.check()
        raise WrongEventLoopError


def failed_future(error: BaseException) -> asyncio.Future[Any]:
    """A future that reports a refusal to the caller, as every other outcome is reported.

    Raises it where no loop runs.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise error from None
    future: asyncio.Future[Any] = loop.create_future()
    future.set_exception(error)
    return future


def snapshot(data: Buffer) -> Buffer:
    """Data that its owner cannot change any more; what cannot be copied is left for `checked_data`
    to refuse.
    """
    if isinstance(data, bytearray | memoryview):
        try:
            return bytes(data)
        except ValueError:
            return data
    return data


def checked_data(data: object, length_max: int) -> bytes:
    """The bytes of one append as an object that cannot change.

    Raises InvalidArgumentError, AppendTooLargeError.
    """
    if type(data) is not bytes:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidArgumentError(
                "data", type(data).__name__, "an append takes bytes, bytearray or memoryview"
            )
        try:
            data = bytes(data)
        except ValueError as error:
            raise InvalidArgumentError("data", type(data).__name__, str(error)) from None
    if len(data) > length_max:
        raise AppendTooLargeError(len(data), length_max)
    return data
