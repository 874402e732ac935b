"""Numbers of bytes as text, read and written."""

from __future__ import annotations

import pytest

from segmentstore.contracts.byte_sizes import (
    GIB,
    KIB,
    MIB,
    TIB,
    format_size,
    parse_size,
    parse_spark_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1048576", MIB), ("4KiB", 4 * KIB), ("8MiB", 8 * MIB), ("1GiB", GIB)],
)
def test_a_size_of_a_setting(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "MiB", "8mib", "8MB", "8 MiB", " 8MiB", "8TiB", "-1", "1.5GiB", "+1", "\u0661", "1" * 19],
)
def test_what_is_no_size_of_a_setting(text: str) -> None:
    assert parse_size(text) is None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("7", 7),
        ("7b", 7),
        ("64m", 64 * MIB),
        ("64 MB", 64 * MIB),
        (" 64MiB ", 64 * MIB),
        ("2G", 2 * GIB),
        ("1t", TIB),
        ("3\tk", 3 * KIB),
    ],
)
def test_a_size_as_spark_writes_it(text: str, size: int) -> None:
    assert parse_spark_size(text) == size


@pytest.mark.parametrize("text", ["", "m", "6 4m", "64 m b", "1.5g", "-1", "64p", "64ib", "64bb"])
def test_what_is_no_size_of_spark(text: str) -> None:
    assert parse_spark_size(text) is None


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1536 * 1024, "1.5 MiB"),
        (2**60, "1024.0 PiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert format_size(count) == text
