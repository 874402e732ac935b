"""World: what is outside of the processes, and which of them runs next.

A driver (plain code, not on any loop) makes processes, starts coroutines in them, and lets the
world run until something holds. Rules of this file:

- one seed decides everything: each part draws from a generator of its own (`random(purpose)`), so
  that a draw more in one part does not change the others;
- a process that died is never run again, and nothing it still does has an effect;
- every effect on the outside passes `SimulatedProcess.effect` before it happens: that is where
  crashes strike.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import CoroutineType
from typing import Any, Final, TypeVar

from greenlet import greenlet

from recovery.harness.simulation.clock import SimulatedClock
from recovery.harness.simulation.disk import SimulatedDisk
from recovery.harness.simulation.disk_image import DiskImage
from recovery.harness.simulation.fault_points import FaultPoints
from recovery.harness.simulation.jobs import (
    SimulatedExecutor,
    SimulatedLock,
    end_jobs,
    give_way,
    is_job,
)
from recovery.harness.simulation.kernel_syncs import SimulatedKernelSyncs
from recovery.harness.simulation.processes import SimulatedProcesses
from recovery.harness.simulation.trace import Trace
from recovery.harness.simulation.virtual_loop import (
    MICROSECONDS,
    STANDING_TURNS_MAX,
    DeadlockError,
    VirtualLoop,
    VirtualTime,
    WedgedError,
)
from segmentstore.contracts.runtime import BootTime, Runtime

T = TypeVar("T")

_UPTIME_MS_MAX = 100 * 24 * 3600 * 1000
"""Machines have run for some time when the world begins, and where one goes on another may
follow.
"""
TIMEOUT_S = 4 * 3600.0
"""Virtual time after which a wait of the driver counts as hanging."""


_HARNESS: Final = str(Path(__file__).parent.parent)


class ProcessDiedError(BaseException):
    """Raised in whatever a process was doing when it died; no handler catches it."""


class World:
    """One simulated world.

    `rates` gives fault points their probabilities; the others never strike. `kernel_syncs`: the
    kernel syncs small groups of file logs, which the event loop writes then.
    """

    def __init__(
        self,
        seed: str,
        *,
        rates: Mapping[str, float] | None = None,
        kernel_syncs: bool = False,
        keep_trace: bool = False,
    ) -> None:
        self.seed = seed
        self.kernel_syncs = kernel_syncs
        self.time = VirtualTime()
        self.clock = SimulatedClock(self.time)
        self.trace = Trace(keep=keep_trace)
        self.points = FaultPoints()
        self.image = DiskImage()
        self.processes: list[SimulatedProcess] = []
        self.rates = dict(rates or {})
        self.unhandled: list[str] = []
        """Errors of living processes that no code waited for: reported by their event loops."""
        self.effects = 0
        self._boots = self.random("boots")
        self._boot = BootTime(self._boots.randbytes(16), self._boots.randrange(_UPTIME_MS_MAX))
        """When time began in this world, by the machine that is running."""
        self._rng = self.random("faults")
        self._turns = self.random("turns")
        self._processes_created = 0
        self._dead: list[SimulatedProcess] = []

    def random(self, purpose: str) -> random.Random:
        """A generator for one purpose, the same for the same seed and purpose."""
        return random.Random(f"{self.seed}/{purpose}")

    def boot_time(self) -> BootTime:
        """Now, by the time since the machine was started."""
        return self._boot._replace(elapsed_ms=self._boot.elapsed_ms + self.time.now_us // 1000)

    def strikes(self, point: str) -> bool:
        """True if the fault of this name happens now; counted and traced then."""
        rate = self.rates.get(point)
        if not rate or self._rng.random() >= rate:
            return False
        self.reach(point)
        return True

    def reach(self, point: str) -> None:
        """Count a fault point that has been reached by other means than `strikes`."""
        self.points.hit(point)
        self.trace.add(f"{self.time.now_us} fault {point}")

    def process(self, name: str) -> SimulatedProcess:
        """A new process."""
        self._processes_created += 1
        made = SimulatedProcess(self, f"{name}.{self._processes_created}")
        self.processes.append(made)
        return made

    def run(self, until: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
        """Let everything run until it holds. Raises DeadlockError, WedgedError."""
        end_us = self.time.now_us + round(timeout_s * MICROSECONDS)
        turns_left = STANDING_TURNS_MAX
        while not until():
            running = [process for process in self.processes if not process.paused]
            if len(running) == 1:
                running[0].loop.run_alone(until, end_us)
                continue
            now_us = self.time.now_us
            ready, next_us = [], None
            for process in running:
                due_us = process.loop.next_due_us()
                if due_us == now_us:
                    ready.append(process)
                elif due_us is not None and (next_us is None or due_us < next_us):
                    next_us = due_us
            if ready:
                self._turns.choice(ready).loop.run_ready()
                turns_left -= 1
                if not turns_left:
                    raise WedgedError(f"busy for ever at {self.time.now_us} us")
                continue
            turns_left = STANDING_TURNS_MAX
            if next_us is None:
                raise DeadlockError(
                    f"every process waits and no timer is set at {self.time.now_us} us"
                )
            self.time.now_us = next_us
            if self.time.now_us > end_us:
                raise WedgedError(f"not come about in {timeout_s} s of virtual time")

    def run_task(
        self,
        process: SimulatedProcess,
        main: Coroutine[Any, Any, T],
        timeout_s: float = TIMEOUT_S,
    ) -> T:
        """Run a coroutine in a process to its end.

        Raises ProcessDiedError if the process dies of it.
        """
        task = process.start(main)
        self.run(lambda: task.done() or process.dead, timeout_s)
        if process.dead:
            raise ProcessDiedError(process.name)
        return task.result()

    def kill(self, process: SimulatedProcess) -> None:
        """SIGKILL: the process has ended, what it wrote stays with the operating system."""
        if process in self.processes:
            self.processes.remove(process)
            self._dead.append(process)
            self.trace.add(f"{self.time.now_us} {process.name} dies")
            process.dead = True
            self.image.release_locks(process.name)
            process.end()

    def cut_power(self) -> None:
        """Every process dies, and of what was not synced the disk keeps what chance decides."""
        for process in list(self.processes):
            self.kill(process)
        self.image.lose_power(self.random(f"power/{self.time.now_us}"), self.reach)
        self._boot = BootTime(self._boots.randbytes(16), self._boots.randrange(_UPTIME_MS_MAX))

    def close(self) -> None:
        """End everything, and forget what the dead were doing."""
        for process in list(self.processes):
            self.kill(process)
        for process in self._dead:
            end_jobs(process.jobs)
        self._dead.clear()


class SimulatedProcess:
    """A process with an event loop, a view of the disk, and a generator of its own.

    `runtime` is for the store.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.loop = VirtualLoop(world.time)
        self.loop.set_exception_handler(self._unhandled)
        self.random = world.random(f"process/{name}")
        self.dead = False
        self.jobs: dict[greenlet, None] = {}
        """Begun and not ended."""
        self.paused = False
        self.effects = 0
        self.dies_at: int | None = None
        """The process dies before its effect of this number (from 0)."""
        self.dies_before = ""
        """The process dies before its next effect of this kind."""
        self.dies_after = ""
        """The process dies before the effect that follows one of this kind."""
        self.let_pass = 0
        """Effects of that kind that pass before."""
        self.stops_at: int | None = None
        """The process is paused before its effect of this number."""
        self.reads = 0
        self.stops_behind: int | None = None
        """The process is paused behind its check of this number (from 0) at a disk."""
        self.cancels_at: int | None = None
        """Effect of this number at which the program cancels the tasks of others that its loop
        lists.
        """
        self.cancels_again: int | None = None
        """Effects after that at which it does so once more."""
        self.cancellations = 0
        self.fills_at: int | None = None
        """The disk becomes full before its effect of this number."""
        self.last_effect = ""
        self._logs_opened = 0
        self.on_effect: Callable[[SimulatedProcess, str], None] | None = None
        """Receives the kind of each effect before it happens."""
        self.runtime = Runtime(
            clock=world.clock,
            boot=world.boot_time,
            processes=SimulatedProcesses(
                name, lambda: [process.name for process in world.processes]
            ),
            random=world.random(f"process/{name}/store"),
            disk=SimulatedDisk(world.image, self, self._kernel_syncs),
            executor=self._executor,
            lock=lambda: SimulatedLock(self.loop),
        )

    def _executor(self, _name: str, threads: int) -> SimulatedExecutor:
        return SimulatedExecutor(self.loop, threads, self.jobs)

    def _kernel_syncs(self) -> SimulatedKernelSyncs | None:
        if not self.world.kernel_syncs:
            return None
        self._logs_opened += 1
        rng = self.world.random(f"process/{self.name}/kernel-syncs/{self._logs_opened}")
        return SimulatedKernelSyncs(self.loop, self._executor("kernel", 1), rng, self.world.reach)

    def start(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a coroutine in this process."""
        return self.loop.create_task(main)

    def effect(self, kind: str, place: str, detail: str = "") -> None:
        """About to change something outside: `kind` is from fault_points.EFFECTS.

        Raises ProcessDiedError if it dies here.
        """
        if self.dead:
            raise ProcessDiedError(self.name)
        if self.on_effect is not None:
            self.on_effect(self, kind)
        number = self.effects
        self.effects = number + 1
        self.world.effects += 1
        self.world.trace.add(f"{self.world.time.now_us} {self.name} {kind} {place} {detail}")
        if number == self.fills_at:
            self.world.image.fill()
        if number == self.dies_at or (kind == self.dies_before and self._is_due()):
            self.die(kind)
        if self.dies_after and self.dies_after == self.last_effect and self._is_due():
            self.die(kind)
        if number == self.cancels_at:
            self.cancels_at = (
                None if self.cancels_again is None else number + 1 + self.cancels_again
            )
            self.cancels_again = None
            self.loop.call_soon(self._cancel_tasks)
        if number == self.stops_at:
            self.pause()
            self.world.reach("owner.paused-before-effect")
            give_way(self.loop, 0.0)
        self.last_effect = kind

    def _cancel_tasks(self) -> None:
        """What programs do to end a loop: but the harness's own tasks go on, to see what becomes of
        their calls.
        """
        theirs = [task for task in asyncio.all_tasks(self.loop) if _HARNESS not in _code_file(task)]
        if theirs:
            self.cancellations += 1
            self.world.reach("owner.tasks-cancelled")
        for task in sorted(theirs, key=hash):
            task.cancel()

    def note_read(self) -> None:
        """Has seen something of a disk, and done nothing about it yet."""
        number = self.reads
        self.reads = number + 1
        if number == self.stops_behind:
            self.pause()
            self.world.reach("owner.paused-behind-look")
            give_way(self.loop, 0.0)

    def _is_due(self) -> bool:
        self.let_pass -= 1
        return self.let_pass < 0

    def pause(self) -> None:
        """SIGSTOP: nothing of it runs until `resume`."""
        self.paused = self.loop.interrupted = True

    def resume(self) -> None:
        """SIGCONT."""
        self.paused = self.loop.interrupted = False

    def die(self, kind: str) -> None:
        """Die here, before an effect of this kind."""
        self.world.reach(f"crash.before.{kind}")
        if self.last_effect:
            self.world.reach(f"crash.after.{self.last_effect}")
        self.world.kill(self)
        raise ProcessDiedError(self.name)

    def give_way(self, seconds: float) -> None:
        """Let time pass for the job that calls.

        Where the kernel syncs, the loop itself calls too, and then nothing runs for so long.
        """
        if self.dead:
            raise ProcessDiedError(self.name)
        if self.world.kernel_syncs and not is_job():
            self.world.time.now_us += round(seconds * MICROSECONDS)
        give_way(self.loop, seconds)
        if self.dead:
            raise ProcessDiedError(self.name)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, ProcessDiedError):
            self.world.unhandled.append(
                f"{context.get('message')}: {type(error).__name__}: {error}"
            )

    def end(self) -> None:
        """Nothing of it runs any more."""
        self.dead = True
        self.loop.discard()


def _code_file(task: asyncio.Task[Any]) -> str:
    coroutine = task.get_coro()
    return coroutine.cr_code.co_filename if isinstance(coroutine, CoroutineType) else ""
