"""The framing of events: what is framed comes back, and what is none is named by its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import segmentstore
from segmentstore.contracts.events import EventFormatError, frame_event, frame_events, split_events


@given(st.lists(st.binary(max_size=40)))
def test_events_come_back_as_they_were(events: list[bytes]) -> None:
    assert split_events(frame_events(events)) == events
    assert b"".join(map(frame_event, events)) == frame_events(events)


@given(st.lists(st.binary(max_size=9), min_size=1), st.data())
def test_a_cut_event_is_named_by_where_it_begins(events: list[bytes], data: st.DataObject) -> None:
    framed = frame_events(events)
    borders = [len(frame_events(events[:count])) for count in range(len(events) + 1)]
    cut = data.draw(st.integers(0, len(framed)))
    if cut in borders:
        assert split_events(framed[:cut]) == events[: borders.index(cut)]
    else:
        with pytest.raises(EventFormatError) as caught:
            split_events(framed[:cut])
        assert caught.value.position == max(border for border in borders if border < cut)


def test_the_bytes_of_the_format_page() -> None:
    assert frame_events([b"hello", b"", "é".encode()]).hex(" ") == (
        "00 00 00 05 68 65 6c 6c 6f 00 00 00 00 00 00 00 02 c3 a9"
    )


def test_a_length_no_event_can_have() -> None:
    with pytest.raises(EventFormatError, match="no event at byte 4: a length of 2147483648"):
        split_events(frame_event(b"") + b"\x80\0\0\0" + bytes(9))


def test_the_framing_is_part_of_the_public_api() -> None:
    assert segmentstore.split_events(segmentstore.frame_events([b"a", b"b"])) == [b"a", b"b"]
    assert segmentstore.frame_event(b"a") == b"\0\0\0\1a"
