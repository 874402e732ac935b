"""Compaction jobs beside a live owner: plan, tasks and proposals of production, without Spark, in a
simulated process.

What Spark adds (partitions, retries, speculation, cancelled tasks, a driver that dies) is imitated
here. Attempts at one group run at the same time or one after the other, and are cut off anywhere.
The driver of its process kills the whole job between two effects. Rules of this file:

- a job knows the catalog, the mailbox and the objects: nothing of the store, nor of the clients'
  history;
- it may ask for what is wrong: objects that are wanted, chunks that are not so. The owner has to
  refuse that;
- an object storage that does not answer ends what the job was doing, as it ends a task of Spark;
  the next job begins anew.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from segmentstore.contracts.runtime import Runtime
from tier2.catalog.catalog_format_error import CatalogFormatError
from tier2.catalog.catalog_manifest import Manifest
from tier2.catalog.catalog_reading import read_table
from tier2.catalog.catalog_snapshots import newest_snapshots
from tier2.mailbox.mailbox import put_message, read_message, wait_for_answers
from tier2.mailbox.messages import Answer, ExportRequest, OrphanDeletionRequest, ReplaceProposal
from tier2.object_names import MessageKey, parse_object_name
from tier2.object_storage import ObjectStorage, StorageUnavailableError
from tier2.spark.compact.group import Group
from tier2.spark.compact.options import CompactionOptions
from tier2.spark.compact.plan import plan_groups
from tier2.spark.compact.task import UNFORESEEN, execute_group

_ANSWERS_S: Final = 40.0
_POLL_S: Final = 2.0
"""Each is a listing, which a simulated disk takes its time for; an answer that is learned of later
changes nothing.
"""
_DAY_MS: Final = 24 * 3600 * 1000
_GROUPS_MAX: Final = 4
"""Of one job: process runs are short."""


class CompactionJobs:
    """Jobs one after the other, in one process, on the objects of a store of so many containers.

    `answers` counts what their owners said, the jobs, and how groups were executed, over all
    processes. `jump` sets the clock forward by milliseconds, where that can be done. `pace`
    shortens pauses where time is real.
    """

    def __init__(
        self,
        storage: ObjectStorage,
        runtime: Runtime,
        containers: int,
        rng: random.Random,
        answers: Counter[str],
        *,
        jump: Callable[[int], None] = lambda _ms: None,
        pace: float = 1.0,
    ) -> None:
        self._storage = storage
        self._runtime = runtime
        self._containers = containers
        self._rng = rng
        self._answers = answers
        self._jump = jump
        self._pace = pace
        self._options = CompactionOptions()
        self._store_is_there = False

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            await self._pause(self._rng.choice([0.01, 0.3, 3.0]))
            try:
                await self._job()
            except StorageUnavailableError:
                await self._pause(self._rng.choice([0.1, 5.0]))

    async def _pause(self, seconds_max: float) -> None:
        await asyncio.sleep(self._rng.random() * seconds_max * self._pace)

    async def _job(self) -> None:
        if not self._store_is_there:
            # A real job ends at once where there is no store yet. Here it would begin one's folder,
            # which its maker then refuses.
            self._store_is_there = bool(
                [stored async for page in self._storage.list() for stored in page]
            )
            return
        job_id = f"{self._rng.getrandbits(64):016x}"
        self._answers["jobs"] += 1
        if self._rng.random() < 0.8:
            await self._ask_for_catalogs(job_id)
        for container_id, manifest in (await newest_snapshots(self._storage)).items():
            groups = await self._plan(container_id, manifest)
            keys = [key for group in groups for key in await self._work_at(group, job_id)]
            if self._rng.random() < 0.3:
                keys += await self._mark_for_deletion(container_id, job_id, manifest.store_id)
            if self._rng.random() < 0.1:
                # What was proposed may expire, and what is unreferenced may be deleted.
                self._jump(self._rng.choice([1, _DAY_MS + 1]))
            await self._await_answers(keys)

    async def _ask_for_catalogs(self, job_id: str) -> None:
        keys = []
        for container_id in range(self._containers):
            request = ExportRequest(container_id, job_id, "export")
            await put_message(self._storage, self._runtime, request)
            keys.append(request.key)
        await self._await_answers(keys)

    async def _plan(self, container_id: int, manifest: Manifest) -> list[Group]:
        """Some groups of a container, as its catalog has it: perhaps long out of date."""
        rng = self._rng
        target = rng.choice([200, 1000, 5000])
        options = CompactionOptions(
            target_file_size_bytes=target,
            min_input_files=rng.choice([2, 2, 5]),
            delete_ratio_threshold=rng.choice([0.1, 0.5]),
            older_than_ms=0,
            block_bytes=rng.choice([50, target, 64 * target]),
            extent_bytes=rng.choice([16, 256, 4096]),
            compression=rng.choice(["keep", "none", "zstd"]),
        )
        try:
            segments = await read_table(self._storage, manifest, "segments")
            chunks = await read_table(self._storage, manifest, "chunks")
        except CatalogFormatError:
            # What is a day old may be deleted, its manifest first. The owner's clock may be a day
            # before that of Tier 2, or jump by one while the manifest is on its way. Then a
            # manifest may arrive behind the deletion of its tables.
            stored = await self._storage.head(manifest.name)
            age_ms = self._runtime.clock.time_ms() - manifest.time_ms
            if stored is None or max(age_ms, manifest.time_ms - stored.modified_ms) > _DAY_MS // 2:
                return []
            raise
        plan = plan_groups(
            segments,
            chunks,
            options,
            container_id=container_id,
            epoch=manifest.epoch,
            now_ms=self._runtime.clock.time_ms(),
            store_id=manifest.store_id,
        )
        chosen = rng.sample(plan.groups, min(len(plan.groups), _GROUPS_MAX))
        self._options = options
        return [plan.group(planned) for planned in chosen]

    async def _work_at(self, group: Group, job_id: str) -> list[MessageKey]:
        """One attempt, or two at once, or one that is cut off and another; the keys to wait for."""
        rng = self._rng
        attempts = 2 if rng.random() < 0.3 else 1
        tasks = [
            asyncio.get_running_loop().create_task(self._attempt(group, job_id))
            for _ in range(attempts)
        ]
        if rng.random() < 0.2:
            await self._pause(0.05)
            tasks[0].cancel()
            tasks.append(asyncio.get_running_loop().create_task(self._attempt(group, job_id)))
        await asyncio.wait(tasks)
        for task in tasks:
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, StorageUnavailableError):
                raise error
        key = MessageKey(group.container_id, job_id, group.group_id)
        return [key, *await self._forge(key)] if rng.random() < 0.15 else [key]

    async def _attempt(self, group: Group, job_id: str) -> None:
        result = await execute_group(
            self._storage, self._runtime, group, job_id=job_id, options=self._options
        )
        # A task of Spark goes on with its next group. Here it is a finding.
        assert not result.reason.startswith(UNFORESEEN), result.reason
        self._answers[result.outcome] += 1
        if result.method:
            self._answers[result.method] += 1

    async def _forge(self, key: MessageKey) -> list[MessageKey]:
        """The same proposal with a chunk that is not so: the owner must see it from what it knows
        and what it reads.
        """
        message = await read_message(self._storage, key)
        if not isinstance(message, ReplaceProposal):
            return []
        rng = self._rng
        first = message.replacements[0]
        new = first.new[0]
        wrong = rng.choice(
            [
                new._replace(block_offset=new.block_offset + rng.choice([1, 16, 128])),
                new._replace(block_start_offset=new.block_start_offset + 1),
                new._replace(block_segment_id=new.block_segment_id + 1),
                new._replace(length=new.length + 1),
                new._replace(start_offset=new.start_offset + 1),
            ]
        )
        forged = message._replace(
            message_id=f"{key.message_id}-forged",
            replacements=(first._replace(new=(wrong, *first.new[1:])), *message.replacements[1:]),
        )
        await put_message(self._storage, self._runtime, forged)
        return [forged.key]

    async def _mark_for_deletion(
        self, container_id: int, job_id: str, store_id: str
    ) -> list[MessageKey]:
        """Ask for objects to be taken away, whatever they are: live, in flight, garbage,
        orphans.
        """
        found: list[str] = []
        async for page in self._storage.list():
            found += [stored.name for stored in page if parse_object_name(stored.name) is not None]
        if not found:
            return []
        names = self._rng.sample(found, min(len(found), self._rng.choice([1, 5, 50])))
        age_ms = self._rng.choice([0, 1000, _DAY_MS])
        request = OrphanDeletionRequest(
            container_id,
            job_id,
            f"condemn-{self._rng.randrange(1000)}",
            tuple(names),
            older_than_ms=self._runtime.clock.time_ms() - age_ms,
            store_id=store_id,
        )
        await put_message(self._storage, self._runtime, request)
        return [request.key]

    async def _await_answers(self, keys: Sequence[MessageKey]) -> dict[MessageKey, Answer]:
        timeout_s = self._rng.choice([0.0, 1.0, _ANSWERS_S]) * self._pace
        answers = await wait_for_answers(self._storage, keys, timeout_s, _POLL_S * self._pace)
        for answer in answers.values():
            self._answers[answer.verdict] += 1
        return answers
