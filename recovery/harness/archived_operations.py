"""What the archive of an open store has, and what sealed parts of its logs have: read from their
own bytes.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from contextlib import aclosing
from typing import Any

from durablelog.data_frame import header_length_at, parse_header
from durablelog.data_frame_reader import DataFrameReader
from durablelog.durable_data_log import LogAddress, LogFrame
from durablelog.operation_codec import decode_operation
from segmentstore.contracts.archived_parts import ArchivedPart
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.ledgers import LedgerNotFoundError, ReadHandle
from segmentstore.service import SegmentStore


def data_name(part: ArchivedPart) -> str:
    """The name of a part's data; its index is the same with `-index`."""
    return f"{uuid.UUID(bytes=part.uid)}-ledger-{part.ledger_id}"


def objects_of_no_part(
    store: SegmentStore, names: Collection[str], known: Collection[str] = ()
) -> list[str]:
    """Of `names` in the archive those of no part, and of no attempt that a log knows.

    `known`: names of data that were parts once.
    """
    owned_names = set(known)
    for owned in store._parts.containers:  # noqa: SLF001 - what an owner knows is not public
        archive = owned.metadata.archive
        owned_names |= {data_name(part) for part in archive.tail}
        if archive.attempt is not None:
            owned_names.add(data_name(archive.attempt))
    return sorted(
        name
        for name in names
        if "-ledger-" in name and name.removesuffix("-index") not in owned_names
    )


async def operations_in_parts(store: SegmentStore, owned: Any) -> set[int]:
    """The sequence numbers of the operations in a container's archive, and in the sealed parts of
    its log that are not there yet, whole. Parts are what the metadata say.

    Raises LedgerNotFoundError, DataCorruptionError.
    """
    place = store._parts.archive  # noqa: SLF001
    assert place is not None
    reader, found, log = DataFrameReader(), set[int](), owned._log  # noqa: SLF001
    async with aclosing(owned._archiver.lists.parts()) as parts:  # noqa: SLF001
        async for position, part in parts:
            try:
                handle = await place.offloader.read_offloaded(part.ledger_id, part.uid)
                there = await operations_of(handle, part.number, reader)
            except LedgerNotFoundError:
                if position >= owned.metadata.archive.first:
                    raise
                continue  # it has expired meanwhile
            # What ends in the first one that is kept may have begun before it.
            if there and (found or not position):
                _check_described(part, min(there), max(there))
            found |= there
    for sealed in log.sealed_parts():
        if sealed.length and sealed.number > owned.metadata.archive.last_number:
            found |= await operations_of(await log.open_part(sealed.number), sealed.number, reader)
    return found


def _check_described(part: ArchivedPart, first: int, last: int) -> None:
    said = (part.first_sequence, part.last_sequence)
    if said != (first, last):
        detail = f"it has operations {first} to {last}, and the metadata say {said[0]} to {said[1]}"
        raise DataCorruptionError(f"archived part {part.number}", detail)


async def operations_of(handle: ReadHandle, number: int, reader: DataFrameReader) -> set[int]:
    """The sequence numbers of the operations that end in a part; the handle is closed.

    `reader` has what the parts before it began. Raises LedgerNotFoundError, DataCorruptionError.
    """
    found = set[int]()
    async with aclosing(handle.read(0, handle.last_entry)) as batches:
        async for batch in batches:
            for entry_id, data in batch:
                header = parse_header(data, 0)
                assert header is not None
                address = LogAddress(number << 32 | entry_id)
                payload = data[header_length_at(data, 0) :]
                frame = LogFrame(address, header.sequence, header.epoch, payload)
                for record in reader.feed(frame):
                    found.add(decode_operation(record.data).sequence_number)
    await handle.close()
    return found
