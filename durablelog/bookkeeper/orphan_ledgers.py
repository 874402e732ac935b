"""Ledgers of ours that no log lists: found by what is written in them for ever, fenced, and
deleted.

A crash between creating a ledger and listing it leaves one; so does a lost reply. Nothing needs
them, and nothing but this module searches for them. Rules of this file:

- the ledgers are listed before the record is read: one that is listed by its log by then is known
  to be in use;
- of an epoch below the record's no owner is left who could list it. Of the record's own epoch one
  may be: it is left alone until the next opening;
- recover before delete: deleting does not fence, and a process that still writes it must learn that
  it is not the owner;
- no orphan was ever listed, but for ledgers whose deletion was confirmed. An owner sends the first
  frame when the record lists the ledger; the ledger moves from `ledgers`, maybe over `retained`,
  into `removing`, and leaves that when it is deleted. So no owner acknowledges in one, even if
  bookies forget the fence, and the age of the claim does not matter (as it does in
  ledger_deleter.py). A ledger of a record that people deleted looks like an orphan: its owner finds
  that at its next check;
- for the same reason an orphan is empty. One that holds entries was listed by a record that was
  removed or put back since. It may be all that is left of what was acknowledged, so it is reported,
  never deleted;
- what cannot be understood is reported, never deleted. One ledger that cannot be read, whatever its
  owner, ends no search.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Final, NamedTuple

from durablelog.bookkeeper.failure_codes import LedgerCall, Reaction, code_text, reaction
from durablelog.bookkeeper.ledger_calls import APPLICATION
from durablelog.bookkeeper.ledger_store import (
    EMPTY,
    LedgerDescription,
    LedgerError,
    LedgerState,
    LedgerStore,
)
from durablelog.bookkeeper.log_metadata import LogMetadata, decode_record
from durablelog.bookkeeper.metadata_node import MetadataNodes
from durablelog.bookkeeper.store_node import container_path
from durablelog.durable_data_log_factory import OrphanDeletion, OrphanLedger, OrphanSearch
from segmentstore.contracts.owned_tasks import gather_owned

READS_AT_ONCE: Final = 16
PROBLEMS_MAX: Final = 100
"""Reported one by one; the rest are counted."""


class LedgerVerdict(Enum):
    """What a ledger is to one store."""

    FOREIGN = "foreign"
    KNOWN = "known"
    """Listed, or on its way out, or of an owner who may still list it."""
    ORPHAN = "orphan"
    UNCLEAR = "unclear"
    """It says it is ours, and the record does not fit."""


class _Ours(NamedTuple):
    container_id: int
    epoch: int


def owner_of(custom: Mapping[str, bytes], store_id: str) -> _Ours | None:
    """Container and epoch a ledger of this store was made for; None for another's, or what is not
    understood.
    """
    if custom.get("application") != APPLICATION or custom.get("store") != store_id.encode():
        return None
    numbers = (custom.get("container", b""), custom.get("epoch", b""))
    if not all(number.isdigit() and len(number) <= 19 for number in numbers):
        return None
    return _Ours(*map(int, numbers))


def classify(
    ledger_id: int, ours: _Ours | None, record: LogMetadata | None, store_id: str
) -> LedgerVerdict:
    """Pure. `record` is its container's, read after the ledger was listed."""
    if ours is None:
        return LedgerVerdict.FOREIGN
    if record is None or record.store_id != store_id or record.container_id != ours.container_id:
        return LedgerVerdict.UNCLEAR
    if record.names(ledger_id):
        return LedgerVerdict.KNOWN
    if ours.epoch > record.epoch:
        return LedgerVerdict.UNCLEAR
    return LedgerVerdict.ORPHAN if ours.epoch < record.epoch else LedgerVerdict.KNOWN


