"""MetadataBackup: keeps a copy of a container's metadata in Tier 2, for the day when the log is
lost.

Theory of operation. On request (the log was truncated, the container has started, a checkpoint is
wanted) the committed metadata of that moment is put as one object. The newest few are kept. Nothing
ever waits for it but an ordinary close, for a while. Rules (docs/formats/tier2-checkpoint.md):

- one write at a time; what is asked for meanwhile, or too soon, becomes one write of what is newest
  then;
- an older copy is deleted only after a newer one is durable, and only this store's of our epoch or
  an older one. A stale owner can harm nothing that its successor wrote;
- a copy is whole, or it is not written: once segments are idle the metadata snapshots have all;
- a Tier 2 that fails shows in `health` and is tried again with back-off; no error goes further.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Final, Protocol

from durablelog.checkpoint_codec import encode_checkpoint
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.health import HealthNote
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.runtime import Runtime
from tier2.checkpoint_object import encode_checkpoint_object
from tier2.metadata_snapshots import list_snapshot_manifests
from tier2.object_names import checkpoint_name, checkpoint_prefix, parse_checkpoint_name
from tier2.object_storage import ObjectStorage
from tier2.unique_ids import new_copy_id

KEPT: Final = 3
"""Copies of one container that stay: the newest may be damaged, or cut off by an owner that was
stale.
"""
INTERVAL_S: Final = 60.0
"""Least time from one copy to the next, but for those asked for at once."""
_RETRY_MIN_S: Final = 1.0
_RETRY_MAX_S: Final = 60.0
_CHECK_S: Final = 0.1
"""How often a close checks whether its patience has ended."""


class BackupSource(Protocol):
    """The container, seen from here."""

    @property
    def metadata(self) -> ContainerMetadata:
        """The committed metadata; read only."""

    @property
    def epoch(self) -> int:
        """Of the container's log."""


class MetadataBackup:
    """The copies of one container; everything on its event loop.

    `containers` is how many the store has.
    """

    def __init__(
        self,
        source: BackupSource,
        storage: ObjectStorage,
        store_id: str,
        containers: int,
        runtime: Runtime,
    ) -> None:
        self._source = source
        self._storage = storage
        self._store_id = uuid.UUID(store_id)
        self._containers = containers
        self._clock = runtime.clock
        self._random = runtime.random
        self._backoff = Backoff(runtime.random, min_s=_RETRY_MIN_S, max_s=_RETRY_MAX_S)
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._attempted = asyncio.Event()
        self._wanted = self._urgent = self._saving = self._stopped = False
        self._not_before = 0.0
        self._saved_sequence = -1
        self._durable: list[str] | None = None  # names, oldest first; None until they were listed
        self._unconfirmed: list[str] = []  # puts of unknown outcome: to be deleted
        self.health = HealthNote(f"metadata copy in tier2 {storage.url}", runtime.clock)
        self.written = 0

    def start(self) -> None:
        """Begin to write when asked; the first copy at once: it shows the epoch."""
        assert self._task is None, "it starts once"
        name = f"metadata backup {self._source.metadata.container_id}"
        self._task = own_task(self._run(), name=name, on_failure=self._ended)
        self.request()

    def _ended(self, error: BaseException) -> None:
        if not self._stopped:
            self.health.failed(error)

    def request(self, *, now: bool = False) -> None:
        """Have the metadata written soon, as they are then; `now`: however short ago the last time
        was. O(1).
        """
        self._wanted = True
        self._urgent |= now
        self._wake.set()

    async def finish(self, timeout_s: float) -> None:
        """For an ordinary close: have what is new written, waiting at most `timeout_s`, and not
        for a Tier 2 that fails.
        """
        if self._task is None:
            return
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_s
        failing, failures = self.health.describe() is not None, self.health.failures
        self.request(now=True)
        while (
            (
                self._urgent or self._saving
            )  # what is asked for meanwhile without haste is not waited for
            and not failing
            and not self._task.done()
            and self.health.failures == failures
            and loop.time() < give_up
        ):
            self._attempted.clear()
            timer = loop.call_later(_CHECK_S, self._attempted.set)
            try:
                await self._attempted.wait()
            finally:
                timer.cancel()

    async def find_copy(self) -> str | None:
        """The name of a copy, or of a metadata snapshot, that this store ever made of the
        container; None if there is neither.

        For a log that holds nothing: both come after the first checkpoint, so there was more. A
        listing request or two. Raises StorageUnavailableError.
        """
        container_id = self._source.metadata.container_id
        async for page in self._storage.list(checkpoint_prefix(container_id)):
            for stored in page:
                named = parse_checkpoint_name(stored.name)
                if named is not None and named.is_of(self._store_id):
                    return stored.name
        snapshots = await list_snapshot_manifests(self._storage, container_id, self._store_id)
        return snapshots[0] if snapshots else None

    async def stop(self) -> None:
        """Cancel what runs and wait for it. Idempotent."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            if self._wanted and (self._urgent or self._not_before <= loop.time()):
                await self._save()
                continue
            timer = loop.call_at(self._not_before, self._wake.set) if self._wanted else None
            try:
                await self._wake.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    async def _save(self) -> None:
        """Write the newest metadata once; on failure it is wanted again later."""
        loop = asyncio.get_running_loop()
        self._wanted = self._urgent = False
        self._saving = True
        try:
            await self._put_newest()
            await self._delete_old()
        except Exception as error:  # noqa: BLE001 - whatever it is: a copy is not worth a container
            self.health.failed(error)
            self._wanted = True
            self._not_before = loop.time() + self._backoff.next_s()
        else:
            self.health.succeeded()
            self._backoff.reset()
            self._not_before = loop.time() + INTERVAL_S
        finally:
            self._saving = False
            self._attempted.set()

    async def _put_newest(self) -> None:
        metadata, epoch = self._source.metadata, self._source.epoch
        sequence_number = metadata.sequence_number
        if sequence_number == self._saved_sequence or not metadata.whole:
            return
        unique_id = new_copy_id(self._store_id, self._random)
        name = checkpoint_name(metadata.container_id, epoch, sequence_number, unique_id)
        parts = encode_checkpoint_object(
            store_id=self._store_id,
            containers=self._containers,
            container_id=metadata.container_id,
            epoch=epoch,
            sequence_number=sequence_number,
            time_ms=self._clock.time_ms(),
            blob=encode_checkpoint(metadata),
        )
        self._unconfirmed.append(name)
        await self._storage.put(name, parts, unique_id)
        self._unconfirmed.remove(name)
        self._saved_sequence = sequence_number
        self.written += 1
        if self._durable is not None:
            self._durable.append(name)

    async def _delete_old(self) -> None:
        if self._durable is None:
            self._durable = await self._list()
        while self._unconfirmed:
            await self._storage.delete(self._unconfirmed[0])
            del self._unconfirmed[0]
        while len(self._durable) > KEPT:
            await self._storage.delete(self._durable[0])
            del self._durable[0]

    async def _list(self) -> list[str]:
        """This store's copies, but for those of owners after us and those that are doubtful."""
        container_id, epoch = self._source.metadata.container_id, self._source.epoch
        names: list[str] = []
        async for page in self._storage.list(checkpoint_prefix(container_id)):
            names += [
                stored.name
                for stored in page
                if (named := parse_checkpoint_name(stored.name)) is not None
                and named.epoch <= epoch
                and named.is_of(self._store_id)
            ]
        return _without(sorted(names), self._unconfirmed)


def _without(names: Sequence[str], others: Sequence[str]) -> list[str]:
    return [name for name in names if name not in others]
