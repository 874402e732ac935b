"""PendingTable: the state of an open table, pure.

As MetadataUpdater does with segments: a batch is checked against what is *pending*, that is what
was appended but not acknowledged, over what is *committed*, the index. So batches need not wait for
one another. They are committed in the order in which they were begun, which their offsets enforce.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from segmentstore.contracts.errors import BadOffsetError
from segmentstore.tables.errors import BadKeyVersionError, KeyNotFoundError
from segmentstore.tables.table_batch import TAIL_BYTES, TableBatch
from segmentstore.tables.table_index import TableIndex
from segmentstore.tables.table_records import (
    REMOVAL,
    KeyLocation,
    TableRecord,
    copy_length,
    copy_parts,
    put_length,
    put_parts,
    removal_length,
    removal_parts,
)
from segmentstore.tables.table_types import NO_VERSION, NOT_EXISTS, TableEntry, VersionedKey


class PendingTable:
    """What is committed and what is pending of one table."""

    def __init__(self, name: str, index: TableIndex) -> None:
        self.name = name
        self.index = index
        self.tail = index.end
        """Where the next batch begins."""
        self._pending: dict[bytes, TableBatch] = {}
        """The newest batch that changes a key."""

    def there(self, key: bytes, committed: Mapping[bytes, KeyLocation]) -> KeyLocation | None:
        """Where the key's newest record is, or will be. `committed` is what the index has now."""
        batch = self._pending.get(key)
        return committed.get(key) if batch is None else batch.changes[key]

    # --- batches ----------------------------------------------------------------------------------

    def plan_update(
        self,
        entries: Sequence[TableEntry],
        committed: Mapping[bytes, KeyLocation],
        expected_length: int | None,
    ) -> tuple[TableBatch, list[int]]:
        """The batch that sets these entries, and their new versions.

        All conditions are checked against the state before the batch. Of a key that is there
        twice, the last entry remains. Raises BadOffsetError, BadKeyVersionError, KeyNotFoundError.
        """
        self._check_length(expected_length)
        before = [self.there(entry.key, committed) for entry in entries]
        batch = TableBatch(self.tail)
        versions = []
        for entry, there in zip(entries, before, strict=True):
            self._check_version(entry.key, entry.version, there)
            key, _, value = entry
            version = batch.end
            length = put_length(key, value)
            batch.set(key, KeyLocation(version, length, version), batch.changes.get(key, there))
            batch.add(put_parts(key, value), length)
            versions.append(version)
        return batch, versions

    def plan_removal(
        self,
        keys: Sequence[VersionedKey],
        committed: Mapping[bytes, KeyLocation],
        expected_length: int | None,
    ) -> TableBatch:
        """The batch that removes those of the keys that are there; without records if none is.

        Raises as `plan_update`, whose rules are the same.
        """
        self._check_length(expected_length)
        batch = TableBatch(self.tail)
        for key, version in keys:
            there = self.there(key, committed)
            self._check_version(key, version, there)
            if there is not None and key not in batch.changes:
                batch.set(key, None, there)
                batch.add(removal_parts(key), removal_length(key))
        return batch

    def plan_copies(
        self,
        records: Sequence[TableRecord],
        data: bytes,
        committed: Mapping[bytes, KeyLocation],
    ) -> TableBatch:
        """The batch that copies those of the records that are the newest of their keys.

        It is appended right away: whatever changes such a key later is behind the copy.
        """
        batch = TableBatch(self.tail)
        for record in records:
            key, location = record.key, record.location
            if self.there(key, committed) != location:
                continue
            value = data[record.value_start : record.value_end]
            length = copy_length(key, len(value))
            batch.set(key, KeyLocation(batch.end, length, location.version), location)
            batch.add(copy_parts(key, value, location.version), length)
        return batch

    def _check_length(self, expected: int | None) -> None:
        if expected is not None and expected != self.tail:
            raise BadOffsetError(self.name, expected, self.tail)

    def _check_version(self, key: bytes, expected: int, there: KeyLocation | None) -> None:
        if expected == NO_VERSION:
            return
        if there is None:
            if expected != NOT_EXISTS:
                raise KeyNotFoundError(self.name, key, expected)
        elif expected != there.version:
            raise BadKeyVersionError(self.name, key, expected, there.version)

    # --- what becomes of them ---------------------------------------------------------------------

    def begin(self, batch: TableBatch) -> bytes:
        """Make a batch pending; its bytes, to be appended at its offset."""
        data = b"".join(batch.parts)
        batch.parts.clear()
        batch.tail = data[-TAIL_BYTES:]
        self._pending.update(dict.fromkeys(batch.changes, batch))
        self.tail = batch.end
        return data

    def commit(self, batch: TableBatch) -> None:
        """It was acknowledged, and so was all before it."""
        index, pending = self.index, self._pending
        index.apply(batch)
        for key in batch.changes:
            if pending[key] is batch:
                del pending[key]

    def reset(self) -> None:
        """Nothing pending was appended, and nothing is on its way."""
        self._pending.clear()
        self.tail = self.index.end


def replayed(
    records: Sequence[TableRecord], data: bytes, committed: Mapping[bytes, KeyLocation]
) -> TableBatch:
    """What records of the segment change, in their order: the last of each key counts.

    Not for appending. The records begin where the index ends, and are decoded from `data`.
    """
    batch = TableBatch(records[0].location.offset)
    changes = batch.changes
    for record in records:
        key = record.key
        there = changes[key] if key in changes else committed.get(key)
        batch.set(key, None if record.kind == REMOVAL else record.location, there)
    last = records[-1].location
    batch.length = last.offset + last.length - batch.offset
    batch.tail = data[: records[-1].value_end][-min(TAIL_BYTES, batch.length) :]
    return batch
