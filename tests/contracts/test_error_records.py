"""Errors that another process raised: the same class, text and attributes."""

from __future__ import annotations

import inspect
import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts import errors
from segmentstore.contracts.error_records import error_from, error_record
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    BadAttributeUpdateError,
    ContainerNotServedError,
    ContainerOwnedError,
    ContainerStoppedError,
    InvalidArgumentError,
    MissingExtraError,
    SegmentStoreError,
    StoreClosedError,
    TierUnavailableError,
)

KINDS = [
    kind
    for kind in vars(errors).values()
    if inspect.isclass(kind) and issubclass(kind, SegmentStoreError)
]
VALUES: dict[str, Any] = {
    "attribute_id": uuid.UUID(int=7),
    "cause": TierUnavailableError("tier1", "no disk"),
    "missing": ("one", "two"),
    "value": object(),
}


def made(kind: type[SegmentStoreError]) -> SegmentStoreError:
    """One of a class, with a value of its own for each parameter."""
    if kind.__init__ is Exception.__init__:
        return kind("a text")
    arguments = {
        name: VALUES.get(name, 3 if "int" in str(parameter.annotation) else f"a {name}")
        for name, parameter in inspect.signature(kind).parameters.items()
    }
    return kind(**arguments)


def carried(error: BaseException) -> SegmentStoreError:
    name, record = error_record(error)
    return error_from(name, json.loads(json.dumps(record)))


def comparable(error: object) -> object:
    if isinstance(error, BaseException):
        values = {name: comparable(value) for name, value in vars(error).items()}
        return type(error), str(error), values
    return error if isinstance(error, str | int | tuple | uuid.UUID | None) else repr(error)


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_comes_back_as_it_was(kind: type[SegmentStoreError]) -> None:
    error = made(kind)
    assert comparable(carried(error)) == comparable(error)


def test_there_are_classes_to_carry() -> None:
    assert {BadAttributeUpdateError, ContainerOwnedError, MissingExtraError} <= set(KINDS)
    assert len(KINDS) > 30


def test_a_class_below_is_carried_as_the_one_that_both_know() -> None:
    class OwnError(ContainerNotServedError):
        pass

    error = carried(OwnError(3, "0-2"))
    assert type(error) is ContainerNotServedError
    assert error.container_id == 3


def test_a_fault_is_a_general_error() -> None:
    error = carried(KeyError("x"))
    assert type(error) is SegmentStoreError
    assert str(error) == "KeyError: 'x'"


def test_an_unknown_class_is_a_general_error() -> None:
    error = error_from("LaterError", {"text": "later", "values": {"name": "s"}})
    assert (type(error), str(error)) == (SegmentStoreError, "later")


def test_causes_end_somewhere() -> None:
    error: SegmentStoreError = StoreClosedError()
    for number in range(20):
        error = ContainerStoppedError(number, error)
    error = carried(AppendOutcomeUnknownError(None, error))
    depth = 0
    while isinstance(error := error.cause, SegmentStoreError):  # type: ignore[attr-defined]
        depth += 1
    assert 2 <= depth <= 5


def test_a_wrong_argument_is_still_a_value_error() -> None:
    with pytest.raises(ValueError, match="a whole number"):
        raise carried(InvalidArgumentError("offset", -1, "a whole number"))


@given(
    st.dictionaries(
        st.sampled_from(["text", "values", "error"]),
        st.text() | st.integers() | st.dictionaries(st.text(), st.text() | st.none()),
    )
)
def test_what_is_no_error_is_refused(record: dict[str, Any]) -> None:
    try:
        error = error_from("SegmentNotFoundError", record)
    except ValueError:
        return
    assert str(error) == record["text"]
