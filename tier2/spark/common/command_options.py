"""What all verbs of the Spark jobs have in common: arguments, and what their exit codes mean.

Rules of this file: pure, and without pyspark, so that `--help` costs nothing.
"""

from __future__ import annotations

import argparse
import enum
import uuid
from typing import Final

from segmentstore.contracts.errors import ConfigError
from tier2.credentials import refuse_secrets

ANSWER_TIMEOUT_S: Final = 120.0
"""Four times as often as an idle owner polls its mailbox by default."""


class Exit(enum.IntEnum):
    """How a verb ended.

    Other than the codes of the rest of the command line: these are for schedulers of jobs.
    """

    NOTHING = 0
    """Checked everything: nothing found, or all of it done."""
    FINDINGS = 1
    """Something was found, or a part was refused or failed: the user should check."""
    UNDECIDED = 2
    """Not everything could be checked, or an answer did not come.

    Also: wrong arguments, and whatever broke.
    """
    INTERRUPTED = 130
    """Ended by Ctrl-C, as shells have it (128 + SIGINT)."""


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """`tier2_url`, `json`, `timeout` (seconds) and `store_id`: every verb that works on a store has
    them, by these names.
    """
    parser.add_argument(
        "tier2_url",
        type=_without_secrets,
        metavar="TIER2_URL",
        help="where the store's objects are, e.g. s3://bucket/prefix or file:///folder",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="one JSON document on standard output, nothing else there",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=ANSWER_TIMEOUT_S,
        metavar="SECONDS",
        help="how long owners of containers may take to answer (default %(default).0f)",
    )
    parser.add_argument(
        "--store-id",
        type=_store_id,
        metavar="UUID",
        help="which store, where several share the place",
    )


def _without_secrets(url: str) -> str:
    """A URL that all users that list processes may see."""
    try:
        refuse_secrets(url)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(error.reason) from None
    return url


def checked_store_id(text: str, setting: str = "store-id") -> str:
    """The id of a store, however its UUID was written, as snapshots and messages have it.

    Raises ConfigError, which names `setting`.
    """
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise ConfigError(setting, f"{text!r} is no id of a store, which is a UUID") from None


def _store_id(text: str) -> str:
    try:
        return checked_store_id(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(error.reason) from None


def seconds(text: str) -> float:
    """An argument that is a number of seconds: finite and not negative."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value
