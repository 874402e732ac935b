"""Which objects and uploads in Tier 2 no owner will ever want: distinguished by their names and
the metadata alone.

An orphan is an object whose upload ended and whose operation never committed: its owner died, was
fenced, or a reply came too late. Rules (DESIGN 4.3):

- only names that this program makes are checked; what does not match in every digit is not ours;
- only what carries the tag of this very store is ever an orphan: stores may share a place without
  knowing. Names that an older version made have no tag, so of those nothing is known;
- an epoch below the running one is dead: its owner can commit nothing more, so an object that the
  metadata do not know will never be known;
- in the running epoch only this very process creates objects. It knows its own uploads by name, and
  any other object stays suspect until it was seen twice, a deletion lag apart;
- an epoch above ours means that we are the stale ones, and see metadata that are not the newest:
  hands off everything;
- compaction is the work of jobs that outlive an epoch. Their objects are ignored, and their uploads
  until they are so old that the resulting object would be refused for its age.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

import enum
from collections.abc import Container
from typing import Final

from segmentstore.contracts.metadata import ContainerMetadata
from tier2.object_names import (
    CheckpointName,
    MetadataFileName,
    MetadataManifestName,
    ObjectName,
    ProbeName,
    SnapshotFileName,
    SnapshotName,
    classify_name,
    parse_object_name,
)
from tier2.object_storage import StoredObject, UnfinishedUpload

UPLOAD_AGE_MS = 24 * 3600 * 1000
"""An upload in parts of the running epoch that this process does not know of is given up after a
day, and so is a job's of any epoch. Its object would be as old as its beginning, and no proposal of
it would be accepted.
"""


_OF_EPOCHS: Final = (
    ObjectName,
    CheckpointName,
    SnapshotName,
    MetadataManifestName,
    MetadataFileName,
)
"""Names that say which owner meant to put the object."""


class OrphanVerdict(enum.Enum):
    """What an object is to one container."""

    NOT_OURS = "not ours"
    KNOWN = "known"
    LEFT_ALONE = "left alone"
    """Under way, or the work of a job."""
    ORPHAN = "orphan"
    SUSPECT = "suspect"
    """Of the running epoch, and in no record of its owner."""
    UNKNOWN_OWNER = "unknown owner"
    """Not in the log, and without the tag of this store: another store's, or made by an older
    version.
    """
    NEWER = "newer"
    """Of an epoch that began after ours."""


def classify_object(
    name: str, metadata: ContainerMetadata, epoch: int, in_flight: Container[str], tag: bytes
) -> OrphanVerdict:
    """What the object is to the container with these committed metadata, in its running epoch.

    `tag` is the store's. O(1).
    """
    parts = parse_object_name(name)
    if parts is None or parts.container_id != metadata.container_id:
        return OrphanVerdict.NOT_OURS
    is_known = name in metadata.objects or name in metadata.garbage
    if not (is_known or parts.unique_id.startswith(tag)):
        return OrphanVerdict.UNKNOWN_OWNER
    if parts.epoch > epoch:
        return OrphanVerdict.NEWER
    if is_known:
        return OrphanVerdict.KNOWN
    if parts.kind == "compaction" or name in in_flight:
        return OrphanVerdict.LEFT_ALONE
    return OrphanVerdict.ORPHAN if parts.epoch < epoch else OrphanVerdict.SUSPECT


def is_left_over(probe: StoredObject, now_ms: int) -> bool:
    """Whether a probe is so old that its owner, which deletes it within seconds, cannot have done
    so.
    """
    is_probe = isinstance(classify_name(probe.name), ProbeName)
    return is_probe and now_ms - probe.modified_ms > UPLOAD_AGE_MS


def is_abandoned(
    upload: UnfinishedUpload,
    container_id: int,
    epoch: int,
    in_flight: Container[str],
    now_ms: int,
    tag: bytes,
) -> bool:
    """Whether this is an upload in parts of the store of this tag that no owner will ever
    finish.
    """
    old = now_ms - upload.begun_ms > UPLOAD_AGE_MS
    named = classify_name(upload.name)
    if isinstance(named, ProbeName):
        return old and container_id == 0
    parts = named.snapshot if isinstance(named, SnapshotFileName) else named
    if not isinstance(parts, _OF_EPOCHS):
        return False
    if parts.container_id != container_id or not parts.unique_id.startswith(tag):
        return False
    if isinstance(parts, ObjectName) and parts.kind == "compaction":
        return old
    return parts.epoch < epoch or (parts.epoch == epoch and old and upload.name not in in_flight)
