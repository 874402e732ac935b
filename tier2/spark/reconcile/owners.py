"""What reconciliation has to do with the owners of containers: snapshots asked for, open proposals,
orphans marked for deletion.

Rules of this file:

- an owner is only ever asked, by a message in its mailbox; an owner that does not answer is
  reported, and nothing is concluded for it;
- a request's id is drawn for each asking: an answer to an earlier one, of a run of the same id, is
  never taken for it;
- requests to delete are put by tasks (`orphan_requests`), and only waited for here;
- proposals are read before snapshot B is asked for: one that is answered after that is in B.

Coroutines over ObjectStorage and Runtime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from segmentstore.contracts.errors import NotAStoreError
from segmentstore.contracts.runtime import Runtime
from tier2.catalog.catalog_manifest import Manifest
from tier2.catalog.catalog_snapshots import Unreadable, newest_snapshots
from tier2.mailbox.mailbox import (
    as_it_is,
    each_message,
    put_message,
    read_message,
    wait_for_answers,
)
from tier2.mailbox.messages import Answer, ExportRequest, MessageFormatError, ReplaceProposal
from tier2.object_names import MessageKey, parse_manifest_name
from tier2.object_storage import ObjectStorage
from tier2.spark.common.owner_bell import folder_of, wake_owner
from tier2.spark.common.waiting import waits_for
from tier2.spark.reconcile.orphan_requests import OrphanOutcome, counted, first_of_each, outcomes
from tier2.store_markers import StoreMarkers, stores_at
from tier2.unique_ids import store_tag

POLL_S: Final = 0.5
QUICK_POLL_S: Final = 0.1
QUICK_FOR_S: Final = 5.0
"""How often answers are searched for at first: a small catalog is exported at once, and most
proposals are answered when the last is put.
"""
MESSAGES_AT_ONCE: Final = 16
"""Read together."""
REQUESTS_AT_ONCE: Final = 16
"""Put together; and of those to delete so many of each container waited for together."""

ASK: Final = "ask"
"""Every owner exports its catalog, now, and says so."""
NEWEST: Final = "newest"
"""The newest snapshots are final: no process has the store open, or the user exported them."""


class Snapshots(NamedTuple):
    """One check of the catalog of all containers."""

    manifests: Mapping[int, Manifest]
    """Of the containers that have a snapshot to rely on, by container."""
    unresponsive: Mapping[int, str]
    """Why each other container has none."""
    containers: int
    """Of the store; 0 if unknown."""
    unreadable: Mapping[str, Unreadable] = {}
    """Manifests newer than these that cannot be read, and why."""

    @property
    def store_id(self) -> str | None:
        """Of the store; None without a snapshot."""
        return next((manifest.store_id for manifest in self.manifests.values()), None)


@dataclass(frozen=True, slots=True)
class Owners:
    """The owners of a store's containers, as one run speaks to them."""

    storage: ObjectStorage
    runtime: Runtime
    run_id: str
    """16 lower hex digits: the job's, in the mailbox."""
    how: str
    """ASK or NEWEST."""
    timeout_s: float
    store_id: str | None = None
    """Of which store, where several share the place."""
    folder: str | None = None
    """Of the store, if it is on this machine and known; where the objects are in it, it is found by
    itself.
    """

    async def wake(self) -> None:
        """Notify an owner on this machine that there are messages.

        Whether it was notified makes a difference of time alone.
        """
        folder = self.folder or folder_of(self.storage, self.runtime)
        if folder is not None:
            await wake_owner(folder, self.runtime)

    async def snapshots(self, name: str) -> Snapshots:
        """The catalog as of a moment after this call (ASK), or the newest that there is.

        `name` goes into the requests.

        Raises CatalogFormatError, StorageUnavailableError, NotAStoreError (there is nothing).
        """
        unreadable: dict[str, Unreadable] = {}
        known = await newest_snapshots(self.storage, self.store_id, unreadable)
        containers = _containers(known)
        if self.how == NEWEST:
            lacking = [number for number in range(max(containers, 1)) if number not in known]
            return Snapshots(
                known, dict.fromkeys(lacking, "there is no snapshot of it"), containers, unreadable
            )
        if not containers:
            await self._require_store()
        # A store that was never exported does not say how many containers it has: its first one
        # will.
        answers = await self._exported(name, range(containers or 1))
        if not containers:
            containers = _containers(
                await newest_snapshots(self.storage, self.store_id, unreadable)
            )
            answers |= await self._exported(name, range(1, containers))
        newest = await newest_snapshots(self.storage, self.store_id, unreadable)
        manifests: dict[int, Manifest] = {}
        unresponsive: dict[int, str] = {}
        for number in range(max(containers, 1)):
            reason = _why_not(answers.get(number), newest.get(number), self.timeout_s)
            if reason is None:
                manifests[number] = newest[number]
            else:
                unresponsive[number] = reason
        return Snapshots(manifests, unresponsive, containers, unreadable)

    async def _require_store(self) -> None:
        """Without a store no owner would answer; and a message would begin a folder, which then
        keeps a store from being created there.
        """
        async for page in self.storage.list():
            if page:
                return
        if folder_of(self.storage, self.runtime) is not None:
            # A store that keeps its objects in its own folder leaves no marker there, and has
            # flushed nothing yet.
            return
        raise NotAStoreError(
            self.storage.url, "not one object lies there, not even the marker of a store"
        )

    async def _exported(self, name: str, containers: range) -> dict[int, Answer]:
        store_id = await self.known_store()
        requests = [
            ExportRequest(number, self.run_id, f"export-{name}-{_drawn(self.runtime)}", store_id)
            for number in containers
        ]
        answers = await self._asked(requests)
        return {key.container_id: answer for key, answer in answers.items()}

    async def _asked(self, requests: Sequence[ExportRequest]) -> dict[MessageKey, Answer]:
        for start in range(0, len(requests), REQUESTS_AT_ONCE):
            some = requests[start : start + REQUESTS_AT_ONCE]
            await asyncio.gather(
                *(put_message(self.storage, self.runtime, request) for request in some)
            )
        await self.wake()
        return await answers_to(self.storage, [each.key for each in requests], self.timeout_s)

    async def known_store(self) -> str:
        """The store that requests are for; empty if unknown: then each owner decides whether it is
        meant.
        """
        if self.store_id is None:
            known = await newest_snapshots(self.storage, unreadable={})
            of_snapshots = {manifest.store_id for manifest in known.values()}
            there = of_snapshots or set(await stores_at(self.storage))
            return there.pop() if len(there) == 1 else ""
        return self.store_id

    async def open_names(
        self, containers: Sequence[int], most: int | None = None
    ) -> frozenset[str] | None:
        """Objects named in proposals that no owner has answered; None if there are more than
        `most`, none of them read then.

        A listing for each container, two requests for each proposal, MESSAGES_AT_ONCE at a time.
        """
        keys: list[MessageKey] = []
        for number in containers:
            async for entry in each_message(self.storage, number):
                if entry.message is None or entry.answer is not None:
                    continue
                keys.append(entry.key)
                if most is not None and len(keys) > most:
                    return None
        names: list[str] = []
        for first in range(0, len(keys), MESSAGES_AT_ONCE):
            some = keys[first : first + MESSAGES_AT_ONCE]
            names += [
                name
                for name in await asyncio.gather(*map(self._named_by, some))
                if name is not None
            ]
        return frozenset(names)

    async def _named_by(self, key: MessageKey) -> str | None:
        """The object of a proposal.

        A message that cannot be read names nothing: its owner will refuse it.
        """
        try:
            message = await read_message(self.storage, key)
        except MessageFormatError:
            return None
        return message.object.name if isinstance(message, ReplaceProposal) else None

    async def shared_with(self, store_id: str) -> str:
        """A sentence about the other stores whose objects lie here; empty without any."""
        return await StoreMarkers(self.storage, store_id).shared_with() or ""

    async def others(self, store_id: str) -> dict[bytes, str]:
        """The other stores that have their markers here: their ids, by the tags in the names of
        their objects.
        """
        return {store_tag(each): each for each in await stores_at(self.storage) if each != store_id}

    async def outcomes(
        self, asked: Mapping[MessageKey, int], not_asked: Mapping[int, int]
    ) -> list[OrphanOutcome]:
        """What owners say to requests to delete that tasks have put, each with the number of its
        names.

        Waited for in rounds of REQUESTS_AT_ONCE for each container, each with the whole of
        `timeout_s`. What has no answer in time is pending: the request stays, and is carried out
        whenever the owner comes to it. An owner that left one without an answer is waited for no
        more.
        """
        if asked:
            await self.wake()
        answers: dict[MessageKey, Answer] = {}
        left = sorted(asked)
        while left:
            some = first_of_each(left, REQUESTS_AT_ONCE)
            answers |= await answers_to(self.storage, some, self.timeout_s, counted)
            silent = {key.container_id for key in some if key not in answers}
            done = frozenset(some)
            left = [key for key in left if key not in done and key.container_id not in silent]
        late = [key for key in asked if key not in answers]
        answers |= await answers_to(self.storage, late, 0.0, counted)
        return outcomes(asked, answers, not_asked, self.timeout_s)