async def find_orphans(
    ledgers: LedgerStore,
    nodes: MetadataNodes,
    root: str,
    store_id: str,
    containers: Collection[int],
) -> OrphanSearch:
    """Orphans of these containers; changes nothing.

    Costs a listing of the whole cluster and a check of each ledger's metadata. Raises LedgerError
    (the cluster does not answer), the node errors, DataCorruptionError and ConfigError of a record.
    """
    turns = asyncio.Semaphore(READS_AT_ONCE)
    problems: list[str] = []

    async def described_one(ledger_id: int) -> LedgerDescription | None:
        async with turns:
            try:
                return await ledgers.describe(ledger_id)
            except LedgerError as error:
                meaning = reaction(LedgerCall.DELETE, error.code)
                if meaning is Reaction.RETRY:
                    raise
                if meaning is not Reaction.NO_LEDGER:
                    detail = f"{code_text(error.code)}{', ' + error.detail if error.detail else ''}"
                    problems.append(
                        f"ledger {ledger_id} cannot be inspected ({detail}): it was left alone"
                    )
                return None

    found: dict[int, list[tuple[LedgerDescription, _Ours]]] = {}
    listed = await ledgers.list_ids()
    for first in range(0, len(listed), 1024):
        some = listed[first : first + 1024]
        for described in await gather_owned(*map(described_one, some), name="describe ledger"):
            ours = owner_of(described.custom, store_id) if described is not None else None
            if described is not None and ours is not None and ours.container_id in containers:
                found.setdefault(ours.container_id, []).append((described, ours))
    orphans: list[OrphanLedger] = []
    for container_id in sorted(found):
        record = await read_record(nodes, root, container_id)
        for described, ours in found[container_id]:
            verdict = classify(described.ledger_id, ours, record, store_id)
            if verdict is LedgerVerdict.ORPHAN:
                orphan = _orphan(described, ours)
                if described.state is LedgerState.CLOSED and described.last_entry != EMPTY:
                    problems.append(holds_entries(orphan))
                else:
                    orphans.append(orphan)
            elif verdict is LedgerVerdict.UNCLEAR:
                epoch = f"of epoch {record.epoch}" if record is not None else "missing"
                problems.append(
                    f"container {container_id}: ledger {described.ledger_id} says it is "
                    f"of epoch {ours.epoch},"
                    f" and the log's record is {epoch}: it was left alone"
                )
    if len(problems) > PROBLEMS_MAX:
        problems[PROBLEMS_MAX:] = [
            f"and {len(problems) - PROBLEMS_MAX:,} more ledgers that were left alone"
        ]
    return OrphanSearch(tuple(orphans), tuple(problems))


async def delete_orphans(ledgers: LedgerStore, found: OrphanSearch) -> OrphanDeletion:
    """Fence and delete what `find_orphans` found; one that cannot be, or holds entries, is
    reported.
    """
    deleted: list[OrphanLedger] = []
    kept: list[OrphanLedger] = []
    problems = list(found.problems)
    for orphan in found.orphans:
        try:
            gone = await remove_orphan(ledgers, orphan)
        except LedgerError as error:
            kept.append(orphan)
            problems.append(
                f"container {orphan.container_id}: ledger {orphan.ledger_id} could not "
                f"be deleted: {error}"
            )
        else:
            if gone:
                deleted.append(orphan)
            else:
                problems.append(holds_entries(orphan))
    return OrphanDeletion(tuple(deleted), tuple(kept), tuple(problems))


async def remove_orphan(ledgers: LedgerStore, orphan: OrphanLedger) -> bool:
    """Fence it, then delete it if it is empty; whether it is deleted. If not, it `holds_entries`.

    Raises LedgerError: then it is there still, as far as is known.
    """
    try:
        recovered = await ledgers.recover(orphan.ledger_id)
    except LedgerError as error:
        if reaction(LedgerCall.DELETE, error.code) is not Reaction.NO_LEDGER:
            raise
        return True
    if recovered.last_entry != EMPTY:
        return False
    await ledgers.delete(orphan.ledger_id)
    return True


def holds_entries(orphan: OrphanLedger) -> str:
    """What is said of a ledger that no log lists, and that was listed once."""
    return (
        f"container {orphan.container_id}: ledger {orphan.ledger_id} of epoch "
        f"{orphan.epoch} holds entries, and no log lists"
        " it: it was left alone. The log's record in ZooKeeper was removed or put back: "
        "see 'Leftover ledgers' in docs/bookkeeper.md"
    )


async def read_record(nodes: MetadataNodes, root: str, container_id: int) -> LogMetadata | None:
    """A container's record as it is now; None if it was never opened.

    Raises the node errors, DataCorruptionError, ConfigError.
    """
    path = container_path(root, container_id)
    content = await nodes.read(path)
    return decode_record(content.data, path) if content is not None else None


def _orphan(described: LedgerDescription, ours: _Ours) -> OrphanLedger:
    length = described.length if described.state is LedgerState.CLOSED else None
    return OrphanLedger(ours.container_id, described.ledger_id, ours.epoch, length)
