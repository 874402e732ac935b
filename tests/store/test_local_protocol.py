"""The codec of the local server: what goes in comes out, and whatever else comes in is refused by
name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.local_protocol import (
    FRAME_ROOM,
    LENGTH_BYTES,
    Answer,
    Append,
    Code,
    Create,
    Delete,
    Describe,
    Description,
    Done,
    Duplicate,
    EventNumber,
    HandshakeReply,
    HandshakeRequest,
    LastEvent,
    ListNames,
    LocalProtocolError,
    Merge,
    Names,
    Refused,
    Request,
    Stored,
    decode_answer,
    decode_request,
    encode,
    frame_length,
)

NUMBERS = st.integers(-(2**63), 2**63 - 1)
UNSIGNED = st.integers(0, 2**64 - 1)
NAMES = st.text(max_size=40).filter(
    lambda text: not any("\ud800" <= character <= "\udfff" for character in text)
)
WRITERS = st.binary(min_size=16, max_size=16)
REQUESTS: st.SearchStrategy[Request] = st.one_of(
    st.builds(HandshakeRequest, st.integers(0, 65535)),
    st.builds(LastEvent, NAMES, WRITERS),
    st.builds(Append, NAMES, WRITERS, NUMBERS, st.binary(max_size=100)),
    st.builds(Create, NAMES),
    st.builds(Describe, NAMES),
    st.builds(Merge, NAMES, NAMES, st.none() | WRITERS, NUMBERS),
    st.builds(Delete, NAMES),
    st.builds(ListNames, NAMES, NAMES),
)
ANSWERS: st.SearchStrategy[Answer] = st.one_of(
    st.builds(HandshakeReply, st.integers(0, 65535), NAMES, UNSIGNED),
    st.builds(EventNumber, NUMBERS),
    st.builds(Stored, NUMBERS),
    st.just(Duplicate()),
    st.just(Done()),
    st.builds(Description, UNSIGNED, UNSIGNED, UNSIGNED, st.booleans(), st.integers(0, 2**32 - 1)),
    st.builds(Names, st.lists(NAMES, max_size=5).map(tuple), st.booleans()),
    st.builds(Refused, st.integers(0, 65535), NAMES, NAMES),
)


def frame_of(request: int, message: Request | Answer) -> bytes:
    whole = b"".join(map(bytes, encode(request, message)))
    length = frame_length(whole[:LENGTH_BYTES], len(whole))
    assert length == len(whole) - LENGTH_BYTES
    return whole[LENGTH_BYTES:]


@given(st.integers(0, 2**32 - 1), REQUESTS)
def test_a_request_comes_back(number: int, message: Request) -> None:
    assert decode_request(frame_of(number, message)) == (number, message)


@given(st.integers(0, 2**32 - 1), ANSWERS)
def test_an_answer_comes_back(number: int, message: Answer) -> None:
    assert decode_answer(frame_of(number, message)) == (number, message)


def attempt(frame: bytes, decode: Callable[[bytes], tuple[int, object]]) -> object:
    """The message, or why it is none."""
    try:
        return decode(frame)[1]
    except LocalProtocolError as error:
        return error


@given(REQUESTS, st.data())
def test_a_request_cut_anywhere_is_refused_or_an_append_of_less(
    message: Request, data: st.DataObject
) -> None:
    frame = frame_of(7, message)
    decoded = attempt(frame[: data.draw(st.integers(0, len(frame) - 1))], decode_request)
    if isinstance(decoded, LocalProtocolError):
        assert decoded.code is Code.MALFORMED
        assert decoded.request in {0, 7}
    else:
        # Its data reaches to the end of the frame, whose length is said apart.
        assert isinstance(message, Append)
        assert isinstance(decoded, Append)
        assert bytes(message.data).startswith(bytes(decoded.data))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(frame: bytes) -> None:
    for decode in (decode_request, decode_answer):
        assert attempt(frame, decode) is not None


@given(
    st.one_of(REQUESTS.filter(lambda message: not isinstance(message, Append))),
    st.binary(min_size=1, max_size=9),
)
def test_what_a_newer_version_adds_behind_is_skipped(message: Request, more: bytes) -> None:
    assert decode_request(frame_of(1, message) + more) == (1, message)


def test_a_kind_nobody_knows_is_refused_with_its_number() -> None:
    with pytest.raises(LocalProtocolError, match="kind 99") as refused:
        decode_request(bytes([99]) + (12).to_bytes(4, "big"))
    assert (refused.value.code, refused.value.request) == (Code.REQUEST_UNKNOWN, 12)


@pytest.mark.parametrize(
    ("length", "code"), [(0, Code.MALFORMED), (4, Code.MALFORMED), (4097, Code.TOO_LARGE)]
)
def test_a_frame_of_a_length_that_cannot_be_is_refused(length: int, code: Code) -> None:
    with pytest.raises(LocalProtocolError) as refused:
        frame_length(length.to_bytes(4, "big"), FRAME_ROOM)
    assert refused.value.code is code


def test_a_handshake_of_something_else_is_refused() -> None:
    frame = bytearray(frame_of(0, HandshakeRequest()))
    frame[5:9] = b"HTTP"
    with pytest.raises(LocalProtocolError, match="HTTP"):
        decode_request(bytes(frame))


def test_long_words_of_a_refusal_are_cut_and_odd_ones_replaced() -> None:
    _, answer = decode_answer(frame_of(1, Refused(Code.FAILED, "E", "\ud800" + "é" * 10_000)))
    assert isinstance(answer, Refused)
    assert answer.message.startswith("?éé")
    assert len(answer.message) == 4000


def test_the_pages_example_is_what_is_said() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats" / "local-server.md").read_text()
    said = [
        bytes.fromhex(line[2:])
        for line in page.splitlines()
        if line.startswith(("> ", "< ")) and line[2:6] == "0000"
    ]
    messages: list[tuple[int, Request | Answer]] = [
        (0, HandshakeRequest()),
        (0, HandshakeReply(1, "6f1c", 8 << 20)),
        (1, Append("logs/a", bytes(range(16)), 7, b"hello")),
        (1, Stored(1234)),
    ]
    assert said == [b"".join(map(bytes, encode(number, message))) for number, message in messages]
