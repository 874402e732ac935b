"""RequestProcessor: answers what jobs ask of the owner of a container, through its log
(docs/formats/mailbox.md).

Theory of operation. One task lists the container's mailbox at intervals, and takes what has no
answer, one message after the other. It reads the message, checks it, commits what is to be
committed (`proposal_committer`), and puts the answer. Proposals come first, in the order of names;
then what is to be marked for deletion; and last one export, which answers all who asked for one.
Rules:

- the commit comes first, the answer after it. Cut off anywhere, the next check, by this owner or
  the next, finds the message without an answer and checks it by what the metadata say then;
- a refusal is sent only by an owner that is still the primary afterwards, and to a message that is
  for this store. What a stale owner, or another store's, does not know may be quite right
  (`message_owners`);
- nothing is deleted here but messages, answered long ago or never: orphans become garbage by the
  log;
- a message never harms its container: a message that makes it fail is quarantined, counted, and
  reported in `health`;
- Tier 2 failing is waited out with back-off, and holds up nothing else: what it does not answer for
  is passed over, and the check goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.errors import (
    DataCorruptionError,
    SegmentStoreError,
    TierUnavailableError,
)
from segmentstore.contracts.health import HealthNote
from segmentstore.contracts.runtime import Runtime
from storagewriter.config import StorageWriterConfig
from storagewriter.data_source import WriterDataSource
from storagewriter.mailbox_pace import MailboxGroup, MailboxPace
from storagewriter.message_owners import MessageOwners
from storagewriter.object_uploader import ObjectUploader
from storagewriter.orphan_requests import OrphanRequests
from storagewriter.orphan_sweeper import OrphanSweeper, SweepStoppedError
from storagewriter.proposal_committer import ProposalCommitter
from storagewriter.proposal_rules import OpenProposals, refusal
from tier2.checked_fetches import fetch_checked
from tier2.mailbox.mailbox import (
    MailboxEntry,
    each_message,
    parse_message,
    put_answer,
    remove_entry,
)
from tier2.mailbox.messages import (
    MESSAGE_BYTES_MAX,
    Answer,
    ExportRequest,
    Message,
    MessageFormatError,
    OrphanDeletionRequest,
    ReplaceProposal,
    Verdict,
    one_sentence,
)
from tier2.object_names import MessageKey
from tier2.object_storage import (
    InvalidRangeError,
    ObjectNotFoundError,
    ObjectStorage,
    StorageUnavailableError,
)

MESSAGES_PER_CHECK = 1000
"""Messages without an answer that one check takes; the rest comes with the next."""
KEEP_MS = 7 * 24 * 3600 * 1000
"""Messages are deleted when their answer is so old, or when they are themselves and have no
answer.
"""
REMOVED_PER_CHECK = 100
"""Answered messages one check deletes, and as many of the others."""
FAILURES_IN_A_ROW = 8
"""After so many it is not the message that Tier 2 does not answer for: the step of the check
ends.
"""
INLINE_BYTES = 64 * 1024
"""Messages up to this are read on the loop."""
QUARANTINED_MAX = 1024
"""Messages remembered that made something fail; the first is tried again when there are more."""

_T = TypeVar("_T")


@dataclass(slots=True)
class _Poll:
    """What one listing of the mailbox showed."""

    waiting: list[MailboxEntry] = field(default_factory=list)
    old: list[MailboxEntry] = field(default_factory=list)
    """Answered long ago."""
    stale: list[MailboxEntry] = field(default_factory=list)
    """Put long ago, and not answered when the check began."""
    more: bool = False
    orphan_deletions: list[OrphanDeletionRequest] = field(default_factory=list)
    exports: list[ExportRequest] = field(default_factory=list)
    failed: StorageUnavailableError | None = None
    """The first failure of Tier 2."""
    failures_in_a_row: int = 0

    def note_failure(self, error: StorageUnavailableError) -> None:
        self.failed = self.failed or error
        self.failures_in_a_row += 1

    @property
    def is_hopeless(self) -> bool:
        """Tier 2 answers for nothing just now."""
        return self.failures_in_a_row >= FAILURES_IN_A_ROW


class RequestProcessor:
    """The answering half of a storage writer, which owns the task that runs it.

    `on_garbage()` is called when there is something for the collector. `export` makes a snapshot of
    the container's catalog and gives the name of its manifest; None where that is not
    possible. `group` has the mailboxes that are woken by what is found here.
    """

    def __init__(
        self,
        source: WriterDataSource,
        storage: ObjectStorage,
        config: StorageWriterConfig,
        runtime: Runtime,
        uploader: ObjectUploader,
        sweeper: OrphanSweeper,
        executor: Executor,
        on_garbage: Callable[[], None],
        export: Callable[[], Awaitable[str]] | None = None,
        group: MailboxGroup | None = None,
    ) -> None:
        self._export = export
        self._source = source
        self._storage = storage
        self._runtime = runtime
        self._poll_interval_s = config.mailbox_poll_interval_s
        self.pace = MailboxPace(config.mailbox_poll_interval_s, source.metadata.container_id, group)
        self._sweeper = sweeper
        self._executor = executor
        self._owners = MessageOwners(source.store_id, self._shared_with)
        self._orphans = OrphanRequests(source, storage, runtime, uploader, sweeper)
        self._committer = ProposalCommitter(source, storage, runtime, uploader, sweeper, on_garbage)
        self._backoff = Backoff(runtime.random, min_s=config.retry_min_s, max_s=config.retry_max_s)
        self._lock = asyncio.Lock()
        self._quarantined: dict[MessageKey, str] = {}
        self._deferred: dict[MessageKey, None] = {}
        """What Tier 2 did not answer for, the last of them last."""
        self._just_answered: dict[MessageKey, None] = {}
        """In the check under way."""
        self._polled_to = ""
        """Name of the last message of a check that could not take all; the next check goes on
        behind it.
        """
        self.health = HealthNote(f"mailbox in tier2 {storage.url}", runtime.clock)
        self.draining = False
        """Nothing new may begin."""
        self.waiting = 0
        """Messages that had no answer when the mailbox was last checked, and got none by then."""
        self.answered = self.proposals_committed = self.proposals_refused = 0

    async def _shared_with(self) -> str | None:
        return await self._sweeper.shared_with()

    def describe(self) -> str | None:
        """None while healthy, else one sentence.

        That Tier 2 does not answer matters here only if something waits.
        """
        if self._quarantined:
            key, reason = next(iter(self._quarantined.items()))
            first = f"{key.job_id}/{key.message_id}: {reason}"
            return (
                f"{len(self._quarantined)} messages in the mailbox are quarantined, "
                f"the first: {first}"
            )
        return self.health.describe() if self.waiting else None

    async def run(self) -> None:
        """Answer until cancelled; ends at once if that is off. Raises what a commit raises."""
        if not self._poll_interval_s:
            return
        while True:
            await self.pace.until_due()
            before = self.answered  # What this owner may not answer does not count.
            try:
                await self.check_now()
            except StorageUnavailableError:
                self.pace.failed(self._backoff.next_s(), self.answered - before)
            else:
                self.pace.polled(self.answered - before)
                self._backoff.reset()

    async def check_now(self) -> int:
        """Check the mailbox once, and answer what has no answer; return how many answers were
        given.

        Raises StorageUnavailableError: what was answered by then is. And what a commit raises.
        """
        async with self._lock:
            before = self.answered
            try:
                await self._poll()
            except StorageUnavailableError as error:
                self.health.failed(error)
                raise
            except TierUnavailableError as error:
                # Tier 1 cannot say whether this is still the primary, or has no metadata of a
                # segment: as if there had been no check.
                self.health.failed(error)
                raise StorageUnavailableError("mailbox", str(error)) from error
            self.health.succeeded()
            return self.answered - before

    async def drain(self) -> int:
        """Check until nothing more is answered; return how many answers were given.

        Raises as `check_now`.
        """
        total = 0
        while True:
            answered = await self.check_now()
            total += answered
            if not answered and not self._polled_to:
                return total

    # --- one check
    # ---------------------------------------------------------------------------------

    async def _poll(self) -> None:
        poll = await self._list()
        self._just_answered = {}
        self.waiting = len(poll.waiting)
        await self._take_all(self._in_order(poll.waiting), poll)
        # Checked when no proposal waits any more that might name the same objects.
        await self._mark_all_for_deletion(poll)
        # What was asked before the listing is answered by what is copied after it, once for all who
        # asked.
        await self._export_all(poll)
        await self._tidy(poll)
        if poll.failed is not None:
            raise poll.failed

    def _in_order(self, waiting: Sequence[MailboxEntry]) -> list[MailboxEntry]:
        """What Tier 2 did not answer for comes last, in turn: it may never do so, and must not hold
        up the others.
        """
        there = {entry.key for entry in waiting}
        self._deferred = {key: None for key in self._deferred if key in there}
        place = {key: number for number, key in enumerate(self._deferred, 1)}
        return sorted(waiting, key=lambda entry: place.get(entry.key, 0))

    async def _list(self) -> _Poll:
        """What is to be answered, from where the last check ended, and what is to be deleted."""
        poll = _Poll()
        now_ms = self._runtime.clock.time_ms()
        quarantined: dict[MessageKey, str] = {}
        async for entry in each_message(self._storage, self._source.metadata.container_id):
            if entry.answer is not None:
                if (
                    now_ms - entry.answer.modified_ms > KEEP_MS
                    and len(poll.old) < REMOVED_PER_CHECK
                ):
                    poll.old.append(entry)
                continue
            assert entry.message is not None, entry
            if self._owners.knows_as_anothers(entry.key):
                continue
            is_stale = (
                now_ms - entry.message.modified_ms > KEEP_MS and len(poll.stale) < REMOVED_PER_CHECK
            )
            reason = self._quarantined.get(entry.key)
            if reason is not None:
                quarantined[entry.key] = reason
            elif entry.message.name <= self._polled_to:
                continue
            elif len(poll.waiting) == MESSAGES_PER_CHECK:
                poll.more = True
                continue
            else:
                poll.waiting.append(entry)
            if is_stale:
                poll.stale.append(entry)
        # What is missing or was answered by another is not in the way any more.
        self._quarantined = quarantined
        last = poll.waiting[-1].message if poll.more else None
        self._polled_to = last.name if last is not None else ""
        return poll

    async def _tidy(self, poll: _Poll) -> None:
        """Delete what no job will read any more, and what had no answer: it was tried once more in
        this check.
        """
        unanswered = (
            []
            if self.draining
            else [each for each in poll.stale if each.key not in self._just_answered]
        )
        poll.failures_in_a_row = 0
        for entry in (*poll.old, *unanswered):
            try:
                if await self._owners.may_remove(self._storage, entry):
                    await remove_entry(self._storage, entry)
                poll.failures_in_a_row = 0
            except StorageUnavailableError as error:
                poll.note_failure(error)
                if poll.is_hopeless:
                    return

    async def _take_all(self, waiting: Sequence[MailboxEntry], poll: _Poll) -> None:
        for entry in waiting:
            if poll.is_hopeless or self.draining:
                return
            await self._try(entry.key, self._take_one(entry, poll), poll)

    async def _take_one(self, entry: MailboxEntry, poll: _Poll) -> None:
        """See what a message is, and answer it if it is a proposal."""
        message = await self._take(entry)
        if message is not None and self._owners.is_anothers(message):
            self.waiting -= 1
        elif isinstance(message, ReplaceProposal):
            await self._propose(message)
        elif isinstance(message, OrphanDeletionRequest):
            poll.orphan_deletions.append(message)
        elif message is not None:
            poll.exports.append(message)

    async def _take(self, entry: MailboxEntry) -> Message | None:
        """What a message says; None if it is missing, or was refused for its form."""
        try:
            return await self._read(entry)
        except MessageFormatError as error:
            await self._answer(refusal(entry.key, "refused_malformed", one_sentence(error)))
            return None

    async def _read(self, entry: MailboxEntry) -> Message | None:
        """Raises MessageFormatError."""
        stored = entry.message
        assert stored is not None, entry
        if not 0 < stored.size <= MESSAGE_BYTES_MAX:
            raise MessageFormatError(f"{stored.size} bytes; a message has 1 to {MESSAGE_BYTES_MAX}")
        # The answer to what cannot be read is final.
        found = await fetch_checked(
            partial(self._fetch, stored.name, stored.size, entry.key), MessageFormatError
        )
        assert not isinstance(found, Answer), entry
        return found

    async def _fetch(self, name: str, size: int, key: MessageKey) -> Message | Answer | None:
        try:
            data = await self._storage.get_range(name, 0, size)
        except (ObjectNotFoundError, InvalidRangeError):
            return None
        if len(data) <= INLINE_BYTES:
            return parse_message(data, key)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, parse_message, data, key)

    async def _guarded(self, key: MessageKey, work: Coroutine[Any, Any, _T]) -> _T | None:
        """Do something a message asks for.

        Whatever fails that is no failure of a tier or of the log is the message's own.
        """
        try:
            return await work
        except StorageUnavailableError:
            self._deferred.pop(key, None)
            self._deferred[key] = None
            raise
        except DataCorruptionError as error:
            # A segment that the message names cannot be read from the catalog; others can.
            self._quarantine(key, error)
        except SegmentStoreError:
            raise
        except Exception as error:  # noqa: BLE001
            # Our bug must not end the container, and every owner after it.
            self._quarantine(key, error)
        return None

    def _quarantine(self, key: MessageKey, error: Exception) -> None:
        self._quarantined[key] = one_sentence(f"{type(error).__name__}: {error}")
        while len(self._quarantined) > QUARANTINED_MAX:
            del self._quarantined[next(iter(self._quarantined))]

    async def _try(self, key: MessageKey, work: Coroutine[Any, Any, _T], poll: _Poll) -> _T | None:
        """As `_guarded`; that Tier 2 does not answer is kept for the end of the check."""
        try:
            done = await self._guarded(key, work)
        except StorageUnavailableError as error:
            poll.note_failure(error)
            return None
        poll.failures_in_a_row = 0
        return done

    async def _answer(self, answer: Answer, *, ours: bool = False) -> bool:
        """Put an answer, unless it may be another's to give; whether it was put.

        `ours`: the message says that it is for this very store, or the metadata show it. What is
        committed stays so, whatever owner reports it.
        """
        if not ours and await self._sweeper.shared_with() is not None:
            return False
        if answer.verdict != "committed":
            await self._source.check_primary()
        await put_answer(
            self._storage, self._runtime, answer._replace(store_id=self._owners.store_id)
        )
        self._just_answered[answer.key] = None
        self.answered += 1
        self.waiting -= 1
        return True

    # --- proposals --------------------------------------------------------------------------------

    async def _propose(self, proposal: ReplaceProposal) -> None:
        answer = await self._committer.commit(proposal)
        committed = answer.verdict in {"committed", "committed_in_part"}
        if await self._answer(answer, ours=committed or bool(proposal.store_id)):
            self.proposals_committed += committed
            self.proposals_refused += not committed

    # --- orphans ----------------------------------------------------------------------------------

    async def _mark_all_for_deletion(self, poll: _Poll) -> None:
        if not poll.orphan_deletions or self.draining:
            return
        poll.failures_in_a_row = 0
        try:
            proposed = await self._open_proposals(poll)
        except StorageUnavailableError as error:
            poll.note_failure(error)
            return
        for request in poll.orphan_deletions:
            if poll.is_hopeless or self.draining:
                return
            await self._try(request.key, self._mark_for_deletion(request, proposed), poll)

    async def _mark_for_deletion(
        self, request: OrphanDeletionRequest, proposed: OpenProposals
    ) -> None:
        try:
            answer = await self._orphans.mark(request, proposed)
        except SweepStoppedError:
            return  # Whose these objects are cannot be known.
        await self._answer(answer, ours=bool(request.store_id))

    async def _open_proposals(self, poll: _Poll) -> OpenProposals:
        """What waits without an answer, this check's messages or not.

        One listing, and a GET for each that may be a proposal.

        Raises StorageUnavailableError.
        """
        known = {request.key for request in poll.orphan_deletions} | {
            request.key for request in poll.exports
        }
        names: dict[str, None] = {}
        unread: dict[str, None] = {}
        async for entry in each_message(self._storage, self._source.metadata.container_id):
            if entry.answer is not None or entry.key in known:
                continue
            name = await self._try(entry.key, self._proposed_name(entry), poll)
            if poll.failed is not None and poll.is_hopeless:
                raise poll.failed
            if name is not None:
                names[name] = None
            elif entry.key in self._deferred or entry.key in self._quarantined:
                unread[entry.key.job_id] = None
        poll.failures_in_a_row = 0
        return OpenProposals(names, unread)

    async def _proposed_name(self, entry: MailboxEntry) -> str | None:
        try:
            message = await self._read(entry)
        except MessageFormatError:
            return None
        return message.object.name if isinstance(message, ReplaceProposal) else None

    # --- the catalog ------------------------------------------------------------------------------

    async def _export_all(self, poll: _Poll) -> None:
        if not poll.exports or self.draining:
            return
        poll.failures_in_a_row = 0
        first = poll.exports[0].key
        addressed = any(request.store_id for request in poll.exports)
        outcome = await self._try(first, self._exported(addressed=addressed), poll)
        for request in poll.exports:
            if poll.is_hopeless or self.draining:
                return
            if outcome is not None:
                answer = Answer(*request.key, *outcome)
                await self._try(
                    request.key, self._answer(answer, ours=bool(request.store_id)), poll
                )
            elif first in self._quarantined:
                self._quarantined[request.key] = self._quarantined[first]

    async def _exported(self, *, addressed: bool) -> tuple[Verdict, str, dict[str, Any]] | None:
        """Export once; what every answer says, None for nothing.

        `addressed`: the job has named this store.
        """
        if not addressed and await self._sweeper.shared_with() is not None:
            return None
        if self._export is None:
            return "failed", "this owner exports no catalog", {}
        try:
            return "exported", "", {"manifest": await self._export()}
        except (StorageUnavailableError, SegmentStoreError) as error:
            # It is for the caller to ask again: a snapshot that fails must not hold up what comes
            # behind.
            return "failed", one_sentence(error), {}
