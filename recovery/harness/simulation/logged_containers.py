"""LoggedContainers: containers of one simulated host that are a log and nothing else.

What an assignment can do wrong shows in them as in whole containers: their log is the one in
memory, with real epochs and fencing. They cost some hundredths of what those cost. Rules of this
file:

- appends wait in a queue before they go to the log. A stop waits until that is empty;
- one whose append is refused, because another owner has opened the log, has failed. Until then it
  believes to serve.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from durablelog.durable_data_log import LogAddress
from durablelog.memory_data_log import MemoryDataLog, MemoryLogStore
from recovery.harness.simulation.world import SimulatedProcess
from segmentstore.container import PRESENT, STARTS_AT_ONCE, ContainerStatus, HostState
from segmentstore.contracts.errors import ContainerNotServedError, NotPrimaryError
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.runtime import Clock

START_S: Final = (0.01, 0.3)
STOP_S: Final = (0.01, 0.3)
QUEUED_S: Final = (0.0, 0.1)
_STEP_S: Final = 0.01


class LoggedContainer:
    """One that serves, from its opening to its stop."""

    def __init__(self, log: MemoryDataLog, rng: random.Random) -> None:
        self._log = log
        self._random = rng
        self.queued = 0
        """Appends that are taken, and not answered."""

    @property
    def epoch(self) -> int:
        """Of its log."""
        return self._log.epoch

    async def append(self, data: bytes) -> LogAddress:
        """Return when it is durable. Raises NotPrimaryError: another owner has opened the log."""
        self.queued += 1
        try:
            await asyncio.sleep(self._random.uniform(*QUEUED_S))
            return await self._log.append([data])
        finally:
            self.queued -= 1

    async def check_primary(self) -> None:
        """Raise NotPrimaryError if another owner has opened the log."""
        await self._log.check_primary()

    async def stop(self) -> None:
        """Return when nothing is queued."""
        while self.queued:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(_STEP_S)
        await self._log.close()


class LoggedContainers:
    """`HostedContainers` of one process; `logs` is what all processes share."""

    def __init__(self, logs: MemoryLogStore, process: SimulatedProcess, clock: Clock) -> None:
        self._logs = logs
        self._random = process.random
        self._clock = clock
        self._turns = asyncio.Semaphore(STARTS_AT_ONCE)
        self._statuses: dict[int, ContainerStatus] = {}
        self._running: dict[int, LoggedContainer] = {}
        self._starting: dict[int, asyncio.Task[None]] = {}
        self._confirming: set[asyncio.Task[None]] = set()
        self.on_change: Callable[[], object] = _nothing

    def statuses(self) -> dict[int, ContainerStatus]:
        """As `HostedContainers`."""
        return dict(self._statuses)

    def running(self, number: int) -> LoggedContainer | None:
        """One that believes to serve."""
        return self._running.get(number)

    @property
    def served(self) -> list[int]:
        """Numbers of those that believe to serve, ascending."""
        return sorted(self._running)

    async def start(self, number: int) -> None:
        """As `HostedContainers`."""
        if number in self._running:
            return
        task = self._starting.get(number)
        if task is None:
            self._set(number, HostState.STARTING)
            task = self._starting[number] = own_task(self._start(number), name=f"start-{number}")
            task.add_done_callback(lambda _: self._starting.pop(number))
        await asyncio.wait((task,))
        if task.cancelled():
            raise ContainerNotServedError(number, "it was stopped while it was being started")
        task.result()

    async def _start(self, number: int) -> None:
        async with self._turns:
            await asyncio.sleep(self._random.uniform(*START_S))
            log = MemoryDataLog(self._logs, number)
            await log.open()
        self._running[number] = LoggedContainer(log, self._random)
        self._set(number, HostState.RUNNING)

    async def hand_over(self, number: int, is_wanted: Callable[[], bool]) -> None:
        """As `HostedContainers`."""
        await asyncio.sleep(self._random.uniform(*STOP_S))
        if is_wanted():
            await self.stop(number)

    async def stop(self, number: int) -> None:
        """As `HostedContainers`."""
        status = self._statuses.get(number)
        if status is None or status.state not in PRESENT | {HostState.FAILED}:
            return
        starting, container = self._starting.get(number), self._running.pop(number, None)
        self._set(number, HostState.STOPPING)
        if starting is not None:
            starting.cancel()
            await asyncio.wait((starting,))
            container = self._running.pop(number, None)
        if container is not None:
            await container.stop()
            await asyncio.sleep(self._random.uniform(*STOP_S))
        self._set(number, HostState.STOPPED)

    def confirm(self, number: int) -> None:
        """As `HostedContainers`."""
        container = self._running.get(number)
        if container is not None:
            task = own_task(self._confirm(number, container), name=f"confirm-{number}")
            self._confirming.add(task)
            task.add_done_callback(self._confirming.discard)

    async def _confirm(self, number: int, container: LoggedContainer) -> None:
        try:
            await container.check_primary()
        except NotPrimaryError as error:
            self._fail(number, container, error)

    async def append(self, number: int, data: bytes) -> LogAddress:
        """Append to one that believes to serve.

        Raises ContainerNotServedError, NotPrimaryError.
        """
        container = self._running.get(number)
        if container is None:
            raise ContainerNotServedError(number, "it is not here")
        try:
            return await container.append(data)
        except NotPrimaryError as error:
            self._fail(number, container, error)
            raise

    def _fail(self, number: int, container: LoggedContainer, cause: NotPrimaryError) -> None:
        if self._running.get(number) is container:
            del self._running[number]
            self._set(number, HostState.FAILED, cause)

    def _set(self, number: int, state: HostState, cause: NotPrimaryError | None = None) -> None:
        self._statuses[number] = ContainerStatus(state, self._clock.time_ms(), cause)
        self.on_change()


def _nothing() -> None:
    pass
