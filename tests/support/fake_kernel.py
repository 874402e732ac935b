"""A kernel of the test's own: KernelSyncs that call a file's `sync`, in a later turn of the loop.

So the file log goes its second way on any disk, with what that disk counts, traps and refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from durablelog.file import group_commit
from segmentstore.contracts.disk import DiskFile, KernelSyncs, OsDisk

Done = Callable[[OSError | None], None]


class FakeKernel:
    """What all logs of a test have; on their loop."""

    def __init__(self) -> None:
        self.begun = 0
        self.holds = False
        """Syncs that begin now end behind a `release`."""
        self.refuses = False
        """None is begun any more."""
        self.held: list[Callable[[], None]] = []

    def syncs(self, _path: str = "") -> KernelSyncs:
        return FakeSyncs(self)

    def begin(self, file: DiskFile, done: Done) -> bool:
        if self.refuses:
            return False
        self.begun += 1
        end = partial(_end, asyncio.get_running_loop(), file, done)
        if self.holds:
            self.held.append(end)
        else:
            asyncio.get_running_loop().call_soon(end)
        return True

    def release(self) -> None:
        """What was held is synced now, and reported; what begins later is not held."""
        self.holds = False
        held, self.held = self.held, []
        for end in held:
            end()


def _end(loop: asyncio.AbstractEventLoop, file: DiskFile, done: Done) -> None:
    error = None
    try:
        file.sync()
    except OSError as failure:
        error = failure
    _report(loop, done, error)


def _report(loop: asyncio.AbstractEventLoop, done: Done, error: OSError | None) -> None:
    try:
        done(error)
    except BaseException:
        loop.call_soon(_report, loop, done, error)
        raise


class FakeSyncs:
    """The KernelSyncs of one log. They are ready at once."""

    def __init__(self, kernel: FakeKernel) -> None:
        self._kernel = kernel
        self._closed = False

    def load(self) -> None:
        assert not self._closed

    @property
    def ready(self) -> bool:
        return not self._closed

    def begin(self, file: DiskFile, done: Done) -> bool:
        assert self.ready
        return self._kernel.begin(file, done)

    def close(self) -> None:
        self._closed = True


def use(monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    """Have every disk on this machine's files use one, however slow a write to it is."""
    kernel = FakeKernel()
    monkeypatch.setattr(group_commit, "SLOW_WRITE_MS", 3_600_000)
    monkeypatch.setattr(OsDisk, "kernel_syncs", lambda _, path: kernel.syncs(path))
    return kernel


@pytest.fixture(params=["thread", "kernel"], autouse=True)
def syncs_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """For a module that imports it: each test runs with both ways by which groups are synced."""
    if request.param == "kernel":
        use(monkeypatch)
    else:
        monkeypatch.setattr(OsDisk, "kernel_syncs", lambda _, _path: None)
    return str(request.param)
