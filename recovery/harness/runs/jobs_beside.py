"""Jobs beside the owner: the process they run in, which outlives the owner's, or dies before it.

Killed by chance between two of its effects, or at the beginning of a process run of the store; a
power cut takes it along.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from recovery.harness.simulation.store_world import StoreWorld
from recovery.harness.simulation.world import ProcessDiedError, SimulatedProcess
from recovery.harness.workloads.compaction_jobs import CompactionJobs
from tier2.catalog.catalog_format_error import CatalogFormatError
from tier2.mailbox.messages import MessageFormatError

_KILLED_SHARE = 0.3
_DIES_SHARE = 0.5
_EFFECTS_MAX = 40


class JobsBeside:
    """One process of jobs at a time. The driver's: draws from a generator of its own."""

    def __init__(self, world: StoreWorld, containers: int) -> None:
        self._world = world
        self._containers = containers
        self._rng = world.random("jobs-driver")
        self._process: SimulatedProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self.answers: Counter[str] = Counter()

    def tend(self) -> BaseException | None:
        """At the beginning of a process run: see to it that there are jobs; the error that ended
        those before, if one did.
        """
        error = self.error()
        over = self._task is not None and self._task.done()
        if self._process is not None and (over or self._rng.random() < _KILLED_SHARE):
            self.end()
        if self._process is None or self._process.dead:
            process = self._world.process("job")
            if self._rng.random() < _DIES_SHARE:
                process.dies_at = self._rng.randrange(_EFFECTS_MAX)
            self._process = process
            jobs = CompactionJobs(
                self._world.object_storage(process),
                process.runtime,
                self._containers,
                self._world.random(f"jobs/{process.name}"),
                self.answers,
                jump=self._world.clock.jump,
            )
            self._task = process.start(jobs.run())
        return error

    def error(self) -> BaseException | None:
        """What ended the jobs, if they ended by themselves."""
        task, process = self._task, self._process
        if task is None or process is None or process.dead or not task.done() or task.cancelled():
            return None
        error = task.exception()
        # What a read gave in the place of a manifest is no manifest: the job says so and ends, and
        # another one begins.
        if isinstance(error, CatalogFormatError | MessageFormatError) and self._world.points.struck(
            "object.get."
        ):
            return None
        return None if isinstance(error, ProcessDiedError) else error

    def end(self) -> None:
        """Kill the process."""
        if self._process is not None and not self._process.dead:
            self._world.kill(self._process)
        self._process = self._task = None
