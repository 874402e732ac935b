"""Mutants of the wire server (DESIGN 4.1, 4.2): how blocks of events and updates of tables become
one append, and when they are answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from recovery.harness.mutants.mutant import Edit, Hunt, Mutant

_APPENDS: Final = "segmentstore.server.append_requests:ConnectionAppends"
_BLOCKS: Final = "segmentstore.block_writer:BlockWriter.append"
_SESSION: Final = "segmentstore.wire.append_session"
_PENDING: Final = "segmentstore.tables.pending_table:PendingTable"
_PIPELINE: Final = "segmentstore.tables.table_pipeline:TablePipeline"

_WORKING: Final[tuple[Mapping[str, Any], ...]] = ({"ending": "power", "operations": 120},)
_SETTLED: Final = "segmentstore.server.append_requests:ConnectionAppends._settled_number"
_NO_WAIT: Final = (
    Edit(_SETTLED, "await in_flight.none(segment, writer_id)", "pass"),
    Edit(_SETTLED, "not begun.is_set()", "True"),
)

WIRE: Final = (
    Mutant(
        "block-acknowledged-when-taken",
        "4.2 A frame is acknowledged only when it and all before it are durable.",
        "The server acknowledges a block of events as soon as the store has taken it.",
        (
            Edit(
                f"{_APPENDS}._begin",
                "self._share.take(size)",
                "self._share.take(size)\nticket.stored(-1)\nself._report_soon(writer_id, writer)",
            ),
        ),
        Hunt(workload="wire", cycles=_WORKING),
    ),
    Mutant(
        "number-only-greater",
        "4.1 Attribute updates commit with their append or not at all.",
        "A block goes in if its number is greater than the last, and a set-up does not wait: "
        "events of a block that was cut anew are stored twice.",
        (
            Edit(
                _BLOCKS,
                "_REPLACE_IF_EQUALS, number, previous",
                "UpdateType.REPLACE_IF_GREATER, number, None",
            ),
            *_NO_WAIT,
        ),
        Hunt(workload="wire", process_runs=3, cycles=_WORKING),
    ),
    Mutant(
        "set-up-does-not-wait",
        "4.2 An append whose outcome is unknown is reported as such, not as failed.",
        "A set-up is answered while blocks of its writer are on their way: its number is not "
        "final.",
        _NO_WAIT,
        Hunt(workload="wire", cycles=_WORKING),
    ),
    Mutant(
        "set-up-forgets-earlier-appends",
        "4.2 An append whose outcome is unknown is reported as such, not as failed.",
        "A set-up waits for one append of its writer: a refused one settles before those in front "
        "of it.",
        (
            Edit(
                "segmentstore.server.server_context:WritersInFlight.settled",
                "count = self._counts.pop(key) - 1",
                "count = 0 * self._counts.pop(key, 0)",
            ),
        ),
        Hunt(workload="wire", cycles=_WORKING),
    ),
    Mutant(
        "number-in-an-operation-of-its-own",
        "4.1 Attribute updates commit with their append or not at all.",
        "The writer's number follows its block in another operation: a crash between them has the "
        "block sent again.",
        (
            Edit(
                _BLOCKS,
                "# The future has None only for events.",
                "self._loop.create_task(self._container.update_attributes(self._name, updates))\n"
                "updates = ()",
            ),
        ),
        Hunt(workload="wire", process_runs=3, cycles=_WORKING),
    ),
    Mutant(
        "wrong-previous-number",
        "4.2 A frame is acknowledged only when it and all before it are durable.",
        "An acknowledgement names the number before its own as the one acknowledged last.",
        (
            Edit(
                f"{_SESSION}:AppendTicket.report",
                "AppendAcknowledged(self.number, acked, self._length",
                "AppendAcknowledged(self.number, self.number - 1, self._length",
            ),
        ),
        Hunt(workload="wire", cycles=_WORKING),
    ),
    Mutant(
        "failure-before-earlier-acknowledgements",
        "4.2 A frame is acknowledged only when it and all before it are durable.",
        "The failure of an append overtakes the acknowledgements of what was sent before it.",
        (
            Edit(
                f"{_SESSION}:AppendSession.settle",
                "tickets, reports = self._tickets, list[AppendReport]()",
                "tickets, reports = self._tickets, list[AppendReport]()\n"
                "for ticket in [each for each in tickets if each._refusal is not None]:\n"
                "    tickets.remove(ticket)\n"
                "    tickets.appendleft(ticket)",
            ),
        ),
        Hunt(workload="wire", cycles=_WORKING),
    ),
    Mutant(
        "table-versions-counted",
        "4.1 In replay the offset recorded in an operation must equal the length reached so far.",
        "A new version is counted from the number of keys on, and is no offset: it comes back.",
        (
            Edit(
                f"{_PENDING}.plan_update",
                "version = batch.end",
                "version = self.index.entry_count + batch.length",
            ),
        ),
        Hunt(workload="wire", cycles=_WORKING),
    ),
    Mutant(
        "copy-forgets-its-version",
        "4.1 Every field has one writer: from operations, live and in replay alike.",
        "After a recovery a key that was copied by compaction has the offset of the copy as its "
        "version.",
        (
            Edit(
                "segmentstore.tables.table_records:decode_records",
                "location = new(KeyLocation, (at, end - position, version))",
                "location = new(KeyLocation, (at, end - position, at))",
            ),
        ),
        Hunt(workload="wire", cycles=_WORKING),
    ),
    Mutant(
        "compaction-over-an-update",
        "4.1 Every field has one writer: from operations, live and in replay alike.",
        "Compaction copies a record whose key has an update on its way, behind that update.",
        (
            Edit(
                f"{_PENDING}.plan_copies",
                "if self.there(key, committed) != location:",
                "if committed.get(key) != location:",
            ),
        ),
        Hunt(workload="wire", cycles=_WORKING),
    ),
    Mutant(
        "table-truncated-before-its-copies",
        "4.2 Order: what takes the place of bytes is durable before these are deleted.",
        "Compaction truncates a table while the copies of what lives are not in the log.",
        (
            Edit(
                f"{_PIPELINE}.copy",
                "await self.append(batch)",
                "self._loop.call_later(0.001, lambda: self._loop.create_task(self.append(batch)))",
            ),
        ),
        Hunt(workload="wire", cycles=_WORKING),
    ),
    Mutant(
        "table-index-ahead",
        "4.2 A frame is acknowledged only when it and all before it are durable.",
        "An update is in the index of its table, where reads see it, before it is durable.",
        (
            Edit(
                f"{_PIPELINE}.append",
                "data = self.table.begin(batch)",
                "data = self.table.begin(batch)\nself.table.index.apply(batch)",
            ),
            Edit(f"{_PENDING}.commit", "index.apply(batch)", "pass"),
        ),
        Hunt(workload="wire", process_runs=4, cycles=_WORKING),
    ),
    Mutant(
        "table-refusal-not-settled",
        "4.2 An append whose outcome is unknown is reported as such, not as failed.",
        "An update is refused for another one that is not durable, and may be lost.",
        (Edit(f"{_PIPELINE}.update", "await self.settled()", "pass"),),
        Hunt(workload="wire", tier1="ledger", cycles=_WORKING),
    ),
)
