"""The commands that move bytes: `append` takes standard input, `cat` gives standard output."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Annotated

import typer

from segmentstore.cli import output
from segmentstore.cli.standard_streams import InputLines, OutputBytes, interrupt_calls
from segmentstore.cli.stores import with_output, with_store
from segmentstore.contracts.byte_sizes import format_size
from segmentstore.contracts.errors import (
    SegmentExistsError,
    SegmentTruncatedError,
)

if TYPE_CHECKING:
    from segmentstore import StoreApi

_OUTSTANDING_LINES_MAX = 1000
_OUTSTANDING_BYTES_MAX = 4 << 20


class _Appender:
    """Appends lines in order, many in flight, and counts the acknowledged ones."""

    def __init__(self, store: StoreApi, segment: str) -> None:
        self._store = store
        self._segment = segment
        self._outstanding: deque[tuple[Awaitable[int], int]] = deque()
        self._outstanding_bytes = 0
        self.lines = 0
        self.bytes = 0

    async def put(self, lines: list[bytes]) -> None:
        """Append lines; waits only when too much is in flight."""
        for line in lines:
            if (
                len(self._outstanding) >= _OUTSTANDING_LINES_MAX
                or self._outstanding_bytes + len(line) > _OUTSTANDING_BYTES_MAX
            ):
                await self.settle(_OUTSTANDING_LINES_MAX // 2, _OUTSTANDING_BYTES_MAX // 2)
            self._outstanding.append((self._store.append(self._segment, line), len(line)))
            self._outstanding_bytes += len(line)

    async def settle(self, lines: int = 0, size: int = 0) -> None:
        """Wait until at most so much is in flight."""
        while self._outstanding and (
            len(self._outstanding) > lines or self._outstanding_bytes > size
        ):
            awaitable, length = self._outstanding.popleft()
            self._outstanding_bytes -= length
            await awaitable
            self.lines += 1
            self.bytes += length

    async def settle_failed(self) -> None:
        """After an error: count what was acknowledged none the less, and leave nothing
        unawaited.
        """
        outcomes = await asyncio.gather(
            *(awaitable for awaitable, _ in self._outstanding), return_exceptions=True
        )
        for outcome, (_, length) in zip(outcomes, self._outstanding, strict=True):
            if not isinstance(outcome, BaseException):
                self.lines += 1
                self.bytes += length
        self._outstanding.clear()


def append(
    store: output.StoreArgument,
    segment: output.SegmentArgument,
    take_over: output.TakeOverOption = False,
    as_json: output.JsonOption = False,
) -> None:
    """Append standard input to a segment, each line (with its newline) an append; the segment is
    made if absent.

    Ends with the input or with Ctrl-C, then says how many lines were acknowledged; also when an
    error ends it.
    """
    counted: list[_Appender] = []

    async def run(opened: StoreApi) -> None:
        try:
            await opened.create_segment(segment)
        except SegmentExistsError:
            pass  # it grows
        appender = _Appender(opened, segment)
        counted.append(appender)
        async with InputLines() as lines:
            with interrupt_calls(asyncio.get_running_loop(), lines):
                try:
                    async for batch in lines.batches():
                        await appender.put(batch)
                    await appender.settle()
                finally:
                    await appender.settle_failed()

    try:
        with_store(store, run, create=True, take_over=take_over)
    finally:
        for appender in counted:
            if as_json:
                output.print_json(
                    {"segment": segment, "acknowledged": appender.lines, "bytes": appender.bytes}
                )
            else:
                output.err().print(
                    f"{appender.lines:,} lines acknowledged, {format_size(appender.bytes)}"
                )


def cat(
    store: output.StoreArgument,
    segment: output.SegmentArgument,
    offset: Annotated[
        int | None,
        typer.Option(min=0, help="Where to begin; the first readable byte if not given."),
    ] = None,
    length: Annotated[
        int | None, typer.Option(min=0, help="How many bytes at most; to the end if not given.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait at the tail for more; Ctrl-C ends it.")
    ] = False,
) -> None:
    """Write the bytes of a segment to standard output."""

    async def run(opened: StoreApi) -> None:
        await _copy(opened, segment, offset, length, follow=follow)

    with_output(store, run, follow=follow)


async def _copy(
    store: StoreApi, segment: str, offset: int | None, length: int | None, *, follow: bool
) -> None:
    info = await store.get_info(segment)
    if offset is None:
        offset = info.start_offset
    elif offset < info.start_offset:
        raise SegmentTruncatedError(segment, info.start_offset)
    remaining = length
    if remaining == 0:
        return
    stdout = OutputBytes()
    try:
        async for chunk in store.reader(segment, offset=offset, follow=follow):
            piece = bytes(chunk) if remaining is None else bytes(chunk[:remaining])
            await stdout.write(piece)
            if remaining is not None:
                remaining -= len(piece)
                if not remaining:
                    return
    finally:
        stdout.close()
