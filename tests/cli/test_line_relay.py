"""Lines of hosts go to a pipe whose reader is stopped, and no loop waits for it."""

from __future__ import annotations

import asyncio
import os
import select
from contextlib import suppress
from pathlib import Path

from segmentstore.cli.line_relay import (
    KEPT_BYTES_MAX,
    LINE_BYTES_MAX,
    LineJoiner,
    LineRelay,
    RelayedPipe,
)

FULL = b"x" * 999 + b"\n"


def test_lines_wait_for_a_reader_and_the_oldest_are_dropped() -> None:
    async def main() -> None:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        relay = LineRelay(writing)
        try:
            while select.select((), (writing,), (), 0)[1]:
                relay.put(FULL * 6)  # more than is written at a time
            count = KEPT_BYTES_MAX // 5000
            for number in range(count + 3):
                relay.put(b"%04d" % number * 1249 + b"end\n")
            found = bytearray()
            last = b"%04d" % (count + 2) * 1249 + b"end\n"
            while not found.endswith(last):
                await asyncio.sleep(0)
                with suppress(BlockingIOError):
                    found += os.read(reading, 1 << 20)
            lines = bytes(found).splitlines(keepends=True)
            while lines[0] == FULL:
                del lines[0]
            assert lines == [b"%04d" % number * 1249 + b"end\n" for number in range(3, count + 3)]
            os.close(reading)
            reading = -1
            relay.put(b"no reader\n")
            relay.put(b"reads it\n")
        finally:
            relay.close()
            os.close(writing)
            if reading >= 0:
                os.close(reading)

    asyncio.run(main())


def test_lines_of_two_sources_do_not_mix(tmp_path: Path) -> None:
    async def main() -> None:
        with (tmp_path / "output").open("wb", buffering=0) as file:
            relay = LineRelay(file.fileno())
            one, two = LineJoiner(relay), LineJoiner(relay)
            one.feed(b"one begins")
            two.feed(b"two is whole\nand begins")
            one.feed(b" and ends\n")
            two.feed(b"y" * LINE_BYTES_MAX)
            one.feed(b"one has no end")
            one.end()
            one.end()
            two.feed(b"two ends\n")
            relay.close()

    asyncio.run(main())
    assert (tmp_path / "output").read_bytes().splitlines() == [
        b"two is whole",
        b"one begins and ends",
        b"and begins" + b"y" * LINE_BYTES_MAX,
        b"one has no end",
        b"two ends",
    ]


def test_a_file_has_room_always(tmp_path: Path) -> None:
    async def main() -> None:
        with (tmp_path / "output").open("wb", buffering=0) as file:
            relay = LineRelay(file.fileno())
            for number in range(100):
                relay.put(b"%d\n" % number)
            relay.close()

    asyncio.run(main())
    lines = (tmp_path / "output").read_bytes().split()
    assert lines == [b"%d" % number for number in range(100)]


def test_what_is_written_into_a_pipe_is_passed_on(tmp_path: Path) -> None:
    path = tmp_path / "output"

    async def main() -> None:
        with path.open("wb", buffering=0) as file:
            relay = LineRelay(file.fileno())
            pipe = RelayedPipe(relay)
            other = os.dup(pipe.writing)  # a process that has it still is not waited for
            try:
                for number in range(1, 9):
                    assert os.write(other, b"x" * 49_999 + b"\n") == 50_000
                    while path.stat().st_size < number * 50_000:  # noqa: ASYNC110 - at once
                        await asyncio.sleep(0)
                os.write(other, b"the end")
                pipe.close()
                relay.close()
            finally:
                os.close(other)

    asyncio.run(main())
    assert path.read_bytes() == (b"x" * 49_999 + b"\n") * 8 + b"the end\n"
