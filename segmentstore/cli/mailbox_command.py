"""`segmentstore mailbox`: what jobs ask of a store, and what it answered; and answering it now,
where no process has the store open.

Checking takes no lock and opens no store: messages and answers are objects in Tier 2. Answering is
the store's own code in a store that is opened as ever.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated, NamedTuple

import typer

from segmentstore.cli import output
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.stores import require_store, run, with_store
from segmentstore.contracts.byte_sizes import format_size
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.runtime import Runtime
from segmentstore.settings_sources import merge_settings
from segmentstore.store_folder import read_store_file, tier2_url
from tier2.locations import open_object_storage
from tier2.mailbox.mailbox import MailboxEntry, each_message, read_answer, read_message
from tier2.mailbox.messages import (
    ExportRequest,
    MessageFormatError,
    OrphanDeletionRequest,
    ReplaceProposal,
)
from tier2.object_storage import ObjectStorage, StorageUnavailableError, StoredObject

_ROWS_MAX = 1000
"""Rows of the table for people; programs get all."""
_READ_AT_ONCE = 8


class MailboxRow(NamedTuple):
    """A message and its answer, for people and programs."""

    container: int
    job: str
    message: str
    asks: str
    """What for; empty where the message is missing."""
    put: datetime | None
    verdict: str
    """Empty while there is no answer."""
    answered: datetime | None
    reason: str
    detail: dict[str, object]


def mailbox(
    store: output.FolderArgument,
    process: Annotated[
        bool,
        typer.Option(
            "--process",
            help="Open the store, and answer what has no answer yet. "
            "An owner that has it open does so by itself.",
        ),
    ] = False,
    take_over: output.TakeOverOption = False,
    as_json: output.JsonOption = False,
) -> None:
    """Show what jobs ask of the store by messages in Tier 2, and what it answered.

    Ends with 1 if something was to be answered with --process, and has no answer afterwards.
    """
    require_store(store)
    given = (
        with_store(store, lambda opened: opened.process_mailbox(), take_over=take_over)
        if process
        else None
    )
    rows = run(_rows(store))
    waiting = sum(not row.verdict for row in rows)
    if as_json:
        output.print_json(
            {"store": store, "answered_now": given, "waiting": waiting, "messages": rows}
        )
    else:
        if rows:
            columns = (
                "container",
                "job",
                "message",
                "asks",
                "put",
                "verdict",
                "answered",
                "reason",
            )
            output.out().print(output.table(None, columns, [row[:-1] for row in rows[:_ROWS_MAX]]))
            if len(rows) > _ROWS_MAX:
                output.out().print(f"and {len(rows) - _ROWS_MAX:,} more (--json shows all)")
        now = f"{given:,} answered now, " if given is not None else ""
        output.out().print(f"{store}: {len(rows):,} messages, {now}{waiting:,} without an answer")
    if process and waiting:
        raise typer.Exit(ExitCode.REFUSED)


async def _rows(location: str) -> list[MailboxRow]:
    runtime = Runtime()
    file = read_store_file(location, runtime)
    assert file is not None, location
    config = merge_settings({}, {}, file.settings, existing=True)
    storage = open_object_storage(tier2_url(location, config), runtime)
    rows: list[MailboxRow] = []
    try:
        for container_id in range(config.containers):
            entries = [entry async for entry in each_message(storage, container_id)]
            for first in range(0, len(entries), _READ_AT_ONCE):
                some = entries[first : first + _READ_AT_ONCE]
                rows += await asyncio.gather(*(_row(storage, entry) for entry in some))
    except StorageUnavailableError as error:
        raise TierUnavailableError("tier2", str(error)) from error
    finally:
        await storage.close()
    return rows


async def _row(storage: ObjectStorage, entry: MailboxEntry) -> MailboxRow:
    asks = await _asks(storage, entry) if entry.message is not None else ""
    verdict = reason = ""
    detail: dict[str, object] = {}
    if entry.answer is not None:
        try:
            answer = await read_answer(storage, *entry.key)
        except MessageFormatError as error:
            verdict, reason = "unreadable", str(error)
        else:
            if answer is not None:
                verdict, reason, detail = answer.verdict, answer.reason, answer.detail
    return MailboxRow(
        *entry.key, asks, _time(entry.message), verdict, _time(entry.answer), reason, detail
    )


async def _asks(storage: ObjectStorage, entry: MailboxEntry) -> str:
    try:
        message = await read_message(storage, entry.key)
    except MessageFormatError as error:
        return f"unreadable: {error}"
    if isinstance(message, ReplaceProposal):
        old = sum(len(each.old) for each in message.replacements)
        return f"replace {old:,} chunks by an object of {format_size(message.object.size)}"
    if isinstance(message, OrphanDeletionRequest):
        return f"delete {len(message.names):,} orphans"
    return "export the catalog" if isinstance(message, ExportRequest) else ""


def _time(stored: StoredObject | None) -> datetime | None:
    return datetime.fromtimestamp(stored.modified_ms / 1000, UTC) if stored is not None else None
