"""A repair of a store's damaged blocks, from the search to the owner's answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from recovery.block_check import check_object
from recovery.block_repair import BlockRepair, DamagedChunk
from recovery.restore_past import PastContainer
from recovery.restore_report import Gap
from recovery.tier2_scan import retried
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.findings import Finding
from segmentstore.contracts.runtime import Runtime
from tier2.mailbox.mailbox import put_message, read_answer
from tier2.mailbox.messages import ReplaceProposal
from tier2.object_storage import ObjectStorage
from tier2.unique_ids import new_job_id

POLL_S: Final = 0.5


class RepairSource(NamedTuple):
    """A container to be repaired."""

    container: PastContainer
    epoch: int
    """Of its newest owner."""


class LackingChunk(NamedTuple):
    """A chunk that cannot be repaired."""

    damaged: DamagedChunk
    gaps: Sequence[Gap]
    """What of its bytes no append that is kept has."""


class ProposedObject(NamedTuple):
    """An object that was put, and what the owner said of it."""

    name: str
    chunks: int
    size: int
    verdict: str
    reason: str


@dataclass(slots=True, kw_only=True)
class RepairReport:
    """What was found, and done."""

    dry_run: bool
    repairable: list[DamagedChunk] = field(default_factory=list)
    lacking: list[LackingChunk] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    """Of the history, met in the search."""
    objects: list[ProposedObject] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    """Of the check of the new objects."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing damaged is left."""
        committed = all(each.verdict == "committed" for each in self.objects)
        return not (self.dry_run or self.lacking or self.findings) and committed


async def repair(
    sources: Sequence[RepairSource],
    names: Sequence[str],
    storage: ObjectStorage,
    store_id: str,
    runtime: Runtime,
    *,
    dry_run: bool,
    timeout_s: float,
) -> RepairReport:
    """Repair what is damaged in these objects; with `dry_run` only say what could be.

    A process must own the store, or come to own it, for its answers are waited for. Raises
    TierUnavailableError if none comes for `timeout_s`, DataCorruptionError.
    """
    report = RepairReport(dry_run=dry_run)
    proposals: list[ReplaceProposal] = []
    job_id = new_job_id(runtime.random)
    for source in sources:
        now = source.container.now
        assert now is not None, source
        work = BlockRepair(source.container.history, now, storage, runtime)
        damaged = await work.find(names)
        if not damaged:
            continue
        found = await work.search(damaged)
        report.repairable += found.chunks
        report.lacking += [LackingChunk(*each) for each in found.lacking]
        report.damage += found.damage
        if not dry_run:
            proposals += await work.write(found.chunks, store_id, source.epoch, job_id)
    # An owner that comes with the first message may truncate the logs that were read.
    for proposal in proposals:
        await retried(partial(put_message, storage, runtime, proposal))
    for proposal in proposals:
        report.objects.append(await _answered(storage, proposal, timeout_s))
        checked = await retried(
            partial(
                check_object,
                storage,
                proposal.container_id,
                proposal.object,
                [chunk for each in proposal.replacements for chunk in each.new],
            )
        )
        report.findings += checked.findings
    return report


async def _answered(
    storage: ObjectStorage, proposal: ReplaceProposal, timeout_s: float
) -> ProposedObject:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    key = proposal.key
    while True:
        answer = await retried(
            partial(read_answer, storage, key.container_id, key.job_id, key.message_id)
        )
        if answer is not None:
            return ProposedObject(
                proposal.object.name,
                len(proposal.replacements),
                proposal.object.size,
                answer.verdict,
                answer.reason,
            )
        if loop.time() >= deadline:
            detail = f"no owner of the store answered within {timeout_s:.0f} s"
            raise TierUnavailableError("tier2", f"{detail}; {proposal.object.name} is proposed")
        await asyncio.sleep(POLL_S)
