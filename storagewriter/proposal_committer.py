"""ProposalCommitter: commits to the log what a job proposed, as far as that fits, and reports the
result.

Rules of this file:

- what fits is determined in the very turn of the event loop in which it is handed to the log. The
  log passes over what has changed by the time it comes to it;
- segments are held while they are checked: what is idle would look like no segment at all. Those of
  one operation are held at once, not all of a proposal;
- the proposed object is in use from before it is checked until all it led to is committed:
  nothing can make it garbage, delete and forget it in between;
- a proposal whose object the metadata know already is answered with what they say, and its missing
  part is committed;
- an object that every later owner would refuse too becomes garbage by the log. It must carry the
  tag of the store, and no other store may have its marker in the same place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from durablelog.operations import ReplaceChunksOperation, StorageUpdateOperation
from segmentstore.contracts.chunks import ObjectRecord
from segmentstore.contracts.runtime import Runtime
from storagewriter.data_source import WriterDataSource
from storagewriter.object_uploader import OPERATION_CHUNKS, ObjectUploader
from storagewriter.orphan_sweeper import GARBAGE_MAX, OrphanSweeper
from storagewriter.proposal_headers import check_headers
from storagewriter.proposal_rules import (
    AGE_MAX_MS,
    CheckedReplacement,
    answer_to,
    batches,
    check_chunks,
    chunks_in,
    find_fault,
    fitting,
    refusal,
    segments_in,
    still_fitting,
)
from tier2.block_object import BlockFormatError
from tier2.mailbox.messages import Answer, ReplaceProposal, one_sentence
from tier2.object_names import is_of_store
from tier2.object_storage import InvalidRangeError, ObjectNotFoundError, ObjectStorage, StoredObject
from tier2.unique_ids import store_tag


class ProposalCommitter:
    """The part of a mailbox's keeper that takes proposals.

    `on_garbage()` is called when there is something for the collector.
    """

    def __init__(
        self,
        source: WriterDataSource,
        storage: ObjectStorage,
        runtime: Runtime,
        uploader: ObjectUploader,
        sweeper: OrphanSweeper,
        on_garbage: Callable[[], None],
    ) -> None:
        self._source = source
        self._tag = store_tag(source.store_id)
        self._storage = storage
        self._clock = runtime.clock
        self._uploader = uploader
        self._sweeper = sweeper
        self._on_garbage = on_garbage

    async def commit(self, proposal: ReplaceProposal) -> Answer:
        """Commit what of the proposal fits, and say what became of it; nothing is put.

        Raises StorageUnavailableError, what a commit raises, and what a hold of segments raises.
        """
        name = proposal.object.name
        fault = find_fault(
            proposal, self._source.metadata.container_id, self._source.epoch, self._tag
        )
        if fault is not None:
            return refusal(proposal.key, "refused_malformed", one_sentence(fault))
        self._uploader.in_flight[name] = None
        try:
            return await self._commit_what_fits(proposal)
        finally:
            self._uploader.settled(name)

    async def _commit_what_fits(self, proposal: ReplaceProposal) -> Answer:
        metadata, name = self._source.metadata, proposal.object.name
        # Before Tier 2 is asked: what is garbage now may be deleted and forgotten by then.
        fits = fitting(await self._check_chunks(proposal))
        stored = await self._storage.head(name)
        if not fits:
            return await self._settle(proposal, stored)
        if stored is None:
            return refusal(proposal.key, "refused_missing_object", f"there is no {name}")
        if stored.size != proposal.object.size:
            reason = f"{name} has {stored.size} bytes, {proposal.object.size} were proposed"
            return refusal(proposal.key, "refused_checksum", reason)
        if name not in metadata.objects and self._clock.time_ms() - stored.modified_ms > AGE_MAX_MS:
            await self._release(name, stored)
            return refusal(proposal.key, "expired", f"{name} is older than 24 hours")
        try:
            await check_headers(self._storage, proposal, fits)
        except BlockFormatError as error:
            return refusal(proposal.key, "refused_checksum", one_sentence(f"{name}: {error}"))
        except (ObjectNotFoundError, InvalidRangeError) as error:
            return refusal(proposal.key, "refused_missing_object", one_sentence(error))
        live = metadata.objects.get(name)
        record = (
            ObjectRecord(name, stored.size, self._clock.time_ms()) if live is None else live.record
        )
        for batch in batches(fits, OPERATION_CHUNKS):
            async with self._source.held(segments_in(batch), chunks_in(batch)):
                replacements = still_fitting(metadata, batch, name)
                if replacements:
                    await self._source.commit(ReplaceChunksOperation((record,), replacements))
                    self._on_garbage()
        return await self._settle(proposal, stored)

    async def _check_chunks(self, proposal: ReplaceProposal) -> list[CheckedReplacement]:
        """How the replacements stand, checked in turns: a segment may have changed again by the
        end.
        """
        checked: list[CheckedReplacement] = []
        for some in batches(proposal.replacements, OPERATION_CHUNKS):
            async with self._source.held(segments_in(some), chunks_in(some)):
                checked += check_chunks(self._source.metadata, some, proposal.object.name)
            await asyncio.sleep(0)
        return checked

    async def _settle(self, proposal: ReplaceProposal, stored: StoredObject | None) -> Answer:
        """What the metadata say of a proposal of which nothing more fits; an object that came to
        nothing is released.
        """
        checked = await self._check_chunks(proposal)
        answer = answer_to(
            proposal, checked, is_live=proposal.object.name in self._source.metadata.objects
        )
        if answer.verdict in {"refused_changed", "refused_unknown_segment"} and stored is not None:
            await self._release(proposal.object.name, stored)
        return answer

    async def _release(self, name: str, stored: StoredObject) -> None:
        """Have the log say that an object, which every later owner would refuse too, is garbage."""
        metadata = self._source.metadata
        if not is_of_store(name, self._tag) or await self._sweeper.shared_with() is not None:
            return
        if (
            name in metadata.objects
            or name in metadata.garbage
            or len(metadata.garbage) >= GARBAGE_MAX
        ):
            return
        record = ObjectRecord(name, stored.size, max(stored.modified_ms, 0))
        await self._source.commit(StorageUpdateOperation(objects=(record,)))
        self._on_garbage()
