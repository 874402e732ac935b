"""Random commands, and frames that hold one."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st

from segmentstore.wire.codec import HEADER, decode
from segmentstore.wire.commands import Command, TableKey
from segmentstore.wire.fields import (
    COPIED,
    DATA,
    ENTRY,
    EVENT,
    EXTENSION,
    KEY,
    REST,
    TEXT,
    UUID,
    ZEROS,
    Field,
    ListOf,
    Scalar,
)
from segmentstore.wire.formats import ALL
from segmentstore.wire.layouts import Layout

NUMBERS = {"b": 7, "i": 31, "q": 63}
"""Bits of a number behind its sign."""
keys = st.builds(
    TableKey, st.binary(min_size=1, max_size=5), st.integers(-(2**63), 2**63 - 1)
) | st.just(TableKey(b"", -(2**63)))
data = st.binary(max_size=20)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
simple: dict[Field, st.SearchStrategy[Any]] = {
    UUID: st.binary(min_size=16, max_size=16),
    TEXT: texts,
    DATA: data,
    REST: data,
    COPIED: st.binary(max_size=5),
    ZEROS: st.integers(0, 30),
    EVENT: data.map(lambda event: HEADER.pack(0, len(event)) + event),
    KEY: keys,
    EXTENSION: st.integers(0, 2**31 - 1),
    ENTRY: st.tuples(keys, st.binary(max_size=5)),
}


@functools.cache
def values(field: Field) -> st.SearchStrategy[Any]:
    """What a field may hold; of a layout, its commands."""
    if isinstance(field, Layout):
        return st.tuples(*map(values, field.fields)).map(field.kind._make)
    if isinstance(field, ListOf):
        return st.lists(values(field.item), max_size=4).map(tuple)
    if field in simple:
        return simple[field]
    assert isinstance(field, Scalar)
    if field.letter == "?":
        return st.booleans()
    bound = 2 ** NUMBERS[field.letter]
    return st.sampled_from([-bound, -1, 0, 1, bound - 1]) | st.integers(-bound, bound - 1)


commands: st.SearchStrategy[Command] = st.sampled_from(list(ALL.values())).flatmap(values)


def decode_frame(frame: bytes) -> Command:
    """The command of exactly one frame."""
    type_id, length = HEADER.unpack_from(frame)
    assert length == len(frame) - HEADER.size
    return decode(type_id, frame[HEADER.size :])


def same(left: Any, right: Any) -> bool:
    """Two commands of one kind; tuples of several are equal."""
    return type(left) is type(right) and bool(left == right)
