"""All cases under one roof: what `make bench`, `segmentstore bench` and `python -m bench.<case>`
run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import machine
from bench.report import CaseResult, show
from bench.workspace import BenchError, work_folder

CASES = {
    "concurrent_callers": "bench.concurrent_callers",
    "one_producer": "bench.one_producer",
    "append_batch": "bench.append_batch",
    "attribute_appends": "bench.attribute_appends",
    "arrivals": "bench.arrivals",
    "large_appends": "bench.large_appends",
    "single_caller": "bench.single_caller",
    "tail_reader": "bench.tail_reader",
    "catch_up": "bench.catch_up",
    "recovery": "bench.recovery",
    "memory": "bench.memory",
    "many_segments": "bench.many_segments",
    "metadata_checkpoints": "bench.metadata_checkpoints",
    "idle_segments": "bench.idle_segments",
    "segments_in_containers": "bench.segments_in_containers",
    "metadata_growth": "bench.metadata_growth",
    "long_segments": "bench.long_segments",
    "isolation": "bench.isolation",
    "slow_tier2": "bench.slow_tier2",
    "log_parts": "bench.log_parts",
    "request_costs": "bench.request_costs",
    "cold_random_reads": "bench.cold_random_reads",
    "s3_ingest": "bench.s3_ingest",
    "s3_flush": "bench.s3_flush",
    "archive": "bench.archive",
    "archive_replay": "bench.archive_replay",
    "archived_moment": "bench.archived_moment",
    "s3_backlog": "bench.s3_backlog",
    "s3_catch_up": "bench.s3_catch_up",
    "s3_consolidation": "bench.s3_consolidation",
    "bookkeeper_frames": "bench.bookkeeper_frames",
    "bookkeeper_engine": "bench.bookkeeper_engine",
    "bookkeeper_takeover": "bench.bookkeeper_takeover",
    "cluster_moves": "bench.cluster_moves",
    "cluster_processes": "bench.cluster_processes",
    "cluster_scale": "bench.cluster_scale",
    "cluster_takeover": "bench.cluster_takeover",
    "cluster_restart": "bench.cluster_restart",
    "wire_clients": "bench.wire_clients",
    "wire_catch_up": "bench.wire_catch_up",
    "wire_variants": "bench.wire_variants",
    "wire_tables": "bench.wire_tables",
    "wire_connections": "bench.wire_connections",
    "wire_keys": "bench.wire_keys",
    "wire_left_writers": "bench.wire_left_writers",
    "wire_restart": "bench.wire_restart",
    "wire_burst": "bench.wire_burst",
    "wire_connect": "bench.wire_connect",
    "spark_reconcile": "bench.spark_reconcile",
    "spark_listing": "bench.spark_listing",
    "spark_deep_check": "bench.spark_deep_check",
    "spark_compaction": "bench.spark_compaction",
    "spark_read": "bench.spark_read",
}
"""Case to module, in the order they run.

A case module has `QUESTION` and `run(directory, *, quick) -> CaseResult`.
"""

Plot = Callable[[Sequence[Mapping[str, Any]], Path], None]

_PIPE_COLUMNS = 150


def run(
    cases: Sequence[str] | None,
    quick: bool,
    json_path: Path | str | None,
    *,
    console: Console | None = None,
    work_parent: Path | None = None,
) -> list[dict[str, Any]]:
    """Run `cases` (all, if empty or None) and print a table for each; gives one JSON object a case.

    Each object: case, question, quick, machine, seconds, rows, notes; a case that could not be
    measured has `error` and no rows, and does not keep the others from running. `json_path` gets
    the whole list. Work files go to a fresh folder under `work_parent` (default var/bench of the
    current folder). Raises BenchError for an unknown case, before anything runs, and for a work
    folder in memory. All cases take minutes, or with `quick` about two.
    """
    # A pipe has no width of its own, and 80 columns would break the tables.
    console = (
        Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS)
        if console is None
        else console
    )
    names = list(cases or CASES)
    unknown = [name for name in names if name not in CASES]
    if unknown:
        message = f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}"
        raise BenchError(message)
    results: list[dict[str, Any]] = []
    for name in names:
        results.append(_run_one(name, quick=quick, console=console, work_parent=work_parent))
        if json_path is not None:
            # After every case: a long run that is cut off keeps what it has.
            Path(json_path).write_text(
                json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
            )
    return results


def _run_one(
    name: str, *, quick: bool, console: Console, work_parent: Path | None
) -> dict[str, Any]:
    module = importlib.import_module(CASES[name])
    begun = time.perf_counter()
    with work_folder(work_parent) as folder:
        facts = machine.facts(folder)
        head = {"case": name, "question": module.QUESTION, "quick": quick, "machine": facts}
        try:
            result: CaseResult = module.run(folder, quick=quick)
        except BenchError as error:
            console.print(f"[red]{name}: {error}[/red]", highlight=False)
            return {
                **head,
                "seconds": time.perf_counter() - begun,
                "rows": [],
                "notes": [],
                "error": str(error),
            }
    show(result, console)
    console.print(
        "  [dim]" + ", ".join(f"{key} {value}" for key, value in facts.items()) + "[/dim]\n"
    )
    return {**head, "seconds": time.perf_counter() - begun, **result.to_json()}


def failed(results: Sequence[dict[str, Any]]) -> bool:
    """True if a case could not be measured or an engine row misses its bar."""
    return any(
        "error" in result or any(row["met"] is False for row in result["rows"])
        for result in results
    )


def main(only: str | None = None, *, plot: Plot | None = None) -> None:
    """Command line; exits with 1 if a bar is missed or a case could not be measured. `plot` draws
    the rows of a case that has a picture.
    """
    parser = argparse.ArgumentParser(
        description="Measure the engine beside its floor and its skeleton."
    )
    if only is None:
        parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="fewer rounds of fewer operations")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    if plot is not None:
        parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them there, as SVG")
    arguments = parser.parse_args()
    try:
        results = run([only] if only else arguments.cases, arguments.quick, arguments.json)
    except BenchError as error:
        parser.error(str(error))
    if plot is not None and arguments.plot is not None:
        plot([row for result in results for row in result["rows"]], arguments.plot)
    raise SystemExit(1 if failed(results) else 0)


if __name__ == "__main__":
    main()
