"""Embedded peers keep what they acknowledged; the suite of peers measures, marks and prints what it
says. No timing: sizes are tiny, and figures are only checked for being there.
"""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import segmentstore
from bench.peers import bars, killed, libraries, long_logs, peer, results, suite
from bench.peers.cell import FULL, Cell, PeerRun, PeerSizes
from bench.peers.durability import syncs_in
from bench.peers.embedded import GroupedLog
from bench.peers.measure import CellRounds
from bench.peers.peer import PeerLog, open_log
from bench.peers.plot import plot
from bench.peers.tables import markdown
from bench.peers.timed_loads import FILL_BATCH, FILL_RECORD_BYTES
from bench.peers.usage import QUIET_CORES, Meter, wait_until_quiet
from bench.workspace import BenchError

KEPT = ("engine", "sqlite", "lmdb", "rocksdb")
"""Embedded peers that are opened again."""
TINY = PeerSizes(1, 1, 0.0, 0.02, 1 << 18, 1, (1, 2), 50, 1 << 18, 3)


async def all_bytes(log: PeerLog, segment: int) -> bytes:
    return b"".join([data async for data in log.read(segment)])


@pytest.mark.parametrize("name", KEPT)
def test_what_was_acknowledged_is_there_after_reopening(name: str, tmp_path: Path) -> None:
    records = [b"%05d" % number for number in range(40)]

    async def write() -> None:
        log = await open_log(name, str(tmp_path), "base", segments=2)
        await asyncio.gather(*(log.append(0, record) for record in records))
        await log.append_batch(1, records[:3])
        await log.append(1, b"last")
        await log.close()

    async def read() -> None:
        log = await open_log(name, str(tmp_path), "base", segments=2, create=False)
        assert await all_bytes(log, 0) == b"".join(records)
        assert await all_bytes(log, 1) == b"".join(records[:3]) + b"last"
        await log.append(0, b"more")
        assert await all_bytes(log, 0) == b"".join(records) + b"more"
        await log.close()

    asyncio.run(write())
    asyncio.run(read())


@pytest.mark.parametrize("name", [*KEPT, "skeleton"])
def test_a_follower_gets_what_is_appended_later(name: str, tmp_path: Path) -> None:
    async def work() -> bytes:
        log = await open_log(name, str(tmp_path), "base")
        found = bytearray()

        async def follow() -> None:
            async for data in log.read(0, follow=True):
                found.extend(data)
                if len(found) >= 20:
                    return

        follower = asyncio.create_task(follow())
        await asyncio.sleep(0)
        for number in range(20):
            await log.append(0, b"%d" % (number % 10))
        await follower
        await log.close()
        return bytes(found)

    assert asyncio.run(work()) == b"0123456789" * 2


@pytest.mark.parametrize("name", ["sqlite", "lmdb", "rocksdb"])
def test_callers_share_a_commit(name: str, tmp_path: Path) -> None:
    async def work() -> int:
        log = await open_log(name, str(tmp_path), "base")
        assert isinstance(log, GroupedLog)
        await asyncio.gather(*(log.append(0, b"x" * 10) for _ in range(300)))
        await log.close()
        return log.commits

    assert asyncio.run(work()) == 1


def test_a_commit_that_fails_fails_its_appends(tmp_path: Path) -> None:
    async def work() -> None:
        log = await open_log("lmdb", str(tmp_path), "base")
        await log.append(0, b"x")
        with pytest.raises(TypeError):
            await log.append(0, "no bytes")  # type: ignore[arg-type]
        await log.close()

    asyncio.run(work())


def test_the_suite_measures_each_peer_in_a_process_of_its_own(tmp_path: Path) -> None:
    printed = io.StringIO()
    path = tmp_path / "out.json"
    result = suite.run(
        ["sqlite", "skeleton"],
        ["W1 16"],
        quick=True,
        console=Console(file=printed, width=200),
        json_path=path,
        work_parent=tmp_path / "work",
        sizes=TINY,
    )
    (cell,) = result["cells"]
    assert set(cell["peers"]) == {"sqlite", "skeleton"}
    assert cell["peers"]["sqlite"]["ratio"] is None, "the engine was not measured"
    assert {"client_us", "server_us", "foreign_cores"} <= set(cell["peers"]["sqlite"])
    assert json.loads(path.read_text(encoding="utf-8")) == result
    assert "skeleton" in printed.getvalue()
    assert not suite.failed(result)
    assert not list((tmp_path / "work").iterdir())


