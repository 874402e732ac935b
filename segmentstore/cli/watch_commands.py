"""The commands that watch a store: `tail`, `stats`, `top`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from rich.live import Live

from segmentstore.cli import output
from segmentstore.cli.standard_streams import OutputBytes
from segmentstore.cli.stores import (
    cluster_at,
    require_store,
    with_output,
    with_readable_store,
    with_served_store,
)

if TYPE_CHECKING:
    from rich.table import Table

    from segmentstore import StoreApi
    from segmentstore.stats_types import StoreStats

_PIECE: Final = 64 * 1024


def tail(
    store: output.StoreArgument,
    segment: output.SegmentArgument,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="How many of the last lines.")
    ] = 10,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more; Ctrl-C ends it.")
    ] = False,
) -> None:
    """Write the last lines of a segment to standard output."""

    async def run(opened: StoreApi) -> None:
        offset = await _start_of_lines(opened, segment, lines)
        stdout = OutputBytes()
        try:
            async for chunk in opened.reader(segment, offset, follow=follow):
                await stdout.write(chunk)
        finally:
            stdout.close()

    with_output(store, run, follow=follow)


async def _start_of_lines(store: StoreApi, segment: str, lines: int) -> int:
    """Where the last `lines` lines begin. Reads backwards, a piece at a time."""
    info = await store.get_info(segment)
    end = info.length
    if not lines:
        return end
    left, place = lines, end
    while place > info.start_offset:
        begin = max(info.start_offset, place - _PIECE)
        piece = await _read_exactly(store, segment, begin, place)
        # The newline at the very end is that of the last line.
        at = len(piece) - 1 if place == end and piece.endswith(b"\n") else len(piece)
        while (at := piece.rfind(b"\n", 0, at)) >= 0:
            left -= 1
            if not left:
                return begin + at + 1
        place = begin
    return place


async def _read_exactly(store: StoreApi, segment: str, begin: int, end: int) -> bytes:
    pieces: list[bytes] = []
    while begin < end:
        pieces.append(await store.read(segment, begin, end - begin))
        begin += len(pieces[-1])
    return b"".join(pieces)


def stats(
    store: output.StoreArgument,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="As `metrics_port` serves them.")
    ] = False,
    as_json: output.JsonOption = False,
) -> None:
    """Show the store's numbers and health; what they mean is in docs/metrics.md."""

    async def run(opened: StoreApi) -> Any:
        if prometheus:
            return await opened.fetch_metrics_text()
        return output.to_plain(await opened.fetch_stats())

    shown = with_readable_store(store, run)
    if prometheus:
        sys.stdout.write(shown.decode())
    elif as_json:
        output.print_json(shown)
    else:
        output.out().print(output.pairs(store, output.flatten(shown)))


class _Row(NamedTuple):
    """A container at a moment. Rates are those since the moment before."""

    container: int
    state: str
    segments: int
    committed_per_s: float
    log_bytes_per_s: float
    unflushed_bytes: int
    tail_bytes: int
    readers_waiting: int
    throttled_by: str


_COLUMNS: Final = tuple(name.replace("_per_s", "/s").replace("_", " ") for name in _Row._fields)


def top(
    store: output.StoreArgument,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two lines.")] = 1.0,
    count: Annotated[
        int | None, typer.Option(min=1, help="End after so many; else with Ctrl-C.")
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Watch what the containers of a served store do, again and again; --json prints a line each
    time.
    """

    async def run(opened: StoreApi) -> None:
        moments = _moments(opened, interval, count)
        if as_json:
            async for rows, health in moments:
                output.print_json({"containers": rows, "health": health})
                sys.stdout.flush()
            return
        with Live(console=output.out(), auto_refresh=False) as live:
            async for rows, health in moments:
                live.update(_table(store, rows, health), refresh=True)

    if cluster_at(store) is None:
        require_store(store)
    try:
        with_served_store(store, run)
    except BrokenPipeError:
        output.abandon_stdout()
    except KeyboardInterrupt:
        pass  # the ordinary end


async def _moments(
    store: StoreApi, interval_s: float, count: int | None
) -> AsyncIterator[tuple[list[_Row], list[str]]]:
    loop = asyncio.get_running_loop()
    before: StoreStats | None = None
    before_s = 0.0
    shown = 0
    while True:
        now, now_s = await store.fetch_stats(), loop.time()
        elapsed_s = now_s - before_s
        yield [_row(each, now, before, elapsed_s) for each in now["containers"]], now["health"]
        shown += 1
        if shown == count:
            return
        before, before_s = now, now_s
        await asyncio.sleep(interval_s)


def _row(container_id: int, now: StoreStats, before: StoreStats | None, elapsed_s: float) -> _Row:
    stats = now["containers"][container_id]
    processor = stats.get("processor")
    earlier = before["containers"].get(container_id) if before is not None else None
    earlier_processor = earlier.get("processor") if earlier is not None else None
    committed = log_bytes = 0.0
    if processor is not None and earlier is not None and earlier_processor is not None:
        count = processor["requests_committed"] - earlier_processor["requests_committed"]
        committed = count / elapsed_s
        log_bytes = (stats["log"]["bytes_appended"] - earlier["log"]["bytes_appended"]) / elapsed_s
    return _Row(
        container=container_id,
        state=stats["state"],
        segments=stats["segments"],
        committed_per_s=committed,
        log_bytes_per_s=log_bytes,
        unflushed_bytes=stats["storage_writer"]["unflushed_bytes"],
        tail_bytes=stats["read_index"]["tail_bytes"],
        readers_waiting=stats["read_index"]["readers_waiting"],
        throttled_by=processor["throttled_by"] if processor is not None else "",
    )


def _table(store: str, rows: list[_Row], health: list[str]) -> Table:
    shown = output.table(f"{store}: {'; '.join(health) or 'well'}", _COLUMNS, rows)
    shown.title_style = "bold red" if health else "bold"
    return shown
