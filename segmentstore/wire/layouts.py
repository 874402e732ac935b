"""Rows of fields: how a command, or an item of one, is read and written."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, Protocol

from segmentstore.contracts.checksum import Buffer
from segmentstore.wire.errors import WireError
from segmentstore.wire.fields import DATA, UUID, Field, Scalar, end_of

_UUID_BYTES: Final = 16


class Layout(Field):
    """The fields of a named tuple, in its order.

    Fields that may be missing are at the end. A missing one has the default of its class, and with
    it are missing all that follow. What is behind the last field is skipped.

    Appends are many, and each call costs in Python. So scalars side by side are one step, and with
    them the DATA behind: DataAppended has one step, AppendBlockEnd two. That halves its time.
    """

    def __init__(self, kind: Any, *fields: Field, optional: Sequence[Field] = ()) -> None:
        assert len(fields) + len(optional) == len(kind._fields), kind
        assert len(optional) <= len(kind._field_defaults), kind
        self.kind: Final[Any] = kind
        self.size_min = sum(each.size_min for each in fields)
        self.needed = len(fields)
        self.fields = (*fields, *optional)
        self._steps = _steps(self.fields)
        self._defaults = tuple(kind._field_defaults.values())

    def read(self, payload: Buffer, at: int) -> tuple[Any, int]:
        values: list[Any] = []
        end = at
        try:
            for step in self._steps:
                end = step.read(payload, end, values)
        except struct.error:
            if self.needed == len(self.fields):
                raise
            return self._read_short(payload, at)
        # The class itself takes twice as long.
        return tuple.__new__(self.kind, values), end

    def write(self, value: Any, parts: list[Buffer]) -> None:
        for step in self._steps:
            step.write(value, parts)

    def _read_short(self, payload: Buffer, at: int) -> tuple[Any, int]:
        """As `read`, of a payload that has not all fields."""
        values: list[Any] = []
        for number, field in enumerate(self.fields):
            if number >= self.needed and len(payload) - at < field.size_min:
                values += self._defaults[number - len(self.fields) :]
                break
            value, at = field.read(payload, at)
            values.append(value)
        return tuple.__new__(self.kind, values), at


class _Step(Protocol):
    """A field of a layout, or several that are handled as one."""

    def read(self, payload: Buffer, at: int, values: list[Any]) -> int:
        """Add the values; the place behind them."""

    def write(self, values: tuple[Any, ...], parts: list[Buffer]) -> None:
        """Append the bytes to the parts of a frame. `values` are those of the whole layout."""


class _ScalarStep:
    """Scalars side by side, of which the first is the value at `place`."""

    def __init__(self, scalars: Sequence[Scalar], place: int, behind: str = "") -> None:
        row = struct.Struct(">" + "".join(each.letter for each in scalars) + behind)
        self._pack, self._unpack, self._size = row.pack, row.unpack_from, row.size
        self._places = slice(place, place + len(scalars))
        self._ids = [place + number for number, each in enumerate(scalars) if each is UUID]

    def read(self, payload: Buffer, at: int, values: list[Any]) -> int:
        values += self._unpack(payload, at)
        return at + self._size

    def write(self, values: tuple[Any, ...], parts: list[Buffer]) -> None:
        parts.append(self._packed(values))

    def _packed(self, values: tuple[Any, ...], *behind: int) -> bytes:
        for place in self._ids:
            # `pack` would fill it up or cut it.
            if len(values[place]) != _UUID_BYTES:
                raise WireError(f"an id has {_UUID_BYTES} bytes, not {len(values[place])}")
        return self._pack(*values[self._places], *behind)


class _DataStep(_ScalarStep):
    """Scalars, and data behind them: its length is one scalar more."""

    def __init__(self, scalars: Sequence[Scalar], place: int) -> None:
        super().__init__(scalars, place, "i")
        self._data = place + len(scalars)

    def read(self, payload: Buffer, at: int, values: list[Any]) -> int:
        at = super().read(payload, at, values)
        end = end_of(payload, at, values[-1])
        values[-1] = memoryview(payload)[at:end]
        return end

    def write(self, values: tuple[Any, ...], parts: list[Buffer]) -> None:
        data = values[self._data]
        parts += (self._packed(values, len(data)), data)


class _FieldStep:
    """Any other field."""

    def __init__(self, field: Field, place: int) -> None:
        self._read, self._write, self._place = field.read, field.write, place

    def read(self, payload: Buffer, at: int, values: list[Any]) -> int:
        value, at = self._read(payload, at)
        values.append(value)
        return at

    def write(self, values: tuple[Any, ...], parts: list[Buffer]) -> None:
        self._write(values[self._place], parts)


def _steps(fields: Sequence[Field]) -> list[_Step]:
    steps: list[_Step] = []
    scalars: list[Scalar] = []
    for place, field in enumerate(fields):
        if isinstance(field, Scalar):
            scalars.append(field)
            continue
        first = place - len(scalars)
        if field is DATA:
            steps.append(_DataStep(scalars, first))
        else:
            if scalars:
                steps.append(_ScalarStep(scalars, first))
            steps.append(_FieldStep(field, place))
        scalars = []
    if scalars:
        steps.append(_ScalarStep(scalars, len(fields) - len(scalars)))
    return steps
