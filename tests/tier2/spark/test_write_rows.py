"""Rows become the bytes of segments: in their order, framed, and nothing that could not be read
back.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.contracts.errors import ConfigError, InvalidArgumentError, InvalidNameError
from segmentstore.contracts.events import split_events
from tier2.spark.sink.rows import RowLayout, pieces, row_layout

ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c/d", None]), st.binary(max_size=12)), max_size=60
)
PAYLOAD_TYPES = st.sampled_from([pa.binary(), pa.large_binary()])


def batches(rows: list[tuple[str | None, bytes]], kind: Any, cut: int) -> list[pa.RecordBatch]:
    """Slices of one batch, as offsets that do not begin at 0 need a check."""
    names = pa.array([name for name, _ in rows], pa.string())
    payloads = pa.array([payload for _, payload in rows], kind)
    whole = pa.record_batch([names, payloads], names=["segment", "payload"])
    return [whole.slice(0, cut), whole.slice(cut)]


@settings(deadline=None)
@given(ROWS, PAYLOAD_TYPES, st.integers(0, 60), st.sampled_from(["raw", "lines", "events"]))
def test_each_segment_gets_its_rows_in_their_order(
    rows: list[tuple[str | None, bytes]], kind: Any, cut: int, framing: str
) -> None:
    if framing == "lines":
        rows = [(name, payload.replace(b"\n", b"")) for name, payload in rows]
    layout = RowLayout("payload", has_segment_column=True, segment="other", framing=framing)
    got: dict[str, bytes] = defaultdict(bytes)
    for batch in batches(rows, kind, cut):
        for segment, data in pieces(layout, batch):
            got[segment] += data
    expected: dict[str, list[bytes]] = defaultdict(list)
    for name, payload in rows:
        expected[name or "other"].append(payload)
    assert got.keys() == expected.keys()
    for name, payloads in expected.items():
        if framing == "raw":
            assert got[name] == b"".join(payloads)
        elif framing == "lines":
            assert got[name] == b"".join(payload + b"\n" for payload in payloads)
        else:
            assert split_events(got[name]) == payloads


def test_text_is_written_as_utf8_to_the_segment_of_the_option() -> None:
    batch = pa.record_batch([pa.array(["é", "", "ü"])], names=["value"])
    layout = row_layout([("value", "string")], {"segment": "x", "format": "lines"})
    assert list(pieces(layout, batch)) == [("x", "é\n\nü\n".encode())]


def test_a_batch_without_rows_gives_nothing() -> None:
    layout = row_layout([("value", "string")], {"segment": "x"})
    assert list(pieces(layout, pa.record_batch([pa.array([], pa.string())], names=["value"]))) == []


@pytest.mark.parametrize(
    ("columns", "payloads", "options", "what"),
    [
        ({"payload": [b"a", None]}, None, {"segment": "x"}, "1 rows have none"),
        (
            {"payload": [b"a", b"b\nc"]},
            None,
            {"segment": "x", "format": "lines"},
            "a line holds no newline",
        ),
        ({"payload": [b"a"], "segment": [None]}, None, {}, "1 rows name none"),
    ],
)
def test_rows_that_cannot_be_written_are_refused(
    columns: dict[str, list[Any]], payloads: object, options: dict[str, str], what: str
) -> None:
    types = {"payload": pa.binary(), "segment": pa.string()}
    batch = pa.record_batch(
        [pa.array(values, types[name]) for name, values in columns.items()], names=list(columns)
    )
    spark = {"payload": "binary", "segment": "string"}
    layout = row_layout([(name, spark[name]) for name in columns], options)
    with pytest.raises(InvalidArgumentError, match=what):
        list(pieces(layout, batch))


def test_a_name_that_can_name_no_segment_is_refused() -> None:
    layout = row_layout([("payload", "binary"), ("segment", "string")], {})
    batch = pa.record_batch([pa.array([b"a"]), pa.array([""])], names=["payload", "segment"])
    with pytest.raises(InvalidNameError):
        list(pieces(layout, batch))


def test_a_name_that_is_no_utf8_is_named() -> None:
    """Spark's strings hold any bytes: `CAST(X'61FF' AS STRING)`."""
    names = pa.array([b"a", b"a\xff"]).view(pa.string())
    batch = pa.record_batch([names, pa.array([b"1", b"2"])], names=["segment", "payload"])
    layout = row_layout([("payload", "binary"), ("segment", "string")], {})
    with pytest.raises(InvalidNameError, match="UTF-8") as refused:
        list(pieces(layout, batch))
    assert refused.value.name == b"a\xff"


@pytest.mark.parametrize(
    ("columns", "options", "what"),
    [
        ([("other", "binary")], {"segment": "x"}, "exactly one of payload and value"),
        (
            [("payload", "binary"), ("value", "string")],
            {"segment": "x"},
            "exactly one of payload and value",
        ),
        (
            [("payload", "binary"), ("key", "string")],
            {"segment": "x"},
            r"\['key'\] would not be written",
        ),
        ([("payload", "integer")], {"segment": "x"}, "payload is of type integer"),
        ([("payload", "binary"), ("segment", "long")], {}, "segment is of type long"),
        ([("payload", "binary")], {}, "no option names the segment"),
        (
            [("payload", "binary")],
            {"segment": "x", "format": "csv"},
            "'csv' is not one of raw, lines, events",
        ),
    ],
)
def test_columns_and_options_that_do_not_fit_are_named(
    columns: list[tuple[str, str]], options: dict[str, str], what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        row_layout(columns, options)


def test_columns_that_reading_gives_are_passed_over() -> None:
    columns = [
        ("segment", "string"),
        ("offset", "long"),
        ("length", "integer"),
        ("payload", "binary"),
    ]
    assert row_layout(columns, {}) == RowLayout(
        "payload", has_segment_column=True, segment=None, framing="raw"
    )
