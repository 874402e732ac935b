"""The rows that carry reconciliation's work to its tasks, and what comes back. `scan_work` and
`verdict_work` have the functions that Spark runs over them.

Rules of the three:

- a row of work is whole: a task reads Tier 2 and needs nothing of the driver but its row and a
  `Site`;
- results are findings, and counts beside them, in rows of one schema: each pass is one query, and
  one action;
- storages are opened in the task and closed by it; nothing that has a thread or a socket is ever
  sent.

No pyspark: the functions take and give Arrow batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from tier2.spark.reconcile.findings import FINDINGS, StoreFacts
from tier2.spark.reconcile.orphan_requests import Asking

_SURVEYED: Final[list[pa.Field[Any]]] = [
    pa.field("first", pa.int64()),
    pa.field("end", pa.int64()),
    pa.field("before", pa.binary()),
    pa.field("listed", pa.binary()),
    pa.field("suspects", pa.int64()),
    pa.field("objects", pa.int64()),
    pa.field("listing", pa.int64()),
    pa.field("waiting", pa.string()),
    pa.field("absent", pa.binary()),
    pa.field("moved", pa.string()),
]
SURVEYED: Final = pa.schema(_SURVEYED)
"""Of shards [first, end), 0 to 0 for what is in none. The suspects as bytes, how many rows were
compared, and how many that wait for their deletion are no rows (`sample_waiting`), by container, as
JSON. More than SUSPECTS_HELD suspects are not there: `before` is null then, nothing of them waits,
and `moved` says which containers have moved on, and why. `absent` is `marks` of what was not
listed.
"""

SUSPECTS_HELD: Final = 1024
"""Of a range of shards so many suspects come to the driver, 200 bytes each."""

_WORK: Final[list[pa.Field[Any]]] = [
    pa.field("bin", pa.int32()),
    pa.field("item", pa.string()),
    pa.field("container_id", pa.int64()),
    pa.field("first", pa.int64()),
    pa.field("end", pa.int64()),
    pa.field("before", pa.binary()),
    pa.field("listed", pa.binary()),
    pa.field("names", pa.binary()),
]
WORK: Final = pa.schema(_WORK)
"""`judge` suspects of shards, `cover` a range of a container's chunks (number `first` of `end`),
`walk` a segment of a container (`first`). `look` into the objects of shards, MISSING names of some
that were not there, `folders` of the engine's own, `copies` of the metadata of containers [first,
end).
"""

RESULTS: Final = pa.schema([*FINDINGS, ("counter", pa.string()), ("count", pa.int64())])
"""A finding; or, with a counter, so many of something.

The counter MISSING names an object, the counter FOUND a class; ASKED and NOT_ASKED are those of
`orphan_requests`.
"""

FOUND: Final = "found"
"""The counter of a row that says how many findings of its kind, severity and container there are,
shown or not.
"""

MISSING: Final = "missing"
"""The counter of a row that names an object that was not there, and the item of a row of WORK that
asks for such objects again.
"""

MISSING_MARKS: Final = "missing_marks"
"""The counter of a row whose evidence are marks over snapshot B, of more than MISSING_SHOWN objects
that were missing.
"""
MISSING_SHOWN: Final = 64

_MAILBOXES: Final[list[pa.Field[Any]]] = [
    pa.field("bin", pa.int32()),
    pa.field("container_id", pa.int64()),
]
MAILBOXES: Final = pa.schema(_MAILBOXES)
"""Containers whose open proposals are read."""

BORDER: Final = "border"
"""The counter of a row whose evidence is a `coverage.Border`: at most two of a range."""

REST: Final = range(0)
"""The shards of what is in none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What every task of a run receives."""

    url: str = field(repr=False)
    run_id: str
    listings_at_once: int
    objects_at_once: int
    bodies: bool
    unresponsive: tuple[int, ...] = ()
    """Containers without a snapshot A: what is listed of them is passed over, and they are reported
    as a whole.
    """
    checks_objects: bool = False
    """Objects are inspected: what that shows of them no listing needs to show."""
    shown: int | None = None
    """Findings that a row of work hands on; None: all. All are counted."""
    asking: Asking | None = None
    """Owners are asked to delete the orphans that are found; None: none is asked."""
    findings_url: str = field(default="", repr=False)
    """Where each row of work writes all it found; empty: nowhere."""
    place: StoreFacts | None = None
    """Tags and time, for `moved_on`; None: owners were asked, and their snapshots are the last
    word.
    """
    confirms: bool = False
    """The listing is of another time: what it lacks is marked nowhere."""
    held: int = SUSPECTS_HELD
    missing_shown: int = MISSING_SHOWN
