"""Bytes into lines: nothing is lost, nothing is split elsewhere than behind a newline."""

from __future__ import annotations

import asyncio
import io
import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.cli.exit_codes import CommandError
from segmentstore.cli.ingest import LineTooLongError, read_lines
from segmentstore.cli.standard_streams import InputLines, LineSplitter, interrupt_calls

TEXT = st.lists(
    st.sampled_from([b"a", b"\n", b"\r", b"\x00\xff", b"\x0c", b"\n\n", b"line"]), max_size=30
)


def is_line(line: bytes) -> bool:
    return line.endswith(b"\n") and line.count(b"\n") == 1


@given(TEXT)
def test_splitter_gives_every_byte_once_in_whole_lines(pieces: list[bytes]) -> None:
    splitter = LineSplitter()
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    rest = splitter.rest()
    assert b"".join(lines + rest) == b"".join(pieces)
    assert all(map(is_line, lines))
    assert all(b"\n" not in line for line in rest)


@given(TEXT, st.integers(1, 8))
def test_read_lines_gives_every_byte_once_in_whole_lines(
    pieces: list[bytes], bytes_max: int
) -> None:
    data = b"".join(pieces)
    handle = io.BytesIO(data)
    lines: list[bytes] = []
    while batch := read_lines(handle, bytes_max):
        assert sum(map(len, batch[:-1])) < bytes_max
        lines += batch
    assert b"".join(lines) == data
    assert all(map(is_line, lines[:-1]))


def test_a_line_beyond_the_bound_is_refused() -> None:
    with pytest.raises(LineTooLongError):
        read_lines(io.BytesIO(b"123456"), line_bytes_max=5)
    assert read_lines(io.BytesIO(b"1234\n12345"), line_bytes_max=5) == [b"1234\n", b"12345"]
    splitter = LineSplitter(line_bytes_max=5)
    assert splitter.feed(b"12345") == []
    with pytest.raises(CommandError, match="longer than 5 bytes"):
        splitter.feed(b"6")


def read_all(descriptor: int, interrupt_behind: bytes | None = None) -> list[bytes]:
    async def run() -> list[bytes]:
        lines: list[bytes] = []
        async with InputLines(descriptor) as source:
            with interrupt_calls(asyncio.get_running_loop(), source):
                async for batch in source.batches():
                    lines += batch
                    if interrupt_behind in batch:
                        os.kill(os.getpid(), signal.SIGINT)
        return lines

    return asyncio.run(run())


def test_input_ends_with_its_last_line() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"one\ntwo\nthree")
    os.close(writing)
    assert read_all(reading) == [b"one\n", b"two\n", b"three"]
    os.close(reading)


def test_interrupt_ends_the_input_and_not_the_program() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"one\ntwo\n")
    assert read_all(reading, interrupt_behind=b"two\n") == [b"one\n", b"two\n"]
    os.close(reading)
    os.close(writing)
