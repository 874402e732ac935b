"""Lines of hosts go to a pipe whose reader is stopped, and no loop waits for it."""

from __future__ import annotations

import asyncio
import os
import select
from contextlib import suppress
from pathlib import Path

from segmentstore.cli.line_relay import KEPT_MAX, LineRelay, RelayedPipe


def test_lines_wait_for_a_reader_and_the_oldest_are_dropped() -> None:
    async def main() -> None:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        relay = LineRelay(writing)
        try:
            taken = 0
            while select.select((), (writing,), (), 0)[1]:
                relay.put(b"x" * (select.PIPE_BUF + 1))
                taken += select.PIPE_BUF + 1
            for number in range(KEPT_MAX + 2):
                relay.put(b"%d\n" % number)
            found = bytearray()
            last = b"%d\n" % (KEPT_MAX + 1)
            while not found.endswith(last):
                await asyncio.sleep(0)
                with suppress(BlockingIOError):
                    found += os.read(reading, 1 << 20)
            lines = bytes(found).lstrip(b"x").split()
            assert lines == [b"%d" % number for number in range(2, KEPT_MAX + 2)]
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
                    assert os.write(other, b"x" * 50_000) == 50_000
                    while path.stat().st_size < number * 50_000:  # noqa: ASYNC110 - at once
                        await asyncio.sleep(0)
                os.write(other, b"the end")
                pipe.close()
                relay.close()
            finally:
                os.close(other)

    asyncio.run(main())
    assert path.read_bytes() == b"x" * 400_000 + b"the end"
