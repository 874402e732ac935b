"""Cutting bytes into rows: any cutting into ranges and pieces gives the same rows, each once, by
where it begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.events import frame_events
from tier2.spark.source.framing import (
    EventFramer,
    Framer,
    FramingError,
    LineFramer,
    RawFramer,
    Rows,
    raw_offsets,
)

Row = tuple[int, bytes]
TEXT = st.lists(
    st.sampled_from([b"\n", b"a", b"bc", b"\r\n", b"\0", b"longer line"]), max_size=30
).map(b"".join)
EVENTS = st.lists(
    st.one_of(st.binary(max_size=5), st.binary(min_size=20, max_size=30)), max_size=12
)
BASE = 1000
"""The segment's first byte that is there."""


def unpacked(rows: Rows | None) -> Iterator[Row]:
    if rows is None:
        return
    assert rows.data is not None
    assert rows.bounds[0] == 0
    assert rows.bounds[-1] == len(rows.data)
    assert list(rows.lengths) == [
        after - before for before, after in zip(rows.bounds, rows.bounds[1:], strict=False)
    ]
    for offset, begin, end in zip(rows.offsets, rows.bounds, rows.bounds[1:], strict=False):
        yield int(offset), bytes(memoryview(rows.data)[begin:end])


def rows_of(
    framer: Framer, data: bytes, first: int, pieces: list[int], *, complete: bool = True
) -> list[Row]:
    """What a framer gives of `data`, whose first byte lies at `first`, in pieces of these lengths,
    the last again and again.
    """
    found: list[Row] = []
    position = framer.position
    sizes = iter(pieces)
    size = 1
    while not framer.done() and position < first + len(data):
        size = next(sizes, size)
        piece = data[position - first : position - first + size]
        found += unpacked(framer.feed(memoryview(piece) if size % 2 else piece))
        position += len(piece)
        assert framer.done() or framer.position == position
    found += unpacked(framer.finish(complete=complete))
    return found


def lines_of(data: bytes, *, complete: bool = True) -> list[Row]:
    rows: list[Row] = []
    offset = BASE
    for line in data.split(b"\n"):
        rows.append((offset, line))
        offset += len(line) + 1
    last = rows.pop()
    return [*rows, last] if last[1] and complete else rows


def events_of(events: list[bytes]) -> list[Row]:
    return [(BASE + len(frame_events(events[:index])), event) for index, event in enumerate(events)]


PIECES = st.lists(st.integers(1, 40), min_size=1, max_size=5)


@given(TEXT, st.lists(st.integers(0, 80), max_size=6), PIECES, st.booleans())
def test_lines_by_ranges_are_the_lines(
    data: bytes, cuts: list[int], pieces: list[int], complete: bool
) -> None:
    end = BASE + len(data)
    borders = [BASE, *sorted({BASE + cut for cut in cuts if 0 < cut < len(data)}), end]
    found: list[Row] = []
    for start, stop in itertools.pairwise(borders):
        framer = LineFramer(start, stop, record_bytes_max=1000, skip_first=start > BASE)
        found += rows_of(framer, data, BASE, pieces, complete=complete)
    assert found == lines_of(data, complete=complete)


@given(TEXT, st.integers(0, 60), st.integers(0, 60), PIECES)
def test_lines_from_the_middle_are_those_that_begin_there(
    data: bytes, low: int, high: int, pieces: list[int]
) -> None:
    start, stop = BASE + low, BASE + max(low, min(high, len(data)))
    framer = LineFramer(start, stop, record_bytes_max=1000, skip_first=low > 0)
    wanted = [row for row in lines_of(data) if start <= row[0] < stop]
    assert rows_of(framer, data, BASE, pieces) == wanted
    filtered = LineFramer(BASE, stop, rows_from=start, record_bytes_max=1000)
    assert rows_of(filtered, data, BASE, pieces) == wanted


@given(EVENTS, st.lists(st.integers(0, 12), max_size=4), PIECES)
def test_events_by_ranges_at_their_borders(
    events: list[bytes], cuts: list[int], pieces: list[int]
) -> None:
    data = frame_events(events)
    places = [offset for offset, _ in events_of(events)]
    borders = [
        BASE,
        *sorted({places[cut] for cut in cuts if 0 < cut < len(places)}),
        BASE + len(data),
    ]
    found: list[Row] = []
    for start, stop in itertools.pairwise(borders):
        framer = EventFramer(start, stop, record_bytes_max=1000, exact_end=True)
        found += rows_of(framer, data, BASE, pieces)
    assert found == events_of(events)


@given(EVENTS, st.integers(0, 200), st.integers(0, 200), PIECES)
def test_events_are_walked_from_the_border_and_filtered(
    events: list[bytes], low: int, high: int, pieces: list[int]
) -> None:
    framer = EventFramer(BASE, BASE + high, rows_from=BASE + low, record_bytes_max=1000)
    data = frame_events(events)
    wanted = [row for row in events_of(events) if BASE + low <= row[0] < BASE + high]
    assert rows_of(framer, data, BASE, pieces, complete=False) == wanted


