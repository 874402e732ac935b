"""Commands to frames and back: every command, short and long forms, and what is refused."""

from __future__ import annotations

import ast
import inspect
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.checksum import Buffer
from segmentstore.wire import (
    append_commands,
    failure_replies,
    segment_commands,
    table_commands,
)
from segmentstore.wire.codec import APART_BYTES_MIN, HEADER, decode, encode, encode_parts
from segmentstore.wire.commands import (
    NO_VERSION,
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    Command,
    ConditionalAppend,
    CreateSegment,
    CreateTableSegment,
    DataAppended,
    Hello,
    KeepAlive,
    MergeSegments,
    MergeSegmentsBatch,
    NoSuchSegment,
    Padding,
    PartialEvent,
    ReadSegment,
    ReadTable,
    ReadTableKeys,
    SegmentCreated,
    SegmentDeleted,
    SegmentRead,
    SetupAppend,
    TableEntriesUpdated,
    TableKey,
)
from segmentstore.wire.errors import WireError
from segmentstore.wire.fields import FRAME_BYTES_MAX, LIST_MAX, TEXT, Scalar
from segmentstore.wire.formats import ALL, REPLIES, REQUESTS
from segmentstore.wire.layouts import Layout
from tests.wire.frames import commands, decode_frame, same, values

WRITER = bytes(range(16))
ITEMS = {"ConditionalAttributeUpdate", "MergedSource", "StorageChunk", "TableKey"}
"""Classes that are parts of commands."""
SHORTENED = {
    type_id: layout for type_id, layout in ALL.items() if layout.needed < len(layout.fields)
}


def text(characters: str) -> bytes:
    return struct.pack(">H", len(characters)) + characters.encode()


def test_every_class_of_a_command_has_a_type_id() -> None:
    defined = {
        node.name
        for module in (append_commands, failure_replies, segment_commands, table_commands)
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ClassDef)
    }
    assert {layout.kind.__name__ for layout in ALL.values()} == defined - ITEMS
    assert len(ALL) == len({layout.kind for layout in ALL.values()})


def test_both_directions_have_only_what_begins_and_holds_a_connection() -> None:
    both = [layout.kind for type_id, layout in REQUESTS.items() if type_id in REPLIES]
    assert both == [Hello, KeepAlive, Padding]
    assert PartialEvent not in {layout.kind for layout in {**REQUESTS, **REPLIES}.values()}


@given(commands)
def test_every_command_comes_back_as_it_was(command: Command) -> None:
    frame = encode(command)
    assert same(decode_frame(frame), command)
    assert b"".join(encode_parts(command)) == frame


@given(st.sampled_from(list(SHORTENED.values())).flatmap(values), st.data())
def test_fields_missing_at_the_end_have_their_defaults(command: Any, data: st.DataObject) -> None:
    type_id, layout = next(each for each in SHORTENED.items() if each[1].kind is type(command))
    kept = data.draw(st.integers(layout.needed, len(layout.fields) - 1))
    parts: list[Buffer] = []
    for field, value in zip(layout.fields[:kept], command, strict=False):
        field.write(value, parts)
    first = layout.fields[kept]
    if isinstance(first, Scalar):
        # A part of a number is no number.
        parts.append(bytes(data.draw(st.integers(0, first.size_min - 1))))
    defaults = [type(command)._field_defaults[name] for name in command._fields[kept:]]
    wanted = type(command)(*command[:kept], *defaults)
    assert same(decode(type_id, b"".join(parts)), wanted)


@given(commands, st.binary(min_size=1, max_size=20))
def test_bytes_behind_the_last_field_are_skipped(command: Command, behind: bytes) -> None:
    if isinstance(command, AppendBlock | Padding | PartialEvent):
        return
    frame = encode(command)
    type_id, _ = HEADER.unpack_from(frame)
    assert same(decode(type_id, frame[HEADER.size :] + behind), command)


