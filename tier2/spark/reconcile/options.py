"""The options of reconciliation, checked before anything is read.

Pure, and without pyspark: `--help` costs nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, get_args

from segmentstore.contracts.errors import ConfigError
from tier2.spark.common.command_options import ANSWER_TIMEOUT_S
from tier2.unique_ids import is_job_id

Check = Literal["none", "headers", "bodies"]
"""Of the objects themselves: nothing, their blocks' headers, or every byte."""
HowSnapshots = Literal["ask", "newest"]
"""Owners are asked for a snapshot before and after the listing, or the newest ones are the last
word.
"""
PrefixMismatch = Literal["ERROR", "IGNORE"]
"""What becomes of keys of a prepared listing that do not begin with the store's prefix."""

CHECKS: Final = get_args(Check)
OLDER_THAN_S: Final = 3 * 24 * 3600.0
OLDER_THAN_S_MIN: Final = 24 * 3600.0
"""A proposal may be so old: below this an object of a job that still waits would be called an
orphan.
"""
OBJECTS_AT_ONCE: Final = 4
LISTINGS_AT_ONCE: Final = 8

_UNITS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 24 * 3600, "week": 7 * 24 * 3600}
_SHORT: Final = {"s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week"}
_AGE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOptions:
    """The options of one run. Raises ConfigError, which names the option."""

    older_than_s: float = OLDER_THAN_S
    """An orphan is at least so old, by the store's own word."""
    allow_short_retention: bool = False
    """Take an age below a day: only where no job and no stalled writer can be at work."""
    check: Check = "none"
    snapshots: HowSnapshots = "ask"
    timeout_s: float = ANSWER_TIMEOUT_S
    """How long each asking of the owners may take."""
    delete_orphans: bool = False
    """Say what would be marked for deletion; with `execute`, ask the owners to."""
    execute: bool = False
    max_concurrent_objects: int = OBJECTS_AT_ONCE
    """Inspected at once by each task."""
    max_concurrent_listings: int = LISTINGS_AT_ONCE
    """Shards listed at once by each task."""
    tasks: int | None = None
    """Of each pass, 1 to 256; None: by the number of objects."""
    prefix_mismatch_mode: PrefixMismatch = "ERROR"
    store_id: str | None = None
    """Of which store, where several share the place."""
    store_folder: str | None = None
    """Of the store, if it is on this machine: its owner is notified there of what is asked, and
    does not have to find it.
    """
    findings_url: str | None = None
    """Where tasks write all findings, as Parquet files in a folder named by the run; a place that
    all of them reach.
    """
    run_id: str | None = None
    """16 lower hex digits, the job's name in mailboxes; None: drawn."""

    def __post_init__(self) -> None:
        if self.older_than_s < 0:
            raise ConfigError("older-than", f"{self.older_than_s:g} s is no age")
        if self.older_than_s < OLDER_THAN_S_MIN and not self.allow_short_retention:
            raise ConfigError(
                "older-than",
                f"{self.older_than_s:g} s is less than a day: what jobs and writers are "
                "about to use would count as "
                "orphaned; --allow-short-retention takes it where none can be at work",
            )
        if self.check not in CHECKS:
            raise ConfigError("check", f"{self.check!r} is not one of {', '.join(CHECKS)}")
        if self.snapshots not in get_args(HowSnapshots):
            raise ConfigError(
                "snapshots", f"{self.snapshots!r} is not one of {', '.join(get_args(HowSnapshots))}"
            )
        if self.prefix_mismatch_mode not in get_args(PrefixMismatch):
            raise ConfigError(
                "prefix-mismatch-mode",
                f"{self.prefix_mismatch_mode!r} is not one of "
                f"{', '.join(get_args(PrefixMismatch))}",
            )
        if self.execute and not self.delete_orphans:
            raise ConfigError("execute", "there is nothing to execute without --delete-orphans")
        if self.execute and self.snapshots != "ask":
            raise ConfigError(
                "execute",
                "only owners that answer can be asked to delete: the store has to be open",
            )
        if self.max_concurrent_objects < 1 or self.max_concurrent_listings < 1:
            raise ConfigError(
                "max-concurrent-objects", "at least one at once, of objects and of listings"
            )
        if self.tasks is not None and not 1 <= self.tasks <= 256:
            raise ConfigError("tasks", f"{self.tasks} is not 1 to 256")
        if self.run_id is not None and not is_job_id(self.run_id):
            raise ConfigError("run-id", f"{self.run_id!r} is not 16 lower hex digits")


def parse_age(age: str | float) -> float:
    """Seconds: of a number, or of a text as `3 days`, `36 h`, `90 minutes`, `86400`.

    Raises ConfigError("older-than", ...).
    """
    if not isinstance(age, str):
        return float(age)
    match = _AGE.fullmatch(age.lower())
    unit = None if match is None else match[2]
    if unit is not None:
        unit = _SHORT.get(unit, unit.removesuffix("s")) if unit else "second"
    if match is None or unit not in _UNITS:
        raise ConfigError(
            "older-than",
            f"{age!r} is no age: a number and second, minute, hour, day or week, as in '3 days'",
        )
    return float(match[1]) * _UNITS[unit]
