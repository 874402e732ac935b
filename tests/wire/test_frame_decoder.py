"""Bytes of a connection to commands: whatever the cuts, and whatever the bytes."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.wire.codec import HEADER, encode
from segmentstore.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    Command,
    Hello,
    KeepAlive,
    Padding,
    PartialEvent,
    SegmentRead,
    SegmentSealed,
    SetupAppend,
)
from segmentstore.wire.errors import WireError
from segmentstore.wire.fields import FRAME_BYTES_MAX
from segmentstore.wire.formats import ALL, REPLIES, REQUESTS
from segmentstore.wire.frame_decoder import FrameDecoder
from segmentstore.wire.layouts import Layout
from tests.wire.frames import commands, same

WRITER = bytes(range(16))
MIB = 1 << 20


def outcome(decoder: FrameDecoder, received: Iterable[bytes]) -> tuple[list[Command], bool]:
    """What came, and whether it ended in the error."""
    seen: list[Command] = []
    try:
        for data in received:
            seen.extend(decoder.feed(data))
    except WireError:
        return seen, True
    return seen, False


def cut(stream: bytes, places: Iterable[int]) -> list[bytes]:
    borders = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[begin:end] for begin, end in itertools.pairwise(borders)]


def all_same(left: list[Command], right: list[Command]) -> bool:
    return len(left) == len(right) and all(map(same, left, right))


places = st.lists(st.integers(0, 10_000), max_size=8)
damages = st.lists(
    st.tuples(st.sampled_from(["set", "remove", "insert"]), st.integers(0), st.binary(max_size=4)),
    min_size=1,
    max_size=4,
)


def damaged(stream: bytes, changes: Iterable[tuple[str, int, bytes]]) -> bytes:
    result = bytearray(stream)
    for kind, number, content in changes:
        at = number % (len(result) + 1)
        end = at if kind == "insert" else at + len(content)
        result[at:end] = b"" if kind == "remove" else content
    return bytes(result)


@given(st.lists(commands, max_size=5), places)
def test_cuts_change_nothing(sent: list[Command], at: list[int]) -> None:
    stream = b"".join(map(encode, sent))
    for received in ([stream], cut(stream, at), [stream[n : n + 1] for n in range(len(stream))]):
        seen, failed = outcome(FrameDecoder(ALL), received)
        assert not failed
        assert all_same(seen, sent)


@given(st.lists(commands, min_size=1, max_size=4), damages, places)
def test_damaged_bytes_are_commands_or_the_one_error_whatever_the_cuts(
    sent: list[Command], changes: list[tuple[str, int, bytes]], at: list[int]
) -> None:
    stream = damaged(b"".join(map(encode, sent)), changes)
    whole, failed = outcome(FrameDecoder(ALL), [stream])
    for received in (cut(stream, at), [stream[n : n + 1] for n in range(len(stream))]):
        seen, failed_as_well = outcome(FrameDecoder(ALL), received)
        assert all_same(seen, whole)
        assert failed_as_well == failed


@given(st.binary(max_size=100), st.lists(st.sampled_from(list(ALL)), max_size=3))
def test_random_bytes_are_commands_or_the_one_error(rest: bytes, types: list[int]) -> None:
    stream = b"".join(HEADER.pack(type_id, 12) + rest[:12].ljust(12) for type_id in types) + rest
    seen, _ = outcome(FrameDecoder(ALL), [stream])
    assert len(seen) <= len(stream) // HEADER.size


def test_commands_before_a_malformed_frame_are_given_first() -> None:
    decoder = FrameDecoder(REQUESTS)
    commands = decoder.feed(encode(KeepAlive()) + HEADER.pack(999, 0))
    assert next(commands) == KeepAlive()
    with pytest.raises(WireError, match="999"):
        next(commands)


def test_behind_a_malformed_frame_nothing_is_read() -> None:
    decoder = FrameDecoder(REQUESTS)
    assert outcome(decoder, [HEADER.pack(999, 0)]) == ([], True)
    assert outcome(decoder, [encode(KeepAlive())]) == ([], True)


@pytest.mark.parametrize("length", [-1, -(2**31), FRAME_BYTES_MAX - 7, 2**31 - 1])
def test_a_length_out_of_bounds_is_refused_by_the_header_alone(length: int) -> None:
    header = HEADER.pack(1, length)
    for received in ([header], [header[:7], header[7:]]):
        assert outcome(FrameDecoder(REQUESTS), received) == ([], True)
    assert outcome(FrameDecoder(REQUESTS), [header[:7]]) == ([], False)


def test_the_longest_frame_is_taken() -> None:
    block = AppendBlock(WRITER, bytes(FRAME_BYTES_MAX - 24))
    frame = encode(block)
    assert len(frame) == FRAME_BYTES_MAX
    received = [frame[begin : begin + MIB] for begin in range(0, len(frame), MIB)]
    seen, failed = outcome(FrameDecoder(REQUESTS), received)
    assert all_same(seen, [block])
    assert not failed


def test_a_smaller_bound() -> None:
    hello = encode(Hello(16, 5))
    assert outcome(FrameDecoder(REQUESTS, len(hello)), [hello]) == ([Hello(16, 5)], False)
    assert outcome(FrameDecoder(REQUESTS, len(hello) - 1), [hello]) == ([], True)


def test_each_direction_takes_its_own_commands() -> None:
    request, reply = SetupAppend(1, WRITER, "s", ""), SegmentSealed(1, "s")
    assert outcome(FrameDecoder(REQUESTS), [encode(request)]) == ([request], False)
    assert outcome(FrameDecoder(REPLIES), [encode(reply)]) == ([reply], False)
    assert outcome(FrameDecoder(REQUESTS), [encode(reply)]) == ([], True)
    assert outcome(FrameDecoder(REPLIES), [encode(request)]) == ([], True)


@pytest.mark.parametrize("accepted", [REQUESTS, REPLIES])
def test_what_stands_in_blocks_alone_is_refused_elsewhere(accepted: Mapping[int, Layout]) -> None:
    assert outcome(FrameDecoder(accepted), [encode(PartialEvent(b"x"))]) == ([], True)
    assert outcome(FrameDecoder(accepted), [HEADER.pack(0, 1) + b"x"]) == ([], True)
    assert outcome(FrameDecoder(accepted), [encode(Padding(3))]) == ([Padding(3)], False)


def test_data_keep_no_memory_but_that_of_their_own_frame() -> None:
    """However much was received with it, and however it was cut."""
    end = AppendBlockEnd(WRITER, 0, b"abc", 1, 1)
    frame = encode(end)
    stream = encode(Padding(100_000)) + frame + encode(Padding(100_000))
    for received in ([stream], cut(stream, [100_018, 100_030])):
        (_, command, _), _ = outcome(FrameDecoder(REQUESTS), received)
        assert isinstance(command, AppendBlockEnd)
        assert isinstance(command.data, memoryview)
        assert command.data.readonly
        assert bytes(command.data) == b"abc"
        owner = command.data.obj
        assert isinstance(owner, bytes | bytearray)
        assert len(owner) <= len(frame)


def test_memory_is_what_came_and_not_what_was_announced() -> None:
    decoder = FrameDecoder(REPLIES)
    head = encode(SegmentRead("s", 0, False, False, bytes(10 * MIB)))[:100]
    tracemalloc.start()
    try:
        assert outcome(decoder, [head]) == ([], False)
        assert tracemalloc.get_traced_memory()[1] < 100_000
        for _ in range(20_000):
            assert list(decoder.feed(b"abc")) == []
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_a_frame_in_many_reads_is_put_together_in_place() -> None:
    """A frame that were copied at each read would cost its square."""
    decoder = FrameDecoder(REPLIES)
    frame = encode(SegmentRead("s", 0, False, False, bytes(MIB)))
    list(decoder.feed(frame[:100]))
    begun = decoder._begun
    for begin in range(100, len(frame) - 1000, 1000):
        assert list(decoder.feed(frame[begin : begin + 1000])) == []
        assert decoder._begun is begun
