"""Mutants of the mailbox (DESIGN 4.3): an owner that believes what jobs claim."""

from __future__ import annotations

from typing import Final

from recovery.harness.mutants.mutant import Edit, Hunt, Mutant

_KEEPER: Final = "storagewriter.request_processor:RequestProcessor"
_PROPOSED: Final = Hunt(
    workload="compaction",
    settings={
        "mailbox_poll_interval_s": 0.5,
        "flush_bytes": 60,
        "flush_age_s": 0.1,
        "object_bytes": 200,
        "consolidation": False,
        "tail_bytes_max": 64,
        "cache_bytes_max": 4000,
    },
    process_runs=3,
    cycles=({"ending": "kill", "operations": 120, "dies_at": None},),
)

MAILBOX: Final = (
    Mutant(
        "proposal-believed",
        "4.3 An object says by itself whose bytes it holds, and is checked.",
        "The headers in a proposed object are not read: it is taken for what the "
        "proposal says it is.",
        (
            Edit(
                "storagewriter.proposal_headers:check_headers",
                "windows = plan_windows(",
                "return\nwindows = plan_windows(",
            ),
        ),
        _PROPOSED,
    ),
    Mutant(
        "cover-not-compared",
        "4.3 The log is the only authority: a replacement holds exactly the bytes of "
        "what it replaces.",
        "There is no check whether new chunks cover just what the old ones did.",
        (
            Edit(
                "storagewriter.proposal_rules:_fault_of",
                "segment_id, old, new = replacement",
                "return None\nsegment_id, old, new = replacement",
            ),
        ),
        _PROPOSED,
    ),
    Mutant(
        "any-object-condemned",
        "4.3 Nothing is deleted before no metadata and no running compaction can want it.",
        "What a job asks to be deleted is deleted at once, without a check of the metadata.",
        (
            Edit(
                "storagewriter.orphan_requests:OrphanRequests.mark",
                "names = list(dict.fromkeys(request.names))",
                "names = list(dict.fromkeys(request.names))\nfor name in names:\n    "
                "await self._storage.delete(name)",
            ),
        ),
        _PROPOSED,
    ),
)
