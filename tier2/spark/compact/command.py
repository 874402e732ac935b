"""The verb `compact`: its arguments, and what it prints. docs/compaction.md is its page."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from segmentstore.contracts.byte_sizes import MIB
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.visible import visible
from tier2.catalog.catalog_format_error import CatalogFormatError
from tier2.spark.common.command_options import Exit, add_common_options, seconds
from tier2.spark.compact.options import (
    COMPRESSIONS,
    JOB_ORDERS,
    KEEP,
    TARGET_BYTES_MAX,
    TARGET_BYTES_MIN,
    CompactionOptions,
)
from tier2.spark.reconcile.options import parse_age
from tier2.unique_ids import new_job_id

if TYPE_CHECKING:
    from tier2.spark.compact.job import CompactionPlanned

_DEFAULTS = CompactionOptions()


def add_parser(subparsers: Any) -> None:
    """Add the verb to the parser of all verbs."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "compact",
        help="rewrite what is fragmented or mostly dead",
        description="Join runs of small chunks, and empty objects that are mostly dead, into large "
        "objects in the order of "
        "segments. The owners of the containers commit what was made, or refuse it; they "
        "alone delete what is old then.",
        epilog="Exit codes: 0 all committed, nothing to do, or changed by the store or another "
        "job meanwhile (counted), 1 "
        "some was refused or failed, 2 undecided: an owner did not answer (run "
        "again with --job-id to learn the outcome).",
    )
    add_common_options(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="show the plan and what it would gain, change nothing",
    )
    parser.add_argument(
        "--where-segment",
        metavar="PATTERN",
        help="only segments of such names: *, ? and [...] as in a shell",
    )
    parser.add_argument(
        "--where-container", metavar="N,...", type=_containers, help="only these containers"
    )
    parser.add_argument(
        "--older-than",
        default="1 hour",
        metavar="AGE",
        help="only objects that were so old when the snapshot was taken (default %(default)s)",
    )
    _add_sizes(parser)
    parser.add_argument(
        "--commit-timeout",
        type=seconds,
        metavar="SECONDS",
        help="how long owners may take to commit what is proposed (default as --timeout)",
    )
    parser.add_argument(
        "--verify-copies", action="store_true", help="read also what the store copies by itself"
    )
    parser.add_argument(
        "--compression",
        choices=COMPRESSIONS,
        default=KEEP,
        help="of new blocks (default %(default)s)",
    )
    parser.add_argument(
        "--stopped",
        action="store_true",
        help="no process has the store open: take its newest snapshots",
    )
    parser.add_argument(
        "--job-id", metavar="HEX", help="go on with this job, or name a new one; 16 hex digits"
    )
    parser.set_defaults(run=run)


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target-file-size-bytes",
        type=int,
        default=_DEFAULTS.target_file_size_bytes,
        metavar="N",
        help=f"of new objects, {TARGET_BYTES_MIN // MIB} to {TARGET_BYTES_MAX // MIB} MiB "
        "(default %(default)s)",
    )
    parser.add_argument(
        "--min-file-size-bytes", type=int, metavar="N", help="what is less is small (default 75 %%)"
    )
    parser.add_argument(
        "--max-file-size-bytes", type=int, metavar="N", help="the most (default 180 %%)"
    )
    parser.add_argument(
        "--max-file-group-size-bytes",
        type=int,
        metavar="N",
        help="of a group, which becomes one object",
    )
    parser.add_argument(
        "--min-input-files",
        type=int,
        default=_DEFAULTS.min_input_files,
        metavar="N",
        help="so many small stretches beside one another are worth joining (default %(default)s)",
    )
    parser.add_argument(
        "--delete-ratio-threshold",
        type=float,
        default=_DEFAULTS.delete_ratio_threshold,
        metavar="PART",
        help="an object that is dead to this part is emptied (default %(default)s)",
    )
    parser.add_argument(
        "--max-concurrent-file-group-rewrites",
        type=int,
        default=_DEFAULTS.max_concurrent_file_group_rewrites,
        metavar="N",
        help="groups worked at at once, where Spark has so many cores (default %(default)s)",
    )
    parser.add_argument(
        "--max-file-groups",
        type=int,
        default=_DEFAULTS.max_file_groups,
        metavar="N",
        help="groups of this run; a later run finds the others (default %(default)s)",
    )
    parser.add_argument(
        "--rewrite-job-order",
        choices=JOB_ORDERS,
        default="none",
        help="of groups (default %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the verb; its exit code. Raises what `compact` raises that is no fault of the place."""
    options = _options(arguments)
    from pyspark.errors import PySparkException  # noqa: PLC0415 - --help costs nothing

    from tier2.spark.compact.job import compact, plan_compaction  # noqa: PLC0415

    try:
        from tier2.spark.common.progress import Progress  # noqa: PLC0415
        from tier2.spark.common.session import spark_session  # noqa: PLC0415

        if arguments.dry_run:
            planned = plan_compaction(
                arguments.tier2_url, spark=lambda: spark_session("segmentstore compact"), **options
            )
            return _show(arguments, planned)

        # Said at once: the job can be continued with it after a cut.
        sys.stderr.write(f"job {options['job_id']}\n")
        spark = spark_session("segmentstore compact")
        with Progress(spark, "compact"):
            result = compact(spark, arguments.tier2_url, **options)
    except (CatalogFormatError, PySparkException) as error:
        sys.stderr.write(f"undecided: {visible(' '.join(str(error).split()))}\n")
        return Exit.UNDECIDED
    return _show(arguments, result)


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    target = arguments.target_file_size_bytes
    if not TARGET_BYTES_MIN <= target <= TARGET_BYTES_MAX:
        raise ConfigError(
            "target-file-size-bytes", f"{target} is not {TARGET_BYTES_MIN} to {TARGET_BYTES_MAX}"
        )
    chosen = {
        "target_file_size_bytes": target,
        "min_file_size_bytes": arguments.min_file_size_bytes,
        "max_file_size_bytes": arguments.max_file_size_bytes,
        "max_file_group_size_bytes": arguments.max_file_group_size_bytes,
        "min_input_files": arguments.min_input_files,
        "delete_ratio_threshold": arguments.delete_ratio_threshold,
        "max_concurrent_file_group_rewrites": arguments.max_concurrent_file_group_rewrites,
        "max_file_groups": arguments.max_file_groups,
        "rewrite_job_order": arguments.rewrite_job_order,
        "where_segment": arguments.where_segment,
        "where_container": arguments.where_container,
        "older_than_ms": int(1000 * parse_age(arguments.older_than)),
        "compression": arguments.compression,
    }
    # A usage error costs no session.
    CompactionOptions(**chosen)
    return {
        **chosen,
        "job_id": arguments.job_id or new_job_id(Runtime().random),
        "snapshots": "newest" if arguments.stopped else "ask",
        "timeout_s": arguments.timeout,
        "commit_timeout_s": arguments.commit_timeout,
        "store_id": arguments.store_id,
        # Of a store that was named by its folder (segmentstore spark).
        "store_folder": getattr(arguments, "store_folder", None),
        "verify_copies": arguments.verify_copies,
    }


def _show(arguments: argparse.Namespace, result: CompactionPlanned) -> int:
    from tier2.spark.compact.report import summary_json, summary_text  # noqa: PLC0415

    if arguments.json:
        print(json.dumps(summary_json(result.summary, result.rows), indent=2))
    else:
        print(summary_text(result.summary, result.rows))
    return int(result.summary.verdict)


def _containers(text: str) -> frozenset[int]:
    try:
        return frozenset(int(each) for each in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers") from None
