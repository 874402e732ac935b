"""The check of archived parts: what is wrong is found, named, and hides nothing else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from recovery.history_check import HistoryCheck, PartCheck
from segmentstore.contracts.archived_parts import ArchivedPart
from segmentstore.contracts.ledgers import LedgerEntry, LedgerNotFoundError, ReadHandle
from tests.recovery.archived_logs import ArchivedLog, ListedParts, MemoryPart, on_a_loop
from tests.recovery.test_archived_history import busy_log

DAMAGED, MISSING, HOLE = "archived-part", "archived-part-missing", "archive-hole"


async def checked(log: ArchivedLog) -> list[PartCheck]:
    check = HistoryCheck(0, ListedParts(log.listed), log.open_part)
    return [each async for each in check.run()]


async def kinds(log: ArchivedLog) -> list[tuple[int, str]]:
    """(number of the part, kind) of the findings."""
    return [
        (each.part.number, finding.kind) for each in await checked(log) for finding in each.findings
    ]


@on_a_loop
async def test_what_is_whole_is_counted() -> None:
    log = busy_log(4, parts=12)
    found = await checked(log)
    assert not [each.findings for each in found if each.findings]
    assert sum(each.operations for each in found) == log.sequence
    assert sum(each.entries for each in found) == sum(part.entries for part in log.listed)


@on_a_loop
async def test_damage_is_named_and_hides_nothing_else() -> None:
    log = busy_log(4, parts=9)
    log.damage(log.listed[1].number, 0)
    log.forget_part(log.listed[4].number)
    log.damage(log.listed[7].number, log.listed[7].entries - 1)
    assert await kinds(log) == [
        (log.listed[1].number, DAMAGED),
        (log.listed[4].number, MISSING),
        (log.listed[7].number, DAMAGED),
    ]


@on_a_loop
async def test_what_its_owner_has_removed_meanwhile_is_no_damage() -> None:
    log = busy_log(4, parts=12)
    for index in (*range(5), 8, 10):
        log.forget_part(log.listed[index].number)
    log.damage(log.listed[9].number, 0)
    parts = ListedParts(log.listed, removed=5, listed=2)
    check = HistoryCheck(0, parts, log.open_part)
    found = [each async for each in check.run()]
    assert [each.part for each in found] == log.listed[5:]
    assert [(each.part, one.kind) for each in found for one in each.findings] == [
        (log.listed[8], MISSING),
        (log.listed[9], DAMAGED),
        (log.listed[10], MISSING),
    ]
    assert check.removed == 5
    assert parts.asked == 1


@on_a_loop
async def test_a_part_that_is_removed_while_it_is_read_is_no_damage() -> None:
    log = busy_log(4, parts=4)

    class Cut(MemoryPart):
        async def read(self, first: int, last: int) -> AsyncGenerator[Sequence[LedgerEntry], None]:
            async for batch in super().read(first, first):
                yield batch
            raise LedgerNotFoundError(self.ledger_id, "the archive of a test")

    async def open_part(part: ArchivedPart) -> ReadHandle:
        handle = await log.open_part(part)
        is_cut = part is log.listed[0]
        return Cut(part.ledger_id, log.parts[part.number].entries) if is_cut else handle

    for removed, kinds_found in ((1, []), (0, [MISSING])):
        check = HistoryCheck(0, ListedParts(log.listed, removed=removed), open_part)
        found = [each async for each in check.run()]
        assert [one.kind for each in found for one in each.findings] == kinds_found
        assert check.removed == removed


@on_a_loop
async def test_a_part_that_the_list_lacks_is_a_hole() -> None:
    log = busy_log(4, parts=5)
    del log.listed[2]
    assert await kinds(log) == [(log.listed[2].number, HOLE)]


@on_a_loop
async def test_what_is_recorded_wrongly_is_found() -> None:
    log = busy_log(4, parts=5)
    number = next(each for each, part in enumerate(log.listed) if part.checkpoint_sequence)
    right = log.listed[number]
    changes: tuple[dict[str, Any], ...] = (
        {"entries": right.entries + 1},
        {"length": right.length - 1},
        {"first_sequence": right.first_sequence - 1},
        {"last_sequence": right.last_sequence - 1},
        {"last_ms": right.last_ms - 1},
        {"checkpoint_entry": right.checkpoint_entry + 1},
    )
    for change in changes:
        log.listed[number] = replace(right, **change)
        assert await kinds(log) == [(right.number, DAMAGED)], change
