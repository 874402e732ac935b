"""Coverage-guided fuzzing of the decoder: `make fuzz`, or `python -m tests.wire.fuzz [options of
libFuzzer]`.

Needs the package atheris, which `make fuzz` installs. An input is a direction, cuts, and the bytes
of a connection. What is found is a crash of libFuzzer, with the input in a file; `check` repeats
it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from segmentstore.wire.append_blocks import Append, AppendBlocks
from segmentstore.wire.codec import decode, encode
from segmentstore.wire.commands import Command
from segmentstore.wire.errors import WireError
from segmentstore.wire.fields import FRAME_BYTES_MAX
from segmentstore.wire.formats import ALL, REPLIES, REQUESTS
from segmentstore.wire.frame_decoder import FrameDecoder
from segmentstore.wire.store_formats import STORE_COMMANDS

CORPUS = Path(__file__).parents[2] / "var" / "fuzz-wire"


def check(content: bytes) -> None:
    """Nothing but WireError is raised, and neither cuts nor a second round change a command."""
    if len(content) < 3:
        return
    accepted = (REQUESTS, REPLIES, ALL, STORE_COMMANDS)[content[0] % 4]
    size, stream = content[1] + 1, content[2:]
    whole, failed = _commands(FrameDecoder(accepted), [stream])
    pieces = [stream[begin : begin + size] for begin in range(0, len(stream), size)]
    assert (whole, failed) == _commands(FrameDecoder(accepted), pieces)
    for command in whole:
        try:
            frame = encode(command)
        except WireError:
            continue  # plain UTF-8 is longer as Java's
        assert decode(int.from_bytes(frame[:4], signed=True), frame[8:]) == command
    _put_together(whole)


def _commands(decoder: FrameDecoder, received: Sequence[bytes]) -> tuple[list[Command], bool]:
    seen: list[Command] = []
    try:
        for data in received:
            seen.extend(decoder.feed(data))
    except WireError:
        return seen, True
    return seen, False


def _put_together(commands: Sequence[Command]) -> None:
    blocks = AppendBlocks()
    try:
        for command in commands:
            append = blocks.accept(command)
            if isinstance(append, Append):
                assert sum(map(len, append.data)) <= FRAME_BYTES_MAX * 2
    except WireError:
        pass


def main() -> None:
    """Fuzz until a bound of libFuzzer's options is reached, or for ever.

    What is worth to be kept is kept in CORPUS; whole frames are there from the start.
    """
    atheris: Any = importlib.import_module("atheris")
    atheris.instrument_all()
    CORPUS.mkdir(parents=True, exist_ok=True)
    for line in Path(__file__).with_name("golden.txt").read_text("ascii").splitlines():
        name, frame = line.split()
        (CORPUS / name).write_bytes(b"\2\5" + bytes.fromhex(frame))
    atheris.Setup([*sys.argv, str(CORPUS)], check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
