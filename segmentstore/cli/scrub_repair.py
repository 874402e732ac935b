"""`segmentstore scrub --repair`: damaged blocks written anew from the log and its archive."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from segmentstore.cli import output
from segmentstore.cli.stores import run
from segmentstore.contracts.byte_sizes import format_size
from segmentstore.contracts.runtime import Runtime

if TYPE_CHECKING:
    from recovery.repair_run import RepairReport
    from recovery.scrub_state import ScrubPass
    from segmentstore.contracts.findings import Finding

TIMEOUT_S: Final = 240.0
"""For the store to be opened, and to answer."""
_KINDS: Final = frozenset(("block", "object-missing", "object-size"))
_PLACE: Final = "object "


def repair_damage(location: str, findings: Sequence[Finding], *, dry_run: bool) -> RepairReport:
    """Repair what a scrub found, or say what could be; no process has the store open.

    Raises TierUnavailableError, DataCorruptionError.
    """
    names = sorted(
        {
            finding.place.removeprefix(_PLACE).split(" ", 1)[0]
            for finding in findings
            if finding.kind in _KINDS
        }
    )
    return run(_repair(location, names, dry_run=dry_run))


def harmful_left(found: ScrubPass, repaired: RepairReport | None) -> int:
    """How many harmful findings stand behind a repair; all of them where something was not
    repaired.
    """
    if repaired is None or not repaired.is_whole:
        return found.harmful
    repairable = [each for each in found.findings if each.kind in _KINDS]
    return found.harmful - len(repairable)


async def _repair(location: str, names: Sequence[str], *, dry_run: bool) -> RepairReport:
    # Not at the top: the other commands do not pay for it.
    from recovery.repair_run import RepairReport, RepairSource, repair  # noqa: PLC0415
    from segmentstore.cli.temporary_owner import TemporaryOwner  # noqa: PLC0415
    from segmentstore.past_store import open_past  # noqa: PLC0415
    from tier2.locations import open_object_storage  # noqa: PLC0415

    if not names:
        return RepairReport(dry_run=dry_run)
    runtime = Runtime()
    async with await open_past(location, os.environ, runtime) as past:
        sources = [
            RepairSource(container, epoch)
            for container, epoch in zip(past.source.containers, past.epochs, strict=True)
        ]
        url = past.source.storage.url
        storage = open_object_storage(url, runtime)
        try:
            with ExitStack() as owner:
                if not dry_run:
                    owner.enter_context(TemporaryOwner(location, url, range(len(sources))))
                return await repair(
                    sources,
                    names,
                    storage,
                    past.source.store_id,
                    runtime,
                    dry_run=dry_run,
                    timeout_s=TIMEOUT_S,
                )
        finally:
            await storage.close()


def show_repair(report: RepairReport) -> None:
    """For people."""
    out = output.out()
    for each in report.repairable:
        chunk = each.chunk
        can = "can be written anew" if report.dry_run else "was written anew"
        out.print(
            f"segment {each.segment!r}, offsets {chunk.start_offset:,} to {chunk.end_offset:,}, "
            f"{format_size(chunk.length)} {can}: {each.reason}"
        )
    for lacking in report.lacking:
        gaps = ", ".join(f"{gap.start_offset:,} to {gap.end_offset:,}" for gap in lacking.gaps)
        damaged = lacking.damaged
        out.print(
            f"segment {damaged.segment!r}: {damaged.reason}; no append that is kept has {gaps}"
        )
    for damage in report.damage:
        out.print(f"damaged: {damage}")
    for made in report.objects:
        out.print(
            f"object {made.name}: {made.chunks:,} blocks, {format_size(made.size)}: "
            f"{made.verdict} {made.reason}".rstrip()
        )
    for finding in report.findings:
        out.print(f"{finding.severity.value} {finding}")
    if report.dry_run and report.repairable:
        out.print("nothing was written: --repair --apply does it")
