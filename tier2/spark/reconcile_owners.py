"""What reconciliation has to do with the owners of containers: snapshots asked for, open proposals,
orphans condemned.

Rules of this file:

- an owner is only ever asked, by a message in its mailbox; whoever does not answer is told of, and
  nothing is concluded for him;
- a request's id is drawn for each asking: an answer to an earlier one, of a run of the same id, is
  never taken for it;
- an owner's mailbox holds few requests of a run at a time: the next are put when these are
  answered;
- proposals are read before snapshot B is asked for: one that is answered after that is in B.

Coroutines over ObjectStorage and Runtime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from segmentstore.contracts.errors import NotAStoreError
from segmentstore.contracts.runtime import Runtime
from tier2.catalog.catalog_manifest import Manifest
from tier2.catalog.catalog_names import parse_manifest_name
from tier2.catalog.catalog_snapshots import Unreadable, newest_snapshots
from tier2.mailbox.mailbox import each_message, put_message, read_message, wait_for_answers
from tier2.mailbox.messages import (
    Answer,
    CondemnRequest,
    ExportRequest,
    MessageFormatError,
    MessageKey,
    ReplaceProposal,
)
from tier2.object_names import store_tag
from tier2.object_storage import ObjectStorage
from tier2.spark.owner_bell import folder_of, wake_owner
from tier2.store_markers import StoreMarkers, stores_at

POLL_S: Final = 0.5
QUICK_POLL_S: Final = 0.1
QUICK_FOR_S: Final = 5.0
"""How often answers are looked for at first: a small catalog is exported at once, and most
proposals are answered when the last is put.
"""
MESSAGES_AT_ONCE: Final = 16
"""Read together."""
CONDEMNED_AT_ONCE: Final = 1000
"""Names in one request."""
REQUESTS_AT_ONCE: Final = 16
"""Put together; and to delete, what waits in one mailbox."""

ASK: Final = "ask"
"""Every owner exports its catalog, now, and says so."""
NEWEST: Final = "newest"
"""The newest snapshots are the last word: nobody has the store open, or it was exported by hand."""


class Snapshots(NamedTuple):
    """One look at the catalog of all containers."""

    manifests: Mapping[int, Manifest]
    """Of the containers that have a snapshot to rely on, by container."""
    untold: Mapping[int, str]
    """Why each other container has none."""
    containers: int
    """Of the store; 0 if nobody knows."""
    unreadable: Mapping[str, Unreadable] = {}
    """Manifests newer than these that cannot be read, and why."""

    @property
    def store_id(self) -> str | None:
        """Of the store; None without a snapshot."""
        return next((manifest.store_id for manifest in self.manifests.values()), None)


class Condemned(NamedTuple):
    """One request to make garbage of orphans, and what came of it."""

    container_id: int
    names: tuple[str, ...]
    verdict: str
    """Of the owner's answer; `pending` if none came in time, or to an earlier request."""
    reason: str
    condemned: tuple[str, ...]
    """What the owner made garbage of: it will be deleted after the deletion lag."""
    left_alone: Mapping[str, str]
    """What it found a reason to leave, and which."""


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
        """Tell an owner on this machine that there are messages.

        Whether it heard makes a difference of time alone.
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
            await self._insist_on_a_store()
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
        untold: dict[int, str] = {}
        for number in range(max(containers, 1)):
            reason = _why_not(answers.get(number), newest.get(number), self.timeout_s)
            if reason is None:
                manifests[number] = newest[number]
            else:
                untold[number] = reason
        return Snapshots(manifests, untold, containers, unreadable)

    async def _insist_on_a_store(self) -> None:
        """Nobody would answer where nobody is; and a message would begin a folder, which the maker
        of a store then refuses.
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
        store_id = await self._known_store()
        requests = [
            ExportRequest(number, self.run_id, f"export-{name}-{_drawn(self.runtime)}", store_id)
            for number in containers
        ]
        answers = await self._asked(requests)
        return {key.container_id: answer for key, answer in answers.items()}

    async def _asked(
        self, requests: Sequence[CondemnRequest] | Sequence[ExportRequest]
    ) -> dict[MessageKey, Answer]:
        for start in range(0, len(requests), REQUESTS_AT_ONCE):
            some = requests[start : start + REQUESTS_AT_ONCE]
            await asyncio.gather(
                *(put_message(self.storage, self.runtime, request) for request in some)
            )
        await self.wake()
        return await answers_to(self.storage, [each.key for each in requests], self.timeout_s)

    async def _known_store(self) -> str:
        """For which store requests are; empty if nobody says so: then each owner decides whether it
        is meant.
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

    async def condemn(
        self, orphans: Mapping[int, Sequence[str]], older_than_ms: int
    ) -> list[Condemned]:
        """Ask the owners to make garbage of `orphans` (by container), last modified before
        `older_than_ms` (wall time).

        Each owner judges again by itself, and is asked in rounds of REQUESTS_AT_ONCE requests, each
        with the whole of `timeout_s`. What has no answer in time is pending: the request stays, and
        is carried out whenever the owner comes to it. Who left one without an answer is asked no
        more.
        """
        store_id = await self._known_store()
        requests = {
            number: [
                CondemnRequest(
                    number,
                    self.run_id,
                    f"condemn-{first:08d}-{_drawn(self.runtime)}",
                    tuple(names[first : first + CONDEMNED_AT_ONCE]),
                    older_than_ms,
                    store_id,
                )
                for first in range(0, len(names), CONDEMNED_AT_ONCE)
            ]
            for number, names in sorted(orphans.items())
        }
        asked: dict[MessageKey, None] = {}
        answers: dict[MessageKey, Answer] = {}
        left = dict(requests)
        while left:
            some = [request for each in left.values() for request in each[:REQUESTS_AT_ONCE]]
            asked |= dict.fromkeys(request.key for request in some)
            answers |= await self._asked(some)
            silent = {request.container_id for request in some if request.key not in answers}
            left = {
                number: each[REQUESTS_AT_ONCE:]
                for number, each in left.items()
                if number not in silent and len(each) > REQUESTS_AT_ONCE
            }
        return [
            _condemned(
                request, answers.get(request.key), self.timeout_s, was_asked=request.key in asked
            )
            for each in requests.values()
            for request in each
        ]


async def answers_to(
    storage: ObjectStorage, keys: Sequence[MessageKey], timeout_s: float
) -> dict[MessageKey, Answer]:
    """What owners say to these messages within `timeout_s`."""
    quick_s = min(QUICK_FOR_S, timeout_s)
    answers = await wait_for_answers(storage, keys, quick_s, QUICK_POLL_S)
    left = [key for key in keys if key not in answers]
    if left and timeout_s > quick_s:
        answers |= await wait_for_answers(storage, left, timeout_s - quick_s, POLL_S)
    return answers


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


def _condemned(
    request: CondemnRequest, answer: Answer | None, timeout_s: float, *, was_asked: bool
) -> Condemned:
    if answer is None:
        reason = f"no answer within {timeout_s:g} s"
        if not was_asked:
            reason += " to an earlier request: this one was not made"
        return Condemned(request.container_id, request.names, "pending", reason, (), {})
    made, left = answer.detail.get("condemned"), answer.detail.get("left_alone")
    return Condemned(
        request.container_id,
        request.names,
        answer.verdict,
        answer.reason,
        tuple(map(str, made)) if isinstance(made, list) else (),
        {str(name): str(why) for name, why in left.items()} if isinstance(left, dict) else {},
    )
