"""All mutants, and what is said of the peers' bugs that cannot be made here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from recovery.harness.mutants.archive import ARCHIVE
from recovery.harness.mutants.bookkeeper import BOOKKEEPER
from recovery.harness.mutants.cluster import CLUSTERS
from recovery.harness.mutants.connect import CONNECT
from recovery.harness.mutants.consolidation import CONSOLIDATION
from recovery.harness.mutants.deletion import DELETION
from recovery.harness.mutants.full_disk import FULL_DISK
from recovery.harness.mutants.idle_segments import IDLE_SEGMENTS
from recovery.harness.mutants.kernel_syncs import KERNEL_SYNCS
from recovery.harness.mutants.log import LOG
from recovery.harness.mutants.mailbox import MAILBOX
from recovery.harness.mutants.metadata import METADATA
from recovery.harness.mutants.mutant import Mutant
from recovery.harness.mutants.outcomes import OUTCOMES
from recovery.harness.mutants.owners import OWNERS
from recovery.harness.mutants.partial_segments import PARTIAL_SEGMENTS
from recovery.harness.mutants.past import PAST
from recovery.harness.mutants.readindex import READINDEX
from recovery.harness.mutants.running import RUNNING
from recovery.harness.mutants.shared_folders import SHARED_FOLDERS
from recovery.harness.mutants.snapshots import SNAPSHOTS
from recovery.harness.mutants.tier2 import TIER2
from recovery.harness.mutants.wire import WIRE

MUTANTS: Final[tuple[Mutant, ...]] = (
    *METADATA,
    *OUTCOMES,
    *LOG,
    *KERNEL_SYNCS,
    *OWNERS,
    *BOOKKEEPER,
    *TIER2,
    *DELETION,
    *CONSOLIDATION,
    *MAILBOX,
    *SHARED_FOLDERS,
    *SNAPSHOTS,
    *ARCHIVE,
    *IDLE_SEGMENTS,
    *PARTIAL_SEGMENTS,
    *PAST,
    *READINDEX,
    *RUNNING,
    *FULL_DISK,
    *WIRE,
    *CONNECT,
    *CLUSTERS,
)
"""In the order of DESIGN 4. Names are unique."""

NOT_HERE: Final[Mapping[str, str]] = {
    "B4": "a takeover races with the owner's truncations alone, one in megabytes of log: no "
    "write changes the state record",
    "B5": "offsets are Python's integers, and 64 bits wide in every format; the one 32-bit "
    "number, a place in a log file, "
    "is bounded when the log is opened",
    "B11": "what Tier 2 holds is part of the container's own checkpoints: no segment must be "
    "recovered before another",
    "B20": "the simulated world has no parts: an object is put by one request there. Uploads in "
    "parts, and what an abort that "
    "fails leaves of them, are tried against an S3 server: "
    "tests/tier2/test_s3_doubt.py::test_an_abort_that_fails_leaves_what_a_listing_finds; "
    "what takes it away later: "
    "tests/storagewriter/test_orphan_sweeper.py"
    "::test_uploads_of_dead_owners_are_aborted_once_a_sweep",
}
"""Peers' bugs that no mutant makes again, and why: they cannot exist in the engine, or not in the
simulated world.
"""
