"""The verb `archive`: what spark-submit needs, built from the packages that run here."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tier2.spark.common.archive import (
    LAUNCHER_NAME,
    REQUIRED_ON_EXECUTORS,
    build_archive,
    write_launcher,
)
from tier2.spark.common.command_options import Exit

if TYPE_CHECKING:
    # In argparse there is no public name for it.
    Subparsers = argparse._SubParsersAction[Any]  # noqa: SLF001


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = subparsers.add_parser(
        "archive",
        help="build the archive for spark-submit --py-files",
        description="Write the packages that tasks load into a zip, and beside it the program that "
        "spark-submit runs.",
    )
    parser.add_argument("out", type=Path, metavar="OUT.zip", help="replaced if it is there")


def run(arguments: argparse.Namespace) -> int:
    """Build it and say how it is used."""
    archive = build_archive(arguments.out)
    launcher = write_launcher(arguments.out.parent / LAUNCHER_NAME)
    print(f"executors need: {', '.join(REQUIRED_ON_EXECUTORS)}")
    print(f"spark-submit --py-files {archive} {launcher} VERB TIER2_URL ...")
    return Exit.NOTHING
