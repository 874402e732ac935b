"""Mutants of the log on BookKeeper (DESIGN 4.2, 6): its record alone names its owner, and
unconfirmed entries are resolved.
"""

from __future__ import annotations

from typing import Any, Final

from recovery.harness.mutants.forgotten_fences import ForgottenFences
from recovery.harness.mutants.mutant import Edit, Hunt, Mutant
from recovery.harness.runs.directed import BUSY

_OPENING: Final = "durablelog.bookkeeper.ledger_opening"
_KEEPER: Final = "durablelog.bookkeeper.log_metadata_store:LogMetadataStore"
_PIPELINE: Final = "durablelog.bookkeeper.frame_pipeline:FramePipeline"
_SUCCESSION: Final = "durablelog.bookkeeper.ledger_rollover:LedgerRollover"

_TAKEOVERS: Final = (
    {"ending": "takeover", "locks_expire": True, "dies_at": 60, "rival_dies_at": None},
)
_KILLS: Final = ({"ending": "kill", "dies_at": None}, {"ending": "power"})
_DOUBT: Final = {
    "bookkeeper.bookie.killed": 0.02,
    "bookkeeper.gateway.killed": 0.02,
    "bookkeeper.connection.broken": 0.005,
}
_NODE_DOUBT: Final = {"node.change.lost": 0.1, "node.change.lost-reply": 0.2}


def _hunt(**fields: Any) -> Hunt:
    """On ledgers of 4 KiB, with everything happening all the time."""
    return Hunt(**{"tier1": "bookkeeper", "settings": {**BUSY}, "seeds_max": 60, **fields})