@pytest.mark.parametrize(
    ("type_id", "payload", "command"),
    [
        # What Pravega's Rust client leaves away.
        (20, bytes(8) + text("s") + bytes(5) + text(""), CreateSegment(0, "s", 0, 0, "", 0)),
        (70, bytes(8) + text("s") + text(""), CreateTableSegment(0, "s", "", False, 0, 0)),
        (58, bytes(8) + text("t") + text("s") + text(""), MergeSegments(0, "t", "s", "", ())),
        (
            83,
            bytes(8) + text("s") + text("") + bytes(3) + b"\x0a" + bytes(3) + b"\x01c",
            ReadTableKeys(0, "s", "", 10, b"c"),
        ),
        # What older releases of the Java client leave away.
        (
            4,
            WRITER + bytes(8) + bytes(3) + b"\x01" + bytes(8),
            AppendBlockEnd(WRITER, 0, b"", 1, 0),
        ),
        (7, WRITER + bytes(8), DataAppended(WRITER, 0, -1, -1, -1)),
        (9, text("s") + bytes(12) + text(""), ReadSegment("s", 0, 0, "", -1)),
        (53, bytes(8) + text("s"), NoSuchSegment(0, "s", "", -1)),
    ],
)
def test_short_forms_of_other_clients(type_id: int, payload: bytes, command: Command) -> None:
    assert same(decode(type_id, payload), command)


@pytest.mark.parametrize(
    ("type_id", "payload"),
    [
        (0, b""),  # an Event is no command
        (72, bytes(100)),  # a command that Pravega no longer has
        (1, b""),
        (1, bytes(24)),
        (1, bytes(24) + text("s") + b"\0"),
        (1, bytes(24) + b"\0\x05s"),
        (1, bytes(24) + b"\0\x01\xff" + text("")),
        (3, bytes(15)),
        (4, bytes(20) + b"\xff\xff\xff\xff" + bytes(12)),
        (4, bytes(20) + b"\0\0\0\x0d" + bytes(12)),
        (5, bytes(32) + b"\0\0\0\x01\0\0\0\0"),  # another command than an Event
        (5, bytes(32) + b"\0\0\0\0\0\0\0\x01"),
        (53, bytes(8) + text("s") + b"\0"),  # half a length of a stack
        (58, bytes(8) + text("t") + text("s") + text("") + b"\0"),
        (74, bytes(8) + text("s") + text("") + b"\0\0\0\x01" + bytes(4)),
        # A key, a value of another length than that of all of it.
        (78, bytes(8) + text("s") + text("") + b"\0\0\0\x01\0\0\0\x0e\0\0\0\x01k" + bytes(9)),
        (79, bytes(8) + text("s") + b"\0\0\0\x01\0\0\0\x0c" + bytes(4) + bytes(8)),
        (75, bytes(8) + b"\xff\xff\xff\xff"),
        (75, bytes(8) + b"\0\0\0\x02" + bytes(15)),
        (75, bytes(8) + struct.pack(">i", LIST_MAX + 1) + bytes(8 * LIST_MAX + 8)),
    ],
)
def test_a_malformed_command_is_one_error(type_id: int, payload: bytes) -> None:
    with pytest.raises(WireError):
        decode(type_id, payload)


@pytest.mark.parametrize(
    "command",
    [
        AppendSetup(0, "s", b"short", 0),
        AppendBlockEnd(WRITER + b"x", 0, b"", 0, 0),
        AppendBlockEnd(WRITER, 2**31, b"", 0, 0),
        DataAppended(WRITER, 2**63),
        SegmentCreated(0, "s" * 0x10000),
        SegmentCreated(0, "\0" * 0x8000),
        SegmentRead("s", 0, False, False, bytes(FRAME_BYTES_MAX - 32)),
        TableEntriesUpdated(0, (0,) * (LIST_MAX + 1)),
        MergeSegmentsBatch(0, "t", ("\ud800" * 0x5556,), ""),
        ReadTable(0, "s", "", (TableKey(b"", 5),)),
        ConditionalAppend(WRITER, 0, 0, b"an event without its header"),
        ConditionalAppend(WRITER, 0, 0, bytes(9)),
        ConditionalAppend(WRITER, 0, 0, bytes(7)),
        Padding(-1),
        Padding(FRAME_BYTES_MAX),
    ],
)
def test_what_has_no_place_in_a_frame_is_the_same_error(command: Command) -> None:
    with pytest.raises(WireError):
        encode(command)


