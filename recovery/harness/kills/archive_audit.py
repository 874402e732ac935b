"""Archive audit: what archive and log of a stopped store have together, read from the first
operation on.

The parts are read by their own handles, entry by entry, and then once more with the log behind
them, as a restore reads them. Rules of this file:

- nothing is written; no process has the store open;
- the parts must be those of the log from its first frame on, each once, without a hole;
- the archive has the objects of these parts and of their lists, no others, and no unfinished
  upload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from durablelog.data_frame_reader import DataFrameReader
from durablelog.operation_codec import decode_operation
from durablelog.part_frames import PartFrames
from recovery.archived_history import ArchivedHistory
from segmentstore.contracts.archive_metadata import ArchiveMetadata
from segmentstore.contracts.archived_parts import ArchivedPart
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.runtime import Runtime
from segmentstore.kept_parts import KeptParts
from segmentstore.past_store import PastStore, open_past
from tier2.archive.archive_names import archived_data_name, archived_index_name
from tier2.archive.parts_objects import list_name, node_name
from tier2.locations import open_object_storage

_LAST: Final = 2**62


@dataclass(slots=True)
class ArchiveSeen:
    """What an archive has; `findings` is empty if that is all it should have."""

    parts: int = 0
    entries: int = 0
    archived_operations: int = 0
    """That end in an archived part."""
    operations: int = 0
    """Of archive and log."""
    findings: list[str] = field(default_factory=list)


async def audit_archive(
    location: str,
    archive: str,
    environment: Mapping[str, str],
    noted: Mapping[int, Sequence[int]],
) -> ArchiveSeen:
    """Read the archive at the URL `archive` and the logs of the store in a folder.

    `noted` are operations of each container that must be there. Raises NotAStoreError, ConfigError.
    """
    seen = ArchiveSeen()
    runtime = Runtime()
    expected: set[str] = set()
    async with await open_past(location, environment, runtime) as past:
        for container, parts in zip(past.source.containers, past.parts, strict=True):
            assert container.now is not None, "it is read from the log"
            number = container.now.container_id
            await _audit_parts(past, number, parts, container.now.archive, expected, seen)
            try:
                await _audit_history(container.history, noted.get(number, ()), seen)
            except SegmentStoreError as error:
                seen.findings.append(f"container {number}: {type(error).__name__}: {error}")
    await _audit_objects(archive, runtime, expected, seen)
    return seen


async def _audit_parts(
    past: PastStore,
    container_id: int,
    parts: KeptParts,
    archive: ArchiveMetadata,
    expected: set[str],
    seen: ArchiveSeen,
) -> None:
    """Adds the names of the objects that there must be to `expected`."""
    where = f"container {container_id}"
    if archive.attempt is not None:
        seen.findings.append(f"{where}: an attempt has not ended: {archive.attempt}")
    store_id = past.source.store_id
    expected.update(list_name(store_id, container_id, each) for each in range(archive.lists))
    expected.update(node_name(store_id, container_id, each) for each in range(archive.nodes))
    reading, reader = PartFrames(container_id), DataFrameReader()
    before = 0
    for index in parts.kept:
        part = await parts.at(index)
        if part.number <= before:
            seen.findings.append(f"{where}: part {part.number} comes behind {before}")
        before = part.number
        expected.add(archived_data_name(part.ledger_id, part.uid))
        expected.add(archived_index_name(part.ledger_id, part.uid))
        try:
            await _audit_part(past, part, reading, reader, seen)
        except SegmentStoreError as error:
            seen.findings.append(f"part {part.number}: {type(error).__name__}: {error}")


async def _audit_part(
    past: PastStore,
    part: ArchivedPart,
    reading: PartFrames,
    reader: DataFrameReader,
    seen: ArchiveSeen,
) -> None:
    handle = await past.open_part(part)
    numbers: list[int] = []
    try:
        if (handle.last_entry + 1, handle.length) != (part.entries, part.length):
            seen.findings.append(
                f"part {part.number} has {handle.last_entry + 1} entries of {handle.length} bytes, "
                f"and the metadata say {part}"
            )
        async with aclosing(reading.read(handle, part.number)) as batches:
            async for frames in batches:
                if not seen.entries and frames[0].sequence != 1:
                    seen.findings.append(f"the first frame has number {frames[0].sequence}")
                seen.entries += len(frames)
                for frame in frames:
                    numbers += [
                        decode_operation(record.data).sequence_number
                        for record in reader.feed(frame)
                    ]
    finally:
        await handle.close()
    seen.parts += 1
    seen.archived_operations += len(numbers)
    if numbers and (numbers[0] > part.first_sequence or numbers[-1] != part.last_sequence):
        seen.findings.append(
            f"part {part.number} has operations {numbers[0]} to {numbers[-1]}, and the metadata "
            f"say {part.first_sequence} to {part.last_sequence}"
        )


async def _audit_history(history: ArchivedHistory, noted: Sequence[int], seen: ArchiveSeen) -> None:
    numbers: list[int] = []
    async with aclosing(history.operations(0, _LAST)) as batches:
        async for batch in batches:
            numbers += [past.operation.sequence_number for past in batch]
    seen.operations += len(numbers)
    where = f"container {history.container_id}"
    if numbers != sorted(set(numbers)):
        seen.findings.append(f"{where}: operations are there twice, or out of order")
    if lacking := set(noted).difference(numbers):
        seen.findings.append(f"{where}: operations {sorted(lacking)[:10]} are missing")


async def _audit_objects(url: str, runtime: Runtime, expected: set[str], seen: ArchiveSeen) -> None:
    storage = open_object_storage(url, runtime)
    try:
        there = {stored.name async for page in storage.list() for stored in page}
        unfinished = await storage.list_unfinished()
    finally:
        await storage.close()
    for name in sorted(there - expected)[:10]:
        seen.findings.append(f"the archive has {name}, which belongs to no part")
    for name in sorted(expected - there)[:10]:
        seen.findings.append(f"the archive lacks {name}")
    for upload in unfinished[:10]:
        seen.findings.append(f"the archive has an unfinished upload of {upload.name}")
