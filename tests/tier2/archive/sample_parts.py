"""Archived parts and the metadata of archives, made for tests."""

from __future__ import annotations

from dataclasses import replace

from segmentstore.contracts.archive_metadata import (
    LIST_PARTS,
    NODE_LISTS,
    NODE_PARTS,
    ArchiveMetadata,
    HotCopiesDeleted,
    OffloadBegun,
    OffloadCompleted,
    PartsBound,
    PartsListClosed,
)
from segmentstore.contracts.archived_parts import ArchivedPart, OffloadState

LENGTH = 1000
STEP = 10
"""Operations of a part, and milliseconds."""


def part_of_index(index: int, state: OffloadState = OffloadState.COMPLETE) -> ArchivedPart:
    """The part of an archive all of whose parts are alike."""
    return ArchivedPart(
        number=index + 1,
        ledger_id=index + 1,
        uid=index.to_bytes(16, "big"),
        state=state,
        entries=3,
        length=LENGTH,
        first_sequence=index * STEP + 1,
        last_sequence=(index + 1) * STEP,
        first_ms=index * STEP + 1,
        last_ms=(index + 1) * STEP,
        offloaded_ms=(index + 1) * STEP + 5,
    )


def attempt_of_index(index: int) -> ArchivedPart:
    return replace(part_of_index(index), state=OffloadState.ATTEMPT, offloaded_ms=0)


def with_part(archive: ArchiveMetadata, part: ArchivedPart) -> ArchiveMetadata:
    """With one more complete part."""
    attempt = replace(part, state=OffloadState.ATTEMPT, offloaded_ms=0)
    begun = archive.after(OffloadBegun(attempt))
    return begun.after(OffloadCompleted(part.number, part.uid, part.offloaded_ms))


def archive_of(count: int) -> ArchiveMetadata:
    """With so many parts, all of them complete, of `part_of_index`. O(lists)."""
    lists = (count - 1) // LIST_PARTS if count else 0
    nodes = lists // NODE_LISTS

    def bound(end: int) -> PartsBound:
        return PartsBound(end * STEP, end * STEP, end * LENGTH)

    return ArchiveMetadata(
        lists=lists,
        last_number=count,
        bytes_through=count * LENGTH,
        node_bounds=tuple(bound((node + 1) * NODE_PARTS) for node in range(nodes)),
        list_bounds=tuple(
            bound((each + 1) * LIST_PARTS) for each in range(nodes * NODE_LISTS, lists)
        ),
        tail=tuple(map(part_of_index, range(lists * LIST_PARTS, count))),
        last_ms=count * STEP,
    )


def grown(count: int) -> ArchiveMetadata:
    """The same, part by part."""
    archive = ArchiveMetadata()
    for index in range(count):
        if archive.list_due:
            archive = archive.after(PartsListClosed(archive.lists))
        archive = with_part(archive, part_of_index(index))
    return archive


def hot_deleted(archive: ArchiveMetadata, end: int) -> ArchiveMetadata:
    return archive.after(HotCopiesDeleted(end, end))
