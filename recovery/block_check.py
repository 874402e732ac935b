"""Every block of one Tier-2 object: whether it is the one the chunks mean, and every checksum
right.

The walk itself is tier2/block_walk.py; here its faults become findings. Rule: a fault in a block
that a chunk lies in is harmful; in any other it is a note, for no reader asks for its bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.findings import Finding, Severity, harmful
from tier2.block_walk import PIECE_BYTES, BlockFault, BlockWalk
from tier2.object_storage import ObjectNotFoundError, ObjectStorage


class ObjectCheck(NamedTuple):
    """What came of checking one object."""

    findings: list[Finding]
    blocks: int
    bytes_read: int


async def check_object(
    storage: ObjectStorage,
    container_id: int,
    record: ObjectRecord,
    chunks: Sequence[ChunkRecord],
    *,
    deep: bool = True,
    piece_bytes: int = PIECE_BYTES,
    executor: Executor | None = None,
    pace: Callable[[int], Awaitable[None]] | None = None,
) -> ObjectCheck:
    """Whether an object is there, as large as it should be and, deep, all of its blocks right: see
    `BlockWalk`.

    One `head`; deep, the reading of the whole object. Raises StorageUnavailableError.
    """
    place = f"object {record.name}"
    missing = ObjectCheck([harmful("object-missing", place, _loss(container_id, chunks))], 0, 0)
    stored = await storage.head(record.name)
    if stored is None:
        return missing
    findings: list[Finding] = []
    if stored.size != record.size:
        detail = f"it has {stored.size} bytes where {record.size} are recorded"
        findings.append(harmful("object-size", place, detail))
    if not deep:
        return ObjectCheck(findings, 0, 0)
    walk = BlockWalk(
        storage, container_id, record, chunks, piece_bytes=piece_bytes, executor=executor, pace=pace
    )
    try:
        findings += [_finding(record.name, fault) for fault in await walk.run()]
    except ObjectNotFoundError:
        return missing
    return ObjectCheck(findings, walk.blocks, walk.bytes_read)


def _loss(container_id: int, chunks: Sequence[ChunkRecord]) -> str:
    size = sum(chunk.length for chunk in chunks)
    return f"{len(chunks)} chunks of container {container_id} lie in it, {size:,} bytes"


def _finding(name: str, fault: BlockFault) -> Finding:
    severity = Severity.HARMFUL if fault.chunks else Severity.NOTE
    place = f"object {name} block at {fault.position} {fault.error.place}"
    return Finding(severity, "block" if fault.chunks else "unused-block", place, fault.error.reason)
