"""Commands of our own: round trips, golden frames, and how a Hello announces them."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.store_hosts import StoreHost
from segmentstore.wire import store_commands
from segmentstore.wire.codec import HEADER, decode, encode, encode_parts
from segmentstore.wire.commands import Command, ConditionalAttributeUpdate, Hello, KeepAlive
from segmentstore.wire.errors import WireError
from segmentstore.wire.fields import FRAME_BYTES_MAX
from segmentstore.wire.formats import ALL, REQUESTS
from segmentstore.wire.frame_decoder import FrameDecoder
from segmentstore.wire.store_commands import (
    AppendBytes,
    AppendEvents,
    AttributeEntry,
    AttributesGiven,
    BeginListing,
    BytesGiven,
    CancelRead,
    ChangeSegment,
    CloseListing,
    CloseWriter,
    ConnectionClosing,
    ContinueListing,
    DescribeHosts,
    DescribeSegment,
    DescribeStore,
    EventToAppend,
    HostsDescribed,
    ListAttributes,
    ListSegments,
    MakeSegment,
    ManageStore,
    MergeSegment,
    MergeSegmentList,
    NumbersGiven,
    OpenWriter,
    ReadAttributes,
    ReadBytes,
    RequestRefused,
    RowsGiven,
    SegmentEntry,
    SegmentsGiven,
    StoreDescribed,
    UpdateAttributes,
)
from segmentstore.wire.store_formats import STORE_COMMANDS, STORE_REPLIES, STORE_REQUESTS
from tests.wire.frames import decode_frame, same, values

WRITER = bytes.fromhex("112233445566778899aabbccddeeff00")
UPDATES = (ConditionalAttributeUpdate(WRITER, 4, 2, 1),)
FRAMES = {
    name: bytes.fromhex(frame)
    for name, frame in map(
        str.split, Path(__file__).with_name("store_golden.txt").read_text("ascii").splitlines()
    )
}
COMMANDS: dict[str, Command] = {
    "Hello": Hello(16, 5, 1),
    "DescribeStore": DescribeStore(1),
    "AppendBytes": AppendBytes(7, 100, "logs/a", UPDATES, b"hello"),
    "OpenWriter": OpenWriter(2, "logs/a", WRITER),
    "AppendEvents": AppendEvents(7, 2, (EventToAppend(7, b"hello"), EventToAppend(8, b""))),
    "CloseWriter": CloseWriter(2),
    "ReadBytes": ReadBytes(7, -1, 9, 1024, 60_000, "logs/a"),
    "CancelRead": CancelRead(7),
    "DescribeSegment": DescribeSegment(7, "logs/a"),
    "ListSegments": ListSegments(7, "logs/", "logs/a"),
    "MakeSegment": MakeSegment(7, "logs/a", UPDATES),
    "ChangeSegment": ChangeSegment(7, 2, 9, "logs/a"),
    "MergeSegment": MergeSegment(7, "t", "s", UPDATES),
    "MergeSegmentList": MergeSegmentList(7, "t", ("a", "b")),
    "UpdateAttributes": UpdateAttributes(7, "logs/a", UPDATES),
    "ReadAttributes": ReadAttributes(7, "logs/a", (WRITER,)),
    "ListAttributes": ListAttributes(7, 3, bytes(16), b"\xff" * 16, "logs/a"),
    "ManageStore": ManageStore(7, "stats"),
    "BeginListing": BeginListing(7, "blocks", "logs/a"),
    "ContinueListing": ContinueListing(8, 7),
    "CloseListing": CloseListing(7),
    "DescribeHosts": DescribeHosts(7),
    "StoreDescribed": StoreDescribed(1, "6f1c", 8 << 20, 4, (0, 1)),
    "NumbersGiven": NumbersGiven(7, (1234, -1)),
    "BytesGiven": BytesGiven(7, b"hello"),
    "SegmentsGiven": SegmentsGiven(
        7, True, (SegmentEntry("logs/a", 5, 1, 9, 4, 1000, 2000, 3, True, False),)
    ),
    "AttributesGiven": AttributesGiven(7, False, (AttributeEntry(WRITER, 5),)),
    "RequestRefused": RequestRefused(7, "SegmentSealedError", b'{"text": "x", "values": {}}'),
    "RowsGiven": RowsGiven(7, True, b'[["o", 5, "live", "logs/a", 0, 4, 5]]'),
    "HostsDescribed": HostsDescribed(
        7, "6f1c", 8 << 20, 4, 9, (StoreHost("h", 9090, (0, 2)), StoreHost("", 0, ()))
    ),
    "ConnectionClosing": ConnectionClosing(),
}

commands: st.SearchStrategy[Command] = st.sampled_from(list(STORE_COMMANDS.values())).flatmap(
    values
)


def test_every_class_of_a_command_has_a_type_id() -> None:
    defined = {
        node.name
        for node in ast.parse(inspect.getsource(store_commands)).body
        if isinstance(node, ast.ClassDef)
    }
    parts = {"EventToAppend", "SegmentEntry", "AttributeEntry"}
    assert {layout.kind.__name__ for layout in STORE_COMMANDS.values()} == defined - parts
    assert len(STORE_COMMANDS) == len({layout.kind for layout in STORE_COMMANDS.values()})


def test_the_types_are_none_of_pravegas() -> None:
    assert set(STORE_COMMANDS).isdisjoint(ALL)
    assert set(STORE_REQUESTS).isdisjoint(STORE_REPLIES)
    assert all(10_000 < type_id < 11_000 for type_id in STORE_COMMANDS)


def test_every_frame_has_its_command() -> None:
    assert list(FRAMES) == list(COMMANDS)
    assert len(FRAMES) == len(STORE_COMMANDS) + 1


@pytest.mark.parametrize("name", COMMANDS)
def test_a_golden_frame_is_read_and_written_as_it_is(name: str) -> None:
    command, frame = COMMANDS[name], FRAMES[name]
    assert encode(command) == frame
    assert same(decode_frame(frame), command)


@given(commands)
def test_every_command_comes_back_as_it_was(command: Command) -> None:
    frame = encode(command)
    assert same(decode_frame(frame), command)
    assert b"".join(encode_parts(command)) == frame


@given(commands.filter(bool), st.integers(0, 60))
def test_a_part_of_a_command_is_one_error(command: Command, kept: int) -> None:
    frame = encode(command)
    type_id, length = HEADER.unpack_from(frame)
    layout = STORE_COMMANDS[type_id]
    least = layout.size_min
    payload = frame[HEADER.size :][: min(kept, least - 1)]
    assert length >= least
    with pytest.raises(WireError):
        decode(type_id, payload)


@given(st.sampled_from(list(STORE_COMMANDS)), st.binary(max_size=80))
def test_any_bytes_are_a_command_or_the_one_error(type_id: int, payload: bytes) -> None:
    try:
        command = decode(type_id, payload)
    except WireError:
        return
    assert same(decode_frame(encode(command)), command)


def test_a_command_of_ours_may_be_longer_than_a_frame_of_pravegas() -> None:
    command = AppendBytes(1, -1, "s", (), bytes(FRAME_BYTES_MAX))
    assert same(decode_frame(encode(command)), command)


class TestHello:
    def test_is_pravegas_without_an_announcement(self) -> None:
        assert encode(Hello(16, 5)) == bytes.fromhex("ffffff81000000080000001000000005")

    @pytest.mark.parametrize(
        "behind", ["", "53535352", "0053535200000001", "00" * 8, "53535353" * 2]
    )
    def test_other_bytes_behind_it_announce_nothing(self, behind: str) -> None:
        payload = bytes.fromhex("0000001000000005" + behind)
        assert decode(-127, payload) == Hello(16, 5, 0)

    def test_a_later_version_may_say_more(self) -> None:
        payload = bytes.fromhex("0000001000000005535353520000000200000009")
        assert decode(-127, payload) == Hello(16, 5, 2)


class TestDecoder:
    def test_takes_our_commands_behind_the_hello_that_announced_them(self) -> None:
        decoder = FrameDecoder(REQUESTS)
        sent: list[Command] = [Hello(16, 5, 1), DescribeStore(1), KeepAlive()]
        taken = []
        for command in decoder.feed(b"".join(map(encode, sent))):
            if isinstance(command, Hello):
                decoder.accept({**REQUESTS, **STORE_REQUESTS}, FRAME_BYTES_MAX)
            taken.append(command)
        assert taken == sent

    def test_refuses_them_otherwise(self) -> None:
        decoder = FrameDecoder(REQUESTS)
        with pytest.raises(WireError, match="10001"):
            list(decoder.feed(encode(DescribeStore(1))))