def test_unknown_peers_and_cells_are_refused_before_anything_runs(tmp_path: Path) -> None:
    console = Console(file=io.StringIO())
    with pytest.raises(BenchError, match="no such peer: nonsense"):
        suite.run(["nonsense"], [], quick=True, console=console, work_parent=tmp_path)
    with pytest.raises(BenchError, match="no cell begins with 'W0'"):
        suite.run([], ["W0"], quick=True, console=console, work_parent=tmp_path)


def test_a_missing_library_is_named_with_what_installs_it() -> None:
    with pytest.raises(BenchError, match=r"absent_module.*bench-peers"):
        libraries.library("absent_module")


@pytest.mark.parametrize("name", sorted(peer.MODULES))
def test_every_peer_has_its_name(name: str) -> None:
    assert peer.create(name).name == name


def rounds_of(unit: str, *, lower: bool = False) -> CellRounds:
    rounds = CellRounds(Cell(name="W1 x", unit=unit, module="m", lower_is_better=lower))
    rounds.floor = [{"value": 9.0}]
    rounds.peers["engine"] = [{"value": value, "foreign_cores": 0.5} for value in (2.0, 4.0, 6.0)]
    rounds.peers["lmdb"] = [{"value": value, "foreign_cores": 0.1} for value in (1.0, 1.0, 12.0)]
    rounds.errors["kafka"] = "did not come up"
    return rounds


def test_ratios_are_of_neighbours_and_more_than_1_is_better() -> None:
    assert results.ratio_of(rounds_of("x/s"), "lmdb") == 2.0
    assert results.ratio_of(rounds_of("s", lower=True), "lmdb") == 0.5
    assert results.ratio_of(rounds_of("s"), "kafka") is None


def test_a_disturbed_row_is_marked_and_an_error_is_printed() -> None:
    cell = results.to_json(rounds_of("x/s"))
    assert [cell["peers"][name]["disturbed"] for name in ("engine", "lmdb")] == [True, False]
    printed = io.StringIO()
    results.show([cell], Console(file=printed, width=200))
    assert "0.50 !" in printed.getvalue()
    assert "did not come up" in printed.getvalue()
    assert suite.failed({"cells": [cell], "bars": []})


def test_the_meter_counts_this_process_and_the_servers_apart() -> None:
    meter = Meter([])
    sum(range(200_000))
    figures = meter.figures(10)
    assert figures["client_us"] > 0
    assert figures["server_us"] == 0
    assert figures["foreign_cores"] >= 0


def test_a_machine_with_a_busy_process_is_not_quiet() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            assert wait_until_quiet(0.0) > QUIET_CORES
        finally:
            busy.kill()


def test_missing_records_are_counted() -> None:
    found = b"".join(map(killed.record, range(10)))
    assert killed.missing_records(found, 10) == 0
    assert killed.missing_records(found, 12) == 2
    assert killed.missing_records(found[: 3 * killed.RECORD_BYTES + 5], 10) == 7
    assert killed.missing_records(killed.record(1) + found[killed.RECORD_BYTES :], 10) == 1


def test_bars_are_of_the_worst_peer_and_of_those_that_were_measured() -> None:
    cell = results.to_json(rounds_of("x/s"))
    cell["name"] = "W2 100 B, batch"
    (verdict,) = bars.verdicts([cell])
    assert verdict == {
        "cell": "W2 100 B, batch",
        "text": "≥ 1 x every peer (worst: lmdb)",
        "figure": 2.0,
        "met": True,
    }
    assert suite.failed({"cells": [], "bars": [{**verdict, "met": False}]})
    assert bars.verdicts([{**cell, "peers": {"lmdb": cell["peers"]["lmdb"]}}]) == []


def test_every_bar_is_of_a_cell_that_there_is() -> None:
    names = [cell.name for cell in suite.all_cells(FULL)]
    assert [bar for bar in bars.BARS if not any(name.startswith(bar.cell) for name in names)] == []
    assert {bars._ONE, bars._MANY} <= set(names)