def test_the_longest_frame() -> None:
    command = SegmentRead("s", 0, False, False, bytes(FRAME_BYTES_MAX - 33))
    frame = encode(command)
    assert len(frame) == FRAME_BYTES_MAX
    assert same(decode_frame(frame), command)


def test_the_longest_list() -> None:
    command = ReadTable(0, "s", "", (TableKey(b"", NO_VERSION),) * LIST_MAX)
    assert same(decode_frame(encode(command)), command)


@pytest.mark.parametrize(
    "command",
    [
        SegmentRead("s", 0, False, False, bytes(APART_BYTES_MIN), 1),
        AppendBlockEnd(WRITER, 0, memoryview(bytes(APART_BYTES_MIN)), 1, 1, 1),
        AppendBlock(WRITER, bytearray(APART_BYTES_MIN)),
        PartialEvent(bytes(APART_BYTES_MIN)),
    ],
)
def test_large_data_are_a_part_of_their_own(command: Any) -> None:
    parts = encode_parts(command)
    assert any(part is command.data for part in parts)
    assert len(parts) <= 3


def test_small_data_are_no_part_of_their_own() -> None:
    assert len(encode_parts(SegmentRead("s", 0, False, False, bytes(APART_BYTES_MIN - 1)))) == 1


def test_data_are_views_of_the_payload() -> None:
    payload = encode(AppendBlockEnd(WRITER, 3, b"abc", 1, 1))[HEADER.size :]
    command = decode(4, payload)
    assert isinstance(command, AppendBlockEnd)
    assert isinstance(command.data, memoryview)
    assert command.data.obj is payload


NAMES: Sequence[tuple[str, str]] = [
    ("", ""),
    ("scope/stream/0.#epoch.0", b"scope/stream/0.#epoch.0".hex()),
    ("\0", "c080"),
    ("a\0b", "61c08062"),
    ("\u00e9", "c3a9"),
    ("\u20ac", "e282ac"),
    ("\U0001f600", "eda0bdedb880"),
    ("\U0010ffff\U00010000", "edafbfedbfbfeda080edb080"),
    ("\ud800", "eda080"),
    ("\udfff!", "edbfbf21"),
]


@pytest.mark.parametrize(("name", "encoded"), NAMES)
def test_texts_are_written_as_java_does(name: str, encoded: str) -> None:
    parts: list[Buffer] = []
    TEXT.write(name, parts)
    assert b"".join(parts)[2:].hex() == encoded
    assert TEXT.read(b"".join(parts), 0) == (name, len(encoded) // 2 + 2)


@given(st.text(max_size=20))
def test_texts_in_plain_utf_8_are_read(name: str) -> None:
    encoded = name.encode("utf-8", "surrogatepass")
    # To Java the two halves of a character are the character.
    whole = name.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    assert TEXT.read(struct.pack(">H", len(encoded)) + encoded, 0)[0] == whole


@pytest.mark.parametrize(
    "encoded", ["c0", "c081", "e0c080", "80", "f4908080", "ff", "e282", "c1bf"]
)
def test_what_is_neither_is_refused(encoded: str) -> None:
    name = bytes.fromhex(encoded)
    with pytest.raises(WireError, match="SegmentDeleted"):
        decode(31, bytes(8) + struct.pack(">H", len(name)) + name)


def test_commands_of_different_kinds_are_equal_as_tuples() -> None:
    """So tests compare types as well."""
    created, deleted = SegmentCreated(1, "s"), SegmentDeleted(1, "s")
    assert created == tuple(deleted)
    assert not same(created, deleted)


@given(st.sampled_from(list(ALL.items())), st.binary(max_size=200))
def test_random_payloads_are_commands_or_the_one_error(
    item: tuple[int, Layout], payload: bytes
) -> None:
    type_id, layout = item
    try:
        command = decode(type_id, payload)
    except WireError:
        return
    assert type(command) is layout.kind
    # What was read has one form, and that form is read as the same.
    assert same(decode_frame(encode(command)), command)


def test_a_set_up_without_a_token_is_malformed() -> None:
    whole = encode(SetupAppend(1, WRITER, "s", ""))
    with pytest.raises(WireError, match="SetupAppend"):
        decode(1, whole[HEADER.size : -2])
