"""A world whose bookies forget fences: an owner comes back when its ledgers are deleted and every
bookie was started again.

A bookie forgets the fence with the ledger, at the latest when it is started again. In drawn plans
that comes a minute after the deletion, and the first owner is back before. Here it comes at once,
and the owner late.
"""

from __future__ import annotations

import asyncio
from typing import Final

from recovery.harness.runs.plan import Cycle
from recovery.harness.runs.scenario import Scenario
from recovery.harness.simulation.world import SimulatedProcess

BACK_AFTER_S: Final = (0, 120)
"""From the end of the second owner's work: before and after the time at which it deletes its
predecessors' ledgers.
"""


class ForgottenFences(Scenario):
    """A scenario in which takeovers go that way."""

    def _takeover(
        self, first: SimulatedProcess, first_task: asyncio.Task[None], cycle: Cycle
    ) -> None:
        world, servers = self.world, self.world.bookkeeper
        world.image.expire_locks(first.name)
        second = world.process("rival")
        task = second.start(self._live(second, cycle, ()))
        world.run(task.done)
        world.run_task(second, asyncio.sleep(self._rng.choice(BACK_AFTER_S)))
        for bookie in servers.bookies:
            for ledger_id in [
                number for number in bookie.replicas if number not in servers.records
            ]:
                del bookie.replicas[ledger_id]
        first.resume()
        world.reach("owner.resumes")
        world.run(lambda: first_task.done() or first.dead)
        self._check_end(first, first_task, two_owners=True)
        world.kill(first)
        for process_run in self.history.process_runs:
            if process_run.ended is None and process_run.process == first.name:
                self._end_process_run(process_run, "takeover")
        self._end(second, task, cycle, two_owners=True)