async def answers_to(
    storage: ObjectStorage,
    keys: Sequence[MessageKey],
    timeout_s: float,
    keep: Callable[[Answer], Answer] = as_it_is,
) -> dict[MessageKey, Answer]:
    """What owners say to these messages within `timeout_s`; what `keep` gives of it is held."""
    if not keys:
        return {}
    quick_s = min(QUICK_FOR_S, timeout_s)
    with waits_for(_whom(keys, timeout_s)):
        answers = await wait_for_answers(storage, keys, quick_s, QUICK_POLL_S, keep)
        left = [key for key in keys if key not in answers]
        if left and timeout_s > quick_s:
            answers |= await wait_for_answers(storage, left, timeout_s - quick_s, POLL_S, keep)
    return answers


def _whom(keys: Sequence[MessageKey], timeout_s: float) -> str:
    """The owner that is waited for, and how long that may take: in a line of 80 columns, with a
    title.
    """
    containers = len({key.container_id for key in keys})
    owners = "the owner" if containers == 1 else f"{containers:,} owners"
    return f"waiting up to {timeout_s:g} s for {owners} (mailbox_poll_interval_s is 30 s)"


def _containers(manifests: Mapping[int, Manifest]) -> int:
    return max((manifest.containers for manifest in manifests.values()), default=0)


def _drawn(runtime: Runtime) -> str:
    return f"{runtime.random.getrandbits(64):016x}"


def _why_not(answer: Answer | None, newest: Manifest | None, timeout_s: float) -> str | None:
    """Why the newest snapshot of a container is not one to rely on; None if it is."""
    if answer is None:
        return f"its owner did not answer within {timeout_s:g} s"
    if answer.verdict != "exported":
        return f"its owner answered {answer.verdict}: {answer.reason}"
    exported = parse_manifest_name(str(answer.detail.get("manifest")))
    if exported is None:
        return f"its owner named no snapshot but {answer.detail.get('manifest')!r}"
    if newest is None or newest.snapshot[:3] < exported[:3]:
        return f"the snapshot {exported.prefix} that its owner named is not there"
    return None
