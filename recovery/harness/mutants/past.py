"""Mutants of the state at a moment (DESIGN 4.1, 4.2): where replay ends, which bytes it has, and
what the log and the archive must have together.
"""

from __future__ import annotations

from typing import Final

from recovery.harness.mutants.mutant import Edit, Hunt, Mutant
from recovery.harness.simulation.store_world import ARCHIVE

_HISTORY: Final = "recovery.archived_history:ArchivedHistory"
_COVER: Final = "recovery.past_chunks:PastChunks.cover"
_RULE: Final = "4.1 Every field has one writer: from operations, live and in replay alike."
_BYTES: Final = "4.1 Bytes of a segment at an offset never change."
_LONG_LOG: Final = {"checkpoint_operations": 200}
_ARCHIVED: Final = {
    "archive": ARCHIVE,
    "offload_above_bytes": 0,
    "archive_deletion_lag_s": 0.0,
}

PAST: Final = (
    Mutant(
        "restored-one-operation-too-many",
        _RULE,
        "The state at an operation has the next one in it.",
        (
            Edit(
                f"{_HISTORY}._replay",
                "if operation.sequence_number == wanted:",
                "if wanted is not None and operation.sequence_number > wanted:",
            ),
            Edit(
                "recovery.moments:is_behind",
                "sequence_number > moment.sequence_number",
                "sequence_number > moment.sequence_number + 1",
            ),
        ),
        Hunt(settings=_LONG_LOG),
    ),
    Mutant(
        "restored-without-attributes",
        _RULE,
        "Updates of attributes alone are not replayed up to a moment.",
        (
            Edit(
                f"{_HISTORY}._replay",
                "replay.apply_operation(operation, past.size, past.address, past.address)",
                "if not hasattr(operation, 'updates') or hasattr(operation, 'name'):\n"
                "    replay.apply_operation(operation, past.size, past.address, past.address)",
            ),
        ),
        Hunt(workload="attributes", settings=_LONG_LOG),
    ),
    Mutant(
        "restored-beyond-the-length",
        _BYTES,
        "A segment of a moment has the bytes that its chunks got later.",
        (Edit(_COVER, "end = min(chunk.end_offset, segment.length)", "end = chunk.end_offset"),),
        Hunt(settings=_LONG_LOG),
    ),
    Mutant(
        "restored-below-the-start",
        _BYTES,
        "A segment of a moment has bytes that were truncated before it.",
        (Edit(_COVER, "start = max(chunk.start_offset, position)", "start = chunk.start_offset"),),
        Hunt(settings=_LONG_LOG),
    ),
    Mutant(
        "truncated-beyond-the-archive",
        "4.2 Nothing is truncated before Tier 2, and an archive that there is, has it.",
        "The log is truncated inside of the part that takes frames, which no archive has.",
        (
            Edit(
                "segmentstore.container.archive_hold:ArchiveHold.truncation_bound",
                "return None if short else LogAddress(end + 1)",
                "return None",
            ),
        ),
        Hunt(workload="default", settings=_ARCHIVED),
    ),
    Mutant(
        "restored-without-the-last-part",
        _RULE,
        "The newest archived part is not read.",
        (
            Edit(
                f"{_HISTORY}._frames",
                "range(start.place, parts.kept.stop)",
                "range(start.place, parts.kept.stop - 1)",
            ),
        ),
        Hunt(workload="default", settings=_ARCHIVED),
    ),
    Mutant(
        "source-of-a-merge-not-searched",
        _BYTES,
        "A stretch of the history in which a merge was met is not searched again for its source.",
        (
            Edit(
                "recovery.history_search:HistorySearch._search",
                "while self._wanted and await self._pass_over(first, last):\n    pass",
                "await self._pass_over(first, last)",
            ),
        ),
        Hunt(workload="default", settings=_ARCHIVED),
    ),
    Mutant(
        "stretches-with-a-gap",
        _BYTES,
        "Between two parts of the history that are searched one operation is left out.",
        (
            Edit(
                f"{_HISTORY}.windows_before",
                "end = each.first_sequence - 1",
                "end = each.first_sequence - 2",
            ),
        ),
        Hunt(workload="default", settings=_ARCHIVED),
    ),
)