def test_the_plot_has_a_dot_for_each_ratio(tmp_path: Path) -> None:
    cell = results.to_json(rounds_of("x/s"))
    cell["peers"]["engine"]["series"] = [[1.0, 2.0, 1.5]]
    plot([cell], tmp_path / "plot.svg")
    text = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert text.count("<circle") == 3, "two of the legend and one of lmdb"
    assert "highest: 2" in text


@pytest.mark.parametrize("workload", ["W3", "W4", "W5"])
def test_a_workload_runs_on_an_embedded_peer(workload: str, tmp_path: Path) -> None:
    cells = [cell.name for cell in suite.all_cells(TINY)]
    last = [name for name in cells if name.startswith(workload)][-1]
    result = suite.run(
        ["sqlite"],
        [last],
        quick=True,
        console=Console(file=io.StringIO()),
        work_parent=tmp_path,
        sizes=TINY,
    )
    (cell,) = result["cells"]
    assert cell["errors"] == {}
    assert set(cell["peers"]) == {"sqlite"}


def test_results_are_printed_for_a_page() -> None:
    lines = markdown([results.to_json(rounds_of("x/s"))]).splitlines()
    assert lines[0] == "| figures, medians | engine | lmdb | floor |"
    assert lines[2] == "| W1 x, x/s | 4 ! | 1 | 9 |"
    assert "| W1 x, x/s | 1.00 | 2.00 |  |" in lines


def test_a_long_log_has_its_bytes_and_chunks_before_it_is_measured(tmp_path: Path) -> None:
    result = suite.run(
        ["engine", "sqlite"],
        ["W6 behind"],
        quick=True,
        console=Console(file=io.StringIO(), width=200),
        work_parent=tmp_path / "work",
        sizes=TINY,
    )
    behind_bytes, behind_chunks = result["cells"]
    assert set(behind_bytes["peers"]) == {"engine", "sqlite"}
    assert set(behind_chunks["peers"]) == {"engine"}, "the others have no chunks"
    assert [cell["errors"] for cell in result["cells"]] == [{}, {}]
    assert behind_bytes["name"] == "W6 behind 0.25 MiB"


@pytest.mark.parametrize(("batches", "flushes"), [(2, 0), (0, 3)])
def test_the_load_on_a_long_log_begins_behind_what_was_written(
    batches: int, flushes: int, tmp_path: Path
) -> None:
    run = PeerRun(
        peer="engine",
        address=str(tmp_path),
        base="base",
        processes=(),
        in_flight_max=peer.UNLIMITED,
        sizes=TINY,
    )
    long_logs.peer_round(run, batches, flushes)

    async def length_and_objects() -> tuple[int, int]:
        async with segmentstore.open(tmp_path / "store") as store:
            info = await store.get_info("bench/base-0")
            return info.length, len([block async for block in store.list_blocks("bench/base-0")])

    length, objects = asyncio.run(length_and_objects())
    before = batches * FILL_BATCH * FILL_RECORD_BYTES + flushes * long_logs.APPEND_BYTES
    assert length > before
    assert objects >= flushes


def test_a_sync_by_the_kernel_counts_as_one() -> None:
    request = "{aio_data=0x7f1, aio_lio_opcode=IOCB_CMD_%s, aio_fildes=9, aio_flags=1, aio_resfd=7}"
    fdsync, fsync, write = (request % kind for kind in ("FDSYNC", "FSYNC", "PWRITE"))
    counted = {
        "12 fdatasync(9) = 0": 1,
        "12 fsync(9 <unfinished ...>": 1,
        "12 <... fsync resumed>) = 0": 0,
        f"12 io_submit(0x7f2, 1, [{fdsync}]) = 1": 1,
        f"12 io_submit(0x7f2, 1, [{fdsync}] <unfinished ...>": 1,
        "12 <... io_submit resumed>) = 1": 0,
        f"12 io_submit(0x7f2, 3, [{fdsync}, {write}, {fsync}]) = 3": 2,
        f"12 io_submit(0x7f2, 1, [{fdsync}]) = -1 EAGAIN (Resource temporarily unavailable)": 0,
    }
    assert {line: syncs_in(line) for line in counted} == counted