@given(EVENTS.filter(bool), st.data(), PIECES)
def test_a_border_that_is_none_is_reported_by_who_reaches_over_it(
    events: list[bytes], data: st.DataObject, pieces: list[int]
) -> None:
    framed = frame_events(events)
    borders = {offset for offset, _ in events_of(events)} | {BASE + len(framed)}
    false = data.draw(
        st.sampled_from(
            [place for place in range(BASE, BASE + len(framed)) if place not in borders]
        )
    )
    with pytest.raises(FramingError) as caught:
        rows_of(
            EventFramer(BASE, false, record_bytes_max=1000, exact_end=True), framed, BASE, pieces
        )
    assert caught.value.offset == max(border for border in borders if border < false)


@given(st.binary(max_size=100), st.integers(1, 30), st.integers(0, 40), PIECES)
def test_raw_rows_are_cut_at_multiples(
    data: bytes, row_bytes: int, first: int, pieces: list[int]
) -> None:
    end = first + len(data)
    found = rows_of(RawFramer(first, end, row_bytes=row_bytes), data, first, pieces)
    assert b"".join(payload for _, payload in found) == data
    assert all(offset % row_bytes == 0 for offset, _ in found[1:])
    assert all(
        offset + len(payload) == after[0] for (offset, payload), after in itertools.pairwise(found)
    )
    assert all(
        offset // row_bytes == (offset + len(payload) - 1) // row_bytes for offset, payload in found
    )
    if data:
        assert raw_offsets(first, end, row_bytes).tolist() == [offset for offset, _ in found]
    for low in (first + 1, first + row_bytes):
        some = rows_of(
            RawFramer(first, end, row_bytes=row_bytes, rows_from=low), data, first, pieces
        )
        assert some == [row for row in found if row[0] >= low]


def test_without_their_bytes_rows_are_the_same() -> None:
    data = b"one\ntwo\n\nthree"
    for make in (
        lambda with_data: LineFramer(0, len(data), record_bytes_max=99, with_data=with_data),
        lambda with_data: RawFramer(0, len(data), row_bytes=4, with_data=with_data),
    ):
        with_data, without = make(True).feed(data), make(False).feed(data)
        assert with_data is not None
        assert without is not None
        assert without.data is None
        assert without.offsets.tolist() == with_data.offsets.tolist()
        assert without.lengths.tolist() == with_data.lengths.tolist()


@pytest.mark.parametrize("pieces", [[1], [5], [100]])
def test_a_row_that_is_too_long_is_named_by_its_place_in_any_pieces(pieces: list[int]) -> None:
    line = LineFramer(BASE, BASE + 99, record_bytes_max=4)
    with pytest.raises(FramingError, match="at offset 1005: a row of more than 4 bytes"):
        rows_of(line, b"four\nfives\n", BASE, pieces)
    event = EventFramer(BASE, BASE + 99, record_bytes_max=4)
    with pytest.raises(FramingError, match="at offset 1008: an event of 5 bytes, more than 4"):
        rows_of(event, frame_events([b"four", b"fives"]), BASE, pieces)
    wild = EventFramer(BASE, BASE + 99, record_bytes_max=4)
    with pytest.raises(FramingError, match="at offset 1000: an event of 4294967295 bytes"):
        rows_of(wild, b"\xff" * 9, BASE, pieces)


def test_a_sealed_segment_that_ends_inside_of_an_event() -> None:
    def make() -> Framer:
        return EventFramer(BASE, BASE + 99, record_bytes_max=99)

    data = frame_events([b"whole", b"cut"])[:-1]
    assert rows_of(make(), data, BASE, [3], complete=False) == [(BASE, b"whole")]
    with pytest.raises(
        FramingError, match="at offset 1009: the segment ends 6 bytes into an event"
    ):
        rows_of(make(), data, BASE, [3], complete=True)


@pytest.mark.parametrize("lost_to", [BASE + 6, BASE + 50])
def test_after_a_loss_it_goes_on_where_bytes_are_again(lost_to: int) -> None:
    for framer, rest, wanted in (
        (
            LineFramer(BASE, BASE + 20, record_bytes_max=99, skip_first=True),
            b"b\nc\n",
            [b"b", b"c"],
        ),
        (EventFramer(BASE, BASE + 20, record_bytes_max=99), frame_events([b"b"]), [b"b"]),
    ):
        assert framer.feed(b"\0\0\0") is None
        framer.jump(lost_to)
        over = lost_to >= BASE + 20
        assert framer.done() == over
        assert [payload for _, payload in unpacked(framer.feed(rest))] == ([] if over else wanted)
