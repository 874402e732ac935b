"""The verb `reconcile`: its arguments, and what it prints. docs/reconciliation.md is its page."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.folders import checked_folder
from segmentstore.contracts.visible import visible
from tier2.catalog.catalog_format_error import CatalogFormatError
from tier2.spark.common.command_options import Exit, add_common_options
from tier2.spark.reconcile.findings_files import check_findings_url
from tier2.spark.reconcile.options import (
    CHECKS,
    LISTINGS_AT_ONCE,
    OBJECTS_AT_ONCE,
    ReconcileOptions,
    parse_age,
)

if TYPE_CHECKING:
    from tier2.spark.reconcile.job import ReconcileResult


def add_parser(subparsers: Any) -> None:
    """Add the verb to the parser of all verbs."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "reconcile",
        help="compare the catalog with what lies in Tier 2",
        description="Compare what the catalog says with what the place lists and, if asked, with "
        "what the objects say of "
        "themselves. Read-only: nothing is repaired, and nothing deleted but through the "
        "owners of the containers.",
        epilog="Exit codes: 0 nothing found, 1 findings, 2 undecided: a container without "
        "a snapshot, an owner that "
        "did not answer, a listing that failed.",
    )
    add_common_options(parser)
    parser.add_argument(
        "--older-than",
        default="3 days",
        metavar="AGE",
        help="an unreferenced object is an orphan when it is so old (default %(default)s)",
    )
    parser.add_argument(
        "--allow-short-retention",
        action="store_true",
        help="take an --older-than below a day: only where no process writes",
    )
    parser.add_argument(
        "--listing",
        metavar="PATH",
        help="a prepared listing instead of listing: Parquet or CSV files, or an S3 "
        "Inventory's manifest.json",
    )
    parser.add_argument(
        "--prefix-mismatch-mode",
        choices=("ERROR", "IGNORE"),
        default="ERROR",
        help="keys of --listing outside of the store's prefix (default %(default)s)",
    )
    parser.add_argument(
        "--check",
        choices=CHECKS,
        default="none",
        help="inspect the objects: blocks' headers, or all bytes (default none)",
    )
    parser.add_argument(
        "--delete-orphans", action="store_true", help="say what would be deleted: a dry run"
    )
    parser.add_argument(
        "--execute",
        action="store_true",
        help="with --delete-orphans: ask the owners to delete them",
    )
    parser.add_argument(
        "--report",
        metavar="FOLDER",
        help="write findings.parquet and summary.json there; of very many findings a sample, "
        "findings-sample.parquet, "
        "if tasks run on other machines",
    )
    parser.add_argument(
        "--findings",
        metavar="URL",
        help="all findings, however many, as Parquet files that tasks write there: s3://..., "
        "file:///...",
    )
    parser.add_argument(
        "--stopped",
        action="store_true",
        help="no process has the store open: its newest snapshots are the last word, and no owner "
        "is asked",
    )
    parser.add_argument(
        "--max-concurrent-objects",
        type=int,
        default=OBJECTS_AT_ONCE,
        metavar="N",
        help="inspected at once by a task (default %(default)s)",
    )
    parser.add_argument(
        "--max-concurrent-listings",
        type=int,
        default=LISTINGS_AT_ONCE,
        metavar="N",
        help="shards listed at once by a task (default %(default)s)",
    )
    parser.add_argument(
        "--tasks",
        type=int,
        metavar="N",
        help="of each query, 1 to 256 (default by the store's size)",
    )
    parser.add_argument(
        "--run-id", metavar="HEX", help="the run's name in mailboxes and findings, 16 hex digits"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb; its exit code.

    Raises what `reconcile` raises that is no fault of the place or of a listing.
    """
    options = _options(arguments)
    if arguments.report is not None:
        place = Path(checked_folder(arguments.report, "--report")).absolute()
        check_findings_url(place.as_uri(), arguments.tier2_url, "report")
    if arguments.findings is not None:
        check_findings_url(arguments.findings, arguments.tier2_url)
    # A usage error costs no session.
    ReconcileOptions(older_than_s=parse_age(arguments.older_than), **options)
    from pyspark.errors import PySparkException  # noqa: PLC0415 - --help costs nothing

    from tier2.spark.common.progress import Progress  # noqa: PLC0415
    from tier2.spark.common.session import is_here, spark_session  # noqa: PLC0415
    from tier2.spark.reconcile.inventory_rows import InventoryError  # noqa: PLC0415
    from tier2.spark.reconcile.job import reconcile  # noqa: PLC0415
    from tier2.spark.reconcile.report_files import parts_folder  # noqa: PLC0415

    spark = spark_session("segmentstore reconcile")
    with ExitStack() as made:
        parts: Path | None = None
        if arguments.report is not None and arguments.findings is None and is_here(spark):
            parts = made.enter_context(parts_folder(arguments.report))
            options["findings_url"] = parts.as_uri()
        try:
            with Progress(spark, "reconcile"):
                result = reconcile(
                    spark,
                    arguments.tier2_url,
                    older_than=arguments.older_than,
                    listing=arguments.listing,
                    **options,
                )
        except (CatalogFormatError, InventoryError) as error:
            return _undecided(str(error))
        except PySparkException as error:
            return _undecided(_cause(str(error)))
        return _show(arguments, result, parts)


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "allow_short_retention": arguments.allow_short_retention,
        "check": arguments.check,
        # A deletion needs an owner to answer, though it be one for the time of the job
        # (segmentstore spark).
        "snapshots": "newest" if arguments.stopped and not arguments.execute else "ask",
        "timeout_s": arguments.timeout,
        "delete_orphans": arguments.delete_orphans,
        "execute": arguments.execute,
        "max_concurrent_objects": arguments.max_concurrent_objects,
        "max_concurrent_listings": arguments.max_concurrent_listings,
        "tasks": arguments.tasks,
        "prefix_mismatch_mode": arguments.prefix_mismatch_mode,
        "store_id": arguments.store_id,
        # Of a store that was named by its folder (segmentstore spark).
        "store_folder": getattr(arguments, "store_folder", None),
        "findings_url": arguments.findings,
        "run_id": arguments.run_id,
    }


def _show(arguments: argparse.Namespace, result: ReconcileResult, parts: Path | None) -> int:
    """`parts`: where tasks have written all findings for the report."""
    from tier2.spark.reconcile.report import summary_json, summary_text  # noqa: PLC0415
    from tier2.spark.reconcile.report_files import FINDINGS_FILE, write_report  # noqa: PLC0415

    summary = result.summary
    if parts is not None:
        summary = replace(summary, all_findings=str(Path(arguments.report) / FINDINGS_FILE))
    document = summary_json(summary, result.condemned)
    if arguments.json:
        print(json.dumps(document, indent=2))
    else:
        print(summary_text(summary, result.condemned))
    if arguments.report is not None:
        try:
            files = None if parts is None else sorted((parts / summary.run_id).glob("*.parquet"))
            write_report(arguments.report, result.table, document, files)
        except OSError as error:
            raise ConfigError("report", f"{arguments.report} cannot be written: {error}") from error
    return int(result.verdict)


def _undecided(reason: str) -> int:
    sys.stderr.write(f"undecided: {visible(reason)}\n")
    return Exit.UNDECIDED


def _cause(text: str) -> str:
    """What went wrong in a task: the last line of its traceback, or the first of the message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [
        line
        for line in lines
        if line.partition(":")[0].rpartition(".")[2].endswith(("Error", "Exception"))
    ]
    return (errors or lines or ["the query failed"])[-1 if errors else 0]
