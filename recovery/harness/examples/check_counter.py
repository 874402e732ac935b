"""How to test a service of one's own in the simulated world: the counter, crashed again and again,
must not lose or double.

The pattern: the world is a driver's. Each process run of the service is a simulated process, which
dies before an effect that the seed picks (or when the driver likes). What clients know is kept
outside, as it would be on other machines. After every crash the service is asked for its state, and
that must lie between what was acknowledged and what was sent.

    python -m recovery.harness.examples.check_counter 100     # a hundred seeds
"""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from recovery.harness import ProcessDiedError, SimulatedProcess, StoreWorld, draw_settings
from recovery.harness.examples.counter_service import CounterService
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    TierUnavailableError,
)

if TYPE_CHECKING:
    from segmentstore import SegmentStore

CLIENTS: Final = 3
INCREMENTS: Final = 30
"""Of each client."""
DIES_BEFORE: Final = 100
"""Effects of a process run at most: a recovery takes some twenty to sixty, so that some process
runs end in one.
"""
RATES: Final = {
    "disk.sync.eio": 0.002,
    "disk.write.enospc": 0.002,
    "object.put.lost-reply": 0.1,
    "object.put.failed": 0.1,
}
"""What else goes wrong beside the crashes, by the names of the fault points, and how often."""
STOPPED: Final = (AppendOutcomeUnknownError, ContainerStoppedError, TierUnavailableError)
"""How a process run of the service may end by itself: the store could not go on, and the next
process run recovers.
"""


@dataclass(slots=True)
class CounterClient:
    """One client: what it wants counted, and how far it knows that it was."""

    id: uuid.UUID
    amounts: list[int]
    sent: int = 0
    """Increments that the service may have seen."""
    acknowledged: int = 0

    async def run(self, service: CounterService) -> None:
        """Send one increment after another, beginning with the one in doubt."""
        while self.acknowledged < len(self.amounts):
            number = self.acknowledged
            self.sent = max(self.sent, number + 1)
            await service.increment(self.id, number, self.amounts[number])
            self.acknowledged = number + 1


@dataclass(slots=True)
class CounterRun:
    """What one seed showed."""

    seed: str
    crashes: int = 0
    digest: str = ""
    """Of the trace: equal for equal seeds, else something in the service does not come from the
    seed.
    """
    problems: list[str] = field(default_factory=list)

    def check(self, service: CounterService, clients: list[CounterClient]) -> None:
        """Compare what a service that has just started says with what its clients know."""
        least = sum(sum(client.amounts[: client.acknowledged]) for client in clients)
        most = sum(sum(client.amounts[: client.sent]) for client in clients)
        if not least <= service.count <= most:
            self.problems.append(
                f"after {self.crashes} crashes the count is {service.count}, not {least} "
                f"(acknowledged) to {most} (sent)"
            )


def check_counter(seed: str, service: type[CounterService] = CounterService) -> CounterRun:
    """One run: crash the service until every client is done, then check once more.

    A few hundredths of a second.
    """
    world = StoreWorld(seed, rates=RATES)
    rng = world.random("driver")
    world.settings = draw_settings(rng)
    world.kernel_syncs = world.random("kernel syncs").random() < 0.5
    clients = [
        CounterClient(uuid.UUID(int=number + 1), [rng.randrange(1, 10) for _ in range(INCREMENTS)])
        for number in range(CLIENTS)
    ]
    run = CounterRun(seed)
    while any(client.acknowledged < len(client.amounts) for client in clients):
        process = world.process("service")
        process.dies_at = rng.randrange(DIES_BEFORE)
        try:
            world.run_task(process, _live(world, process, service, clients, run))
        except (ProcessDiedError, *STOPPED):
            pass  # it died, or the store stopped under it
        if rng.random() < 0.6:
            world.cut_power()
        else:
            world.kill(process)
        run.crashes += 1
    world.rates = {}
    last = world.process("service")
    world.run_task(last, _live(world, last, service, clients, run))
    world.close()
    run.digest = world.trace.digest()
    return run


async def _live(
    world: StoreWorld,
    process: SimulatedProcess,
    service: type[CounterService],
    clients: list[CounterClient],
    run: CounterRun,
) -> None:
    """One process run of the service: recover, be checked, serve."""
    store: SegmentStore = await world.open_store(process)
    started = await service.start(store)
    run.check(started, clients)
    results = await asyncio.gather(
        *(client.run(started) for client in clients), return_exceptions=True
    )
    errors = [result for result in results if isinstance(result, BaseException)]
    errors.sort(key=lambda error: isinstance(error, STOPPED))
    if errors:
        raise errors[0]  # unforeseen errors before expected ones


def main(arguments: list[str]) -> int:
    """Check so many seeds; 1 if any of them showed a problem."""
    runs = [
        check_counter(f"counter/{number}")
        for number in range(int(arguments[0]) if arguments else 100)
    ]
    for run in runs:
        for problem in run.problems:
            sys.stdout.write(f"seed {run.seed}: {problem}\n")
    crashes, bad = sum(run.crashes for run in runs), sum(bool(run.problems) for run in runs)
    sys.stdout.write(f"{len(runs)} seeds, {crashes} crashes, {bad} seeds with problems\n")
    return 1 if bad else 0


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # of containers that stop: here they do all the time
    sys.exit(main(sys.argv[1:]))
