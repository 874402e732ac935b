"""An error as plain values, and an error of the same class and text from them.

For errors that reach a program in another process than the one that raised them. A class that the
other side does not know becomes the nearest above it that is in `errors.py`; what is none of the
engine's own becomes SegmentStoreError.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

from segmentstore.contracts import errors
from segmentstore.contracts.errors import SegmentStoreError, describe

_CLASSES: Final[Mapping[str, type[SegmentStoreError]]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, SegmentStoreError)
}
_DEPTH_MAX: Final = 4
"""Of causes."""


def error_record(error: BaseException, depth: int = 0) -> tuple[str, dict[str, Any]]:
    """The name of a class, and the text and attributes as JSON has them.

    An attribute that JSON has no value for is as `repr` has it.
    """
    if not isinstance(error, SegmentStoreError):
        return SegmentStoreError.__name__, {"text": describe(error), "values": {}}
    kind = next(kind for kind in type(error).__mro__ if _CLASSES.get(kind.__name__) is kind)
    values = {name: _plain(value, depth) for name, value in vars(error).items() if name[0] != "_"}
    return kind.__name__, {"text": str(error), "values": values}


def error_from(name: str, record: Mapping[str, Any]) -> SegmentStoreError:
    """The error that a record describes.

    Raises ValueError if it is none.
    """
    match record:
        case {"text": str(text), "values": Mapping() as values}:
            pass
        case _:
            raise ValueError("an error has a text, and values by name")
    kind = _CLASSES.get(name, SegmentStoreError)
    # Its own `__init__` makes the text, which is there already.
    error = kind.__new__(kind)
    SegmentStoreError.__init__(error, text)
    for attribute, value in values.items():
        setattr(error, attribute, _value(value))
    return error


def _plain(value: object, depth: int) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, uuid.UUID):
        return {"uuid": value.hex}
    if isinstance(value, tuple):
        return [_plain(each, depth) for each in value]
    if isinstance(value, BaseException) and depth < _DEPTH_MAX:
        name, record = error_record(value, depth + 1)
        return {"error": name, **record}
    return repr(value)


def _value(plain: object) -> object:
    if isinstance(plain, list):
        return tuple(map(_value, plain))
    if isinstance(plain, Mapping):
        if isinstance(number := plain.get("uuid"), str):
            return uuid.UUID(hex=number)
        return error_from(str(plain.get("error")), plain)
    return plain
