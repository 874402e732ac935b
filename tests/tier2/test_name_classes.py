"""Every name is of one class, and all code that meets a name takes it for the same."""

from __future__ import annotations

import random

from hypothesis import given, settings

from recovery.consistency_check import Listing
from recovery.tier2_scan import Bucket
from segmentstore.contracts.metadata import ContainerMetadata
from storagewriter.orphan_rules import (
    UPLOAD_AGE_MS,
    OrphanVerdict,
    classify_object,
    is_abandoned,
    is_left_over,
)
from tests.tier2.any_names import NAMES, PARTS, name_of
from tier2.archive_places import ArchivedName, parse_archive_place
from tier2.object_names import (
    EPOCH_MAX,
    AnyName,
    CheckpointName,
    ForeignName,
    ObjectName,
    ProbeName,
    SnapshotFileName,
    check_object_name,
    classify_name,
    engine_folder,
    may_hold_ours,
    new_probe_name,
    parse_catalog_name,
    parse_checkpoint_name,
    parse_mailbox_name,
    parse_manifest_name,
    parse_marker_name,
    parse_metadata_file_name,
    parse_metadata_manifest_name,
    parse_object_name,
    parse_probe_name,
    parse_snapshot_file,
)
from tier2.object_storage import StoredObject, UnfinishedUpload

PARSERS = (
    parse_object_name,
    parse_checkpoint_name,
    parse_snapshot_file,
    parse_mailbox_name,
    parse_marker_name,
    parse_metadata_file_name,
    parse_metadata_manifest_name,
    parse_probe_name,
    lambda name: parse_archive_place(name) if engine_folder(name) is None else None,
)


@settings(deadline=None)
@given(PARTS)
def test_what_was_named_is_what_the_name_says(parts: AnyName) -> None:
    assert classify_name(check_object_name(name_of(parts))) == parts


@settings(deadline=None)
@given(NAMES)
def test_a_name_is_of_one_class_has_one_spelling_and_lies_where_ours_may_lie(name: str) -> None:
    parts = classify_name(name)
    assert [each for parse in PARSERS if (each := parse(name)) is not None] == (
        [] if isinstance(parts, ForeignName) else [parts]
    )
    if isinstance(parts, ForeignName):
        assert parts.folder == engine_folder(name)
        return
    assert name_of(parts) == name
    if isinstance(parts, ArchivedName):
        assert engine_folder(name) is None  # An archive is a place of its own, anywhere.
        return
    assert (engine_folder(name) is None) is isinstance(parts, ObjectName)
    folders = [name[: place + 1] for place, each in enumerate(name) if each == "/"]
    assert all(map(may_hold_ours, ["", *folders]))
    snapshot = parts.snapshot if isinstance(parts, SnapshotFileName) else None
    assert parse_catalog_name(name) == snapshot
    assert parse_manifest_name(name) == (snapshot if name.endswith("/manifest.json") else None)


@settings(deadline=None)
@given(NAMES)
def test_restore_and_verify_call_the_same_names_foreign(name: str) -> None:
    parts, stored = classify_name(name), StoredObject(name, 1, 0)
    container_id = parts.container_id if isinstance(parts, ObjectName) else 0
    bucket, listing = Bucket(), Listing({container_id: ContainerMetadata(container_id)})
    bucket.add(stored)
    listing.add(stored)
    is_foreign = isinstance(parts, ForeignName)
    assert bucket.foreign == is_foreign
    found = {finding.kind for finding in listing.findings()}
    assert ("foreign-objects" in found) is is_foreign
    assert bool(bucket.objects) is isinstance(parts, ObjectName)
    assert bool(bucket.checkpoints) is isinstance(parts, CheckpointName)


@settings(deadline=None)
@given(NAMES)
def test_the_search_for_orphans_leaves_alone_what_is_foreign(name: str) -> None:
    parts = classify_name(name)
    container_id = parts.container_id if isinstance(parts, ObjectName) else 0
    metadata = ContainerMetadata(container_id)
    verdict = classify_object(name, metadata, EPOCH_MAX, frozenset(), b"")
    assert (verdict is OrphanVerdict.NOT_OURS) is not isinstance(parts, ObjectName)
    old_ms = UPLOAD_AGE_MS + 1
    assert is_left_over(StoredObject(name, 1, 0), old_ms) is isinstance(parts, ProbeName)
    if isinstance(parts, ForeignName):
        upload = UnfinishedUpload(name, "id", 0)
        assert not is_abandoned(upload, 0, EPOCH_MAX, frozenset(), old_ms, b"")


def test_a_probe_is_known_by_its_name() -> None:
    name = new_probe_name(random.Random(1))
    assert classify_name(name) == ProbeName(name)
