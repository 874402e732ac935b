"""Append blocks: however events are cut into them, the same bytes; and what ends the connection."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.checksum import Buffer
from segmentstore.wire.append_blocks import Append, AppendBlocks
from segmentstore.wire.codec import encode
from segmentstore.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    Command,
    ConditionalAppend,
    ConditionalBlockEnd,
    Hello,
    KeepAlive,
    Padding,
    PartialEvent,
    ReadSegment,
    SetupAppend,
)
from segmentstore.wire.errors import WireError
from segmentstore.wire.formats import REQUESTS
from segmentstore.wire.frame_decoder import FrameDecoder

WRITER = bytes(range(16))
OTHER = bytes(range(1, 17))
RID = 7


def put_together(commands: Iterable[Command]) -> list[Command | Append]:
    blocks = AppendBlocks()
    accepted = [blocks.accept(command) for command in commands]
    return [each for each in accepted if each is not None]


def block(*content: bytes | Command, writer: bytes = WRITER) -> AppendBlock:
    parts = [part if isinstance(part, bytes) else encode(part) for part in content]
    return AppendBlock(writer, b"".join(parts))


def end(whole: int, data: Buffer = b"", count: int = 1, writer: bytes = WRITER) -> AppendBlockEnd:
    return AppendBlockEnd(writer, whole, data, count, 5, RID)


def joined(append: Command | Append | None) -> bytes:
    assert isinstance(append, Append)
    assert all(len(part) for part in append.data)
    return b"".join(append.data)


@pytest.mark.parametrize(
    ("commands", "stored"),
    [
        ([end(3, b"abc")], b"abc"),
        ([end(0, b"abc")], b"abc"),  # without a block nothing is said by the number
        ([end(0, b"")], b""),
        ([block(b"abc"), end(3)], b"abc"),
        ([block(), end(0)], b""),
        ([block(b"abc", Padding(0)), end(3)], b"abc"),
        ([block(b"abc", Padding(90)), end(3)], b"abc"),
        ([block(Padding(90)), end(0)], b""),
        ([block(b"abc", PartialEvent(b"de")), end(3, b"fg")], b"abcdefg"),
        ([block(b"abc", PartialEvent(b"de")), end(3)], b"abcde"),
        ([block(b"abc", PartialEvent(b"")), end(3, b"fg")], b"abcfg"),
        ([block(PartialEvent(b"de")), end(0, b"fg")], b"defg"),
    ],
)
def test_an_append_is_whole_events(commands: Sequence[Command], stored: bytes) -> None:
    (append,) = put_together(commands)
    assert joined(append) == stored
    assert append[2:] == (1, 5, RID)


def test_blocks_are_apart() -> None:
    appends = put_together(
        [block(b"a"), end(1), block(b"b", writer=OTHER), end(1, writer=OTHER), end(0, b"c", 3)]
    )
    assert [(each[0], joined(each), each[2]) for each in appends if isinstance(each, Append)] == [
        (WRITER, b"a", 1),
        (OTHER, b"b", 1),
        (WRITER, b"c", 3),
    ]


def test_other_commands_pass_and_padding_does_not() -> None:
    passed: list[Command] = [
        Hello(16, 5),
        SetupAppend(RID, WRITER, "s", ""),
        KeepAlive(),
        ReadSegment("s", 0, 1, "", RID),
        ConditionalAppend(WRITER, 1, 0, bytes(8)),
        ConditionalBlockEnd(WRITER, 1, 0, b"", RID),
    ]
    assert put_together([Padding(3), *passed, Padding(0)]) == passed


def test_nothing_is_copied() -> None:
    frame = bytes(100) + encode(PartialEvent(bytes(20)))
    blocks = AppendBlocks()
    assert blocks.accept(AppendBlock(WRITER, frame)) is None
    append = blocks.accept(end(100, left := bytes(30)))
    assert isinstance(append, Append)
    first, second, third = append.data
    assert isinstance(first, memoryview)
    assert isinstance(second, memoryview)
    assert first.obj is frame
    assert second.obj is frame
    assert third is left


WHOLE = bytes(20)


@pytest.mark.parametrize(
    "commands",
    [
        [block(), block()],
        [block(), KeepAlive()],
        [block(), Padding(0)],
        [block(), Hello(16, 5)],
        [block(), SetupAppend(RID, WRITER, "s", "")],
        [block(), ConditionalAppend(WRITER, 1, 0, bytes(8))],
        [block(), ConditionalBlockEnd(WRITER, 1, 0, b"", RID)],
        [block(WHOLE), end(20, writer=OTHER)],
        [block(WHOLE), end(-1)],
        [block(WHOLE), end(21)],
        [block(WHOLE), end(20, b"x")],
        [block(WHOLE), end(20, count=0)],
        [end(0, b"x", 0)],
        [end(0, b"x", -1)],
        # Behind the whole events must be one frame, and of these two.
        [block(WHOLE, b"1234567"), end(20)],
        [block(WHOLE, Padding(0), Padding(0)), end(20)],
        [block(WHOLE, Padding(3), b"x"), end(20)],
        [block(WHOLE, encode(Padding(3))[:-1]), end(20)],
        [block(WHOLE, PartialEvent(b"abc"), b"x"), end(20)],
        [block(WHOLE, KeepAlive()), end(20)],
        [block(WHOLE, b"\0\0\0\0\0\0\0\x01x"), end(20)],
        [block(WHOLE, b"\0\0\x11\x11\0\0\0\x01x"), end(20)],
        [block(WHOLE, b"\xff\xff\xff\xff\xff\xff\xff\xff"), end(20)],
        [block(WHOLE, Padding(5)), end(20, b"x")],
    ],
)
def test_what_ends_the_connection(commands: Sequence[Command]) -> None:
    *before, last = commands
    blocks = AppendBlocks()
    assert [blocks.accept(command) for command in before] == [None] * len(before)
    with pytest.raises(WireError):
        blocks.accept(last)


def cut(data: st.DataObject, sent: Sequence[bytes], last: int) -> Iterator[Command]:
    """Events as a client may send them at once, in one of the forms; `last` is their number."""
    whole, count = b"".join(sent), len(sent)
    match data.draw(st.integers(0, 3)):
        case 0:
            yield AppendBlockEnd(WRITER, len(whole), whole, count, last, RID)
        case 1:
            yield AppendBlock(WRITER, whole)
            yield AppendBlockEnd(WRITER, len(whole), b"", count, last, RID)
        case 2:
            yield block(whole, Padding(data.draw(st.integers(0, 30))))
            yield AppendBlockEnd(WRITER, len(whole), b"", count, last, RID)
        case _:
            before = len(whole) - len(sent[-1])
            inside = data.draw(st.integers(before, len(whole)))
            yield block(whole[:before], PartialEvent(whole[before:inside]))
            yield AppendBlockEnd(WRITER, before, whole[inside:], count, last, RID)


batches = st.lists(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=5), max_size=5)


@given(batches, st.data(), st.integers(1, 50))
def test_any_form_of_the_blocks_gives_the_events(
    sent: list[list[bytes]], data: st.DataObject, read_bytes: int
) -> None:
    ends = list(itertools.accumulate(map(len, sent)))
    stream = b"".join(
        encode(command)
        for events, last in zip(sent, ends, strict=True)
        for command in cut(data, events, last)
    )
    decoder, blocks = FrameDecoder(REQUESTS), AppendBlocks()
    accepted = [
        blocks.accept(command)
        for begin in range(0, len(stream), read_bytes)
        for command in decoder.feed(stream[begin : begin + read_bytes])
    ]
    appends = [each for each in accepted if isinstance(each, Append)]
    assert [joined(append) for append in appends] == [b"".join(events) for events in sent]
    assert [append.event_count for append in appends] == [len(events) for events in sent]
    assert [append.last_event_number for append in appends] == ends