BOOKKEEPER: Final = (
    Mutant(
        "ledgers-not-fenced",
        "4.2 Opening fences: ledgers are recovered before anything is written.",
        "An opening reads the metadata of the ledgers, and recovers none.",
        (
            Edit(
                f"{_OPENING}:fence",
                "description = await calls.recover(item.ledger_id, waiting)",
                "description = await calls.ledgers.describe(item.ledger_id)",
            ),
        ),
        _hunt(cycles=_KILLS),
    ),
    Mutant(
        "only-the-last-ledger-recovered",
        "4.2 Opening fences: the last ledgers that hold something, not the last ones.",
        "An opening is content with the last ledger, even if nothing is in it.",
        (Edit(f"{_OPENING}:fence", "if nonempty == _FENCED_NONEMPTY:", "if ends or nonempty:"),),
        _hunt(cycles=_KILLS),
    ),
    Mutant(
        "ledger-written-before-it-is-listed",
        "4.2 A frame is acknowledged only when it is durable: in a ledger that the record lists.",
        "A new ledger takes frames while its place in the record is still on its way.",
        (
            Edit(
                f"{_OPENING}:list_ledger",
                "await waiting.for_node(lambda: keeper.change(edit))\nreturn "
                "keeper.record.ledgers[-1]",
                "import asyncio\n"
                "wanted = edit(keeper.record)\n"
                "keeper.listing = asyncio.ensure_future(waiting.for_node(lambda: "
                "keeper.change(edit)))\n"
                "keeper.record = wanted\n"
                "return wanted.ledgers[-1]",
            ),
        ),
        _hunt(cycles=_KILLS, rates={"node.change.lost": 0.2}),
    ),
    Mutant(
        "doubt-taken-for-done",
        "4.2 An append whose outcome is unknown: a recovered ledger says what became of it.",
        "Unconfirmed frames are acknowledged, whether the recovered ledger has them or not.",
        (
            Edit(
                f"{_SUCCESSION}._settle",
                "self._pipeline.settle(description.last_entry)",
                "self._pipeline.settle(ledger.sent - 1)",
            ),
        ),
        _hunt(rates=_DOUBT, cycles=_KILLS),
    ),
    Mutant(
        "last-frame-in-doubt-forgotten",
        "4.2 Frames that a failed ledger does not hold are written again, all of them.",
        "The last unconfirmed frame is not sent to the next ledger.",
        (
            Edit(
                f"{_PIPELINE}.attach",
                "self._queued.extendleft(reversed(self._sent))",
                "self._queued.extendleft(list(reversed(self._sent))[1:])",
            ),
        ),
        _hunt(rates=_DOUBT, cycles=_KILLS),
    ),
    Mutant(
        "frames-in-doubt-sent-again-in-another-order",
        "4.2 Frames are written again in their order.",
        "Unconfirmed frames go to the next ledger last ones first.",
        (
            Edit(
                f"{_PIPELINE}.attach", "extendleft(reversed(self._sent))", "extendleft(self._sent)"
            ),
        ),
        _hunt(workload="appends", rates=_DOUBT, cycles=_KILLS),
    ),
    Mutant(
        "ledgers-deleted-before-the-node-is-written",
        "4.2 Order: checkpoint durable, new truncation address durable, delete.",
        "Truncated ledgers are deleted while the record that forgets them is still on its way.",
        (
            Edit(
                "durablelog.bookkeeper.bookkeeper_log:BookKeeperLog._delete",
                'await self._waiting("truncation").for_node(lambda: self._keeper.change(edit))',
                "self._remover.take(edit(self._keeper.record))\n"
                'await self._waiting("truncation").for_node(lambda: self._keeper.change(edit))',
            ),
        ),
        _hunt(cycles=_KILLS, rates={"node.change.lost": 0.3}, seeds_max=120),
    ),
    Mutant(
        "record-written-over",
        "4.2 Opening fences: of two who change the record in one version exactly one wins.",
        "The record is replaced whatever version it is in by now.",
        (
            Edit(
                f"{_KEEPER}._write",
                "after = await self._nodes.write(self._path, data, version)",
                "after = await self._nodes.write(self._path, data, (await self._read()).version)",
            ),
        ),
        _hunt(cycles=_TAKEOVERS),
    ),
    Mutant(
        "epoch-of-the-record-not-raised",
        "4.2 Opening fences: each opening has an epoch of its own.",
        "A new owner takes the record over in the epoch it is in.",
        (
            Edit(
                "durablelog.bookkeeper.log_metadata:LogMetadata.claimed",
                "epoch=max(self.epoch + 1, epoch_min)",
                "epoch=max(self.epoch, epoch_min)",
            ),
        ),
        _hunt(cycles=_TAKEOVERS),
    ),
    Mutant(
        "another-epoch-taken-for-ours",
        '4.2 "Cannot tell" counts as fenced: a record of another epoch is another owner\'s.',
        "An owner takes a later owner's record over, and goes on.",
        (Edit(f"{_KEEPER}._refresh", "if record.epoch != self.record.epoch:", "if False:"),),
        _hunt(cycles=_TAKEOVERS),
    ),
    Mutant(
        "ledger-listed-twice",
        "4.2 A lost reply is resolved by recognising what is one's own, never by assuming failure.",
        "A change of the record whose reply was lost is made again, though it is there.",
        (
            Edit(
                f"{_OPENING}:list_ledger",
                "if any(item.ledger_id == ledger_id for item in record.ledgers):",
                "if False:",
            ),
        ),
        _hunt(cycles=_KILLS, rates=_NODE_DOUBT),
    ),
    Mutant(
        "ledger-of-the-truncation-point-removed",
        "4.2 Nothing behind the truncation address is deleted.",
        "The ledger in which the truncated log begins goes with those before it.",
        (
            Edit(
                "durablelog.bookkeeper.log_metadata:LogMetadata.truncated",
                "item.sequence < sequence",
                "item.sequence <= sequence",
            ),
        ),
        _hunt(cycles=_KILLS),
    ),
    Mutant(
        "acknowledged-without-a-look",
        "4.2 A fenced owner acknowledges nothing: not either if the fence was forgotten.",
        "What bookies say is acknowledged, however long ago the record was last seen.",
        (
            Edit(
                "durablelog.bookkeeper.ownership_lease:OwnershipLease.is_valid",
                "if age_s < _CHECK_AFTER_S:",
                "if True:",
            ),
        ),
        _hunt(cycles=_TAKEOVERS, scenario=ForgottenFences),
    ),
    Mutant(
        "earlier-owners-ledgers-deleted-at-once",
        "4.2 A fenced owner acknowledges nothing: its ledgers, and their fences, stay "
        "until it must have looked.",
        "Truncated ledgers of earlier owners are deleted as soon as one's own.",
        (
            Edit(
                "durablelog.bookkeeper.ledger_deleter:LedgerDeleter.take",
                "(self._queue if epoch > record.unclosed else self._later).append(ledger_id)",
                "self._queue.append(ledger_id)",
            ),
        ),
        _hunt(cycles=_TAKEOVERS, scenario=ForgottenFences),
    ),
    Mutant(
        "owner-that-did-not-close-taken-for-closed",
        "4.2 A fenced owner acknowledges nothing: its ledgers, and their fences, stay "
        "until it must have looked.",
        "Ledgers of an earlier owner are deleted at once, though it may still be alive.",
        (
            Edit(
                "durablelog.bookkeeper.log_metadata:LogMetadata.claimed",
                "unclosed=self.unclosed if self.closed else self.epoch",
                "unclosed=self.unclosed",
            ),
        ),
        _hunt(cycles=_TAKEOVERS, scenario=ForgottenFences),
    ),
)
