"""AioSyncs on real files: each sync that is begun ends in one report on its loop."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.aio_syncs import REQUESTS_MAX, AioSyncs
from segmentstore.contracts.disk import DiskFile, OsDisk, OsFile
from segmentstore.contracts.event_loops import new_uvloop
from tests.store.harness import until

LOOPS = [asyncio.SelectorEventLoop, new_uvloop]
Factory = Callable[[], asyncio.AbstractEventLoop]
Reports = list[OSError | None]


def on(factory: Factory, main: Any) -> Any:
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(asyncio.wait_for(main, 60))


def contexts() -> int:
    """How many this process has: the kernel maps a ring for each."""
    gc.collect()
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("[aio]")


def descriptors() -> int:
    gc.collect()  # Another test's may be closed by it at any time.
    return len(os.listdir("/proc/self/fd"))


def loaded() -> AioSyncs:
    syncs = AioSyncs()
    syncs.load()
    return syncs


def ready(syncs: AioSyncs) -> bool:
    """A call, for what the type checker takes to be unchanged."""
    return syncs.ready


class Descriptor:
    """A file that is nothing but its number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def fileno(self) -> int:
        return self.number


def plain(number: int) -> DiskFile:
    return cast("DiskFile", Descriptor(number))


@pytest.fixture
def file(tmp_path: Path) -> Iterator[OsFile]:
    file = OsDisk().open(str(tmp_path / "file"), write=True, create=True)
    file.pwrite([b"content"], 0)
    yield file
    file.close()


@pytest.mark.parametrize("factory", LOOPS)
def test_a_sync_ends_in_one_report_on_its_loop(factory: Factory, file: OsFile) -> None:
    async def main() -> None:
        syncs, reports = AioSyncs(), Reports()
        assert not ready(syncs)
        syncs.load()
        assert ready(syncs)
        loop = asyncio.get_running_loop()

        def done(error: OSError | None) -> None:
            assert asyncio.get_running_loop() is loop
            reports.append(error)

        for number in range(3):
            file.pwrite([b"%d" % number], number)
            assert syncs.begin(file, done)
            assert len(reports) == number
            await until(lambda number=number: len(reports) > number)  # type: ignore[misc]
        assert reports == [None] * 3
        syncs.close()
        syncs.close()
        assert not ready(syncs)

    on(factory, main())


@pytest.mark.parametrize("factory", LOOPS)
def test_a_context_takes_no_more_than_its_requests(factory: Factory, file: OsFile) -> None:
    async def main() -> None:
        syncs, other, reports = loaded(), loaded(), Reports()
        for number in range(REQUESTS_MAX):
            assert ready(syncs)
            assert ready(other)
            assert (syncs, other)[number % 2].begin(file, reports.append)
        assert not ready(syncs)
        assert not ready(other)
        # The kernel may have room for some more; what it takes, it reports.
        more = sum(syncs.begin(file, reports.append) for _ in range(3))
        await until(lambda: len(reports) == REQUESTS_MAX + more)
        assert ready(syncs)
        assert syncs.begin(file, reports.append)
        await until(lambda: len(reports) == REQUESTS_MAX + more + 1)
        assert set(reports) == {None}
        syncs.close()
        other.close()

    on(factory, main())


@pytest.mark.parametrize("factory", LOOPS)
def test_what_cannot_be_synced_is_refused_and_the_next_is_not(
    factory: Factory, file: OsFile
) -> None:
    async def main() -> None:
        syncs, reports = loaded(), Reports()
        assert ready(syncs)
        reading, writing = os.pipe()
        event = os.eventfd(0)
        os.close(closed := os.dup(reading))
        for number in (reading, writing, event, closed):
            assert not syncs.begin(plain(number), reports.append)
        assert syncs.begin(file, reports.append)
        await until(lambda: bool(reports))
        for number in (reading, writing, event):
            os.close(number)
        assert reports == [None]
        syncs.close()

    on(factory, main())


def test_the_kernels_answer_becomes_an_error(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a package whose kernel has a broken disk: it hands on the answer without its sign."""

    class Operation:
        @classmethod
        def fdsync(cls, descriptor: int) -> Operation:
            assert descriptor == file.fileno()
            return cls()

        def set_callback(self, callback: Callable[[int], object]) -> None:
            self.callback = callback

    class Context:
        def __init__(self, requests: int) -> None:
            assert requests == REQUESTS_MAX
            self.fileno = os.eventfd(0, os.EFD_NONBLOCK)
            self.taken: list[Operation] = []

        def submit(self, operation: Operation) -> int:
            self.taken.append(operation)
            os.eventfd_write(self.fileno, 1)
            return 1

        def poll(self) -> int:
            return os.eventfd_read(self.fileno)

        def process_events(self, _most: int) -> int:
            taken, self.taken = self.taken, []
            for operation in taken:
                operation.callback((1 << 64) - errno.EIO)
            return len(taken)

        def __del__(self) -> None:
            os.close(self.fileno)

    monkeypatch.setattr("caio.linux_aio.Operation", Operation)
    monkeypatch.setattr("caio.linux_aio.Context", Context)

    async def main() -> None:
        syncs, reports = loaded(), Reports()
        assert ready(syncs)
        assert syncs.begin(file, reports.append)
        await until(lambda: bool(reports))
        assert [error and (error.errno, error.strerror) for error in reports] == [
            (errno.EIO, os.strerror(errno.EIO))
        ]
        syncs.close()

    on(asyncio.SelectorEventLoop, main())


@pytest.mark.parametrize("factory", LOOPS)
def test_a_report_that_raises_is_repeated_and_no_other_is_lost(
    factory: Factory, file: OsFile
) -> None:
    async def main() -> None:
        syncs, reports, raised = loaded(), list[int](), list[str]()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: raised.append(str(context["exception"])))
        left = {1: 2, 3: 1}

        def reporting(number: int) -> Callable[[OSError | None], None]:
            def done(error: OSError | None) -> None:
                assert error is None
                if left.get(number):
                    left[number] -= 1
                    raise ValueError(number)
                reports.append(number)

            return done

        assert ready(syncs)
        for number in range(6):
            assert syncs.begin(file, reporting(number))
        await until(lambda: len(reports) == 6)
        assert sorted(reports) == list(range(6))
        assert sorted(raised) == ["1", "1", "3"]
        syncs.close()

    on(factory, main())


class InterruptError(KeyboardInterrupt):
    """What a signal handler raises."""


class Interrupted:
    """A context of the package's, one call of which a signal handler interrupts once."""

    def __init__(self, context: Any, call: str) -> None:
        self._context = context
        self._call = call
        self._left = [1]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._context, name)
        if name != self._call:
            return found

        def call(*arguments: object) -> Any:
            result = found(*arguments)
            while self._left:
                self._left.pop()
                raise InterruptError
            return result

        return call


@pytest.mark.parametrize("call", ["poll", "process_events"])
@pytest.mark.parametrize("factory", LOOPS)
def test_an_interrupted_wake_up_loses_no_report(factory: Factory, call: str, file: OsFile) -> None:
    loop = factory()
    syncs, reports = loaded(), Reports()

    async def begin() -> None:
        assert ready(syncs)
        context: Any = syncs._context
        context._context = Interrupted(context._context, call)
        for _ in range(3):
            assert syncs.begin(file, reports.append)
        await until(lambda: len(reports) == 3)

    async def end() -> None:
        await asyncio.wait_for(until(lambda: len(reports) == 3), 60)
        assert reports == [None] * 3
        syncs.close()

    begun = loop.create_task(begin())
    with pytest.raises(InterruptError):
        loop.run_until_complete(begun)
    loop.run_until_complete(end())
    loop.run_until_complete(begun)
    loop.close()


@pytest.mark.parametrize("factory", LOOPS)
def test_an_interrupted_begin_reports_nothing(factory: Factory, file: OsFile) -> None:
    async def main() -> None:
        syncs, reports = loaded(), Reports()
        assert ready(syncs)
        context: Any = syncs._context
        context._context = Interrupted(context._context, "submit")
        with pytest.raises(InterruptError):
            syncs.begin(file, lambda _: pytest.fail("its caller has given up"))
        assert syncs.begin(file, reports.append)
        await until(lambda: bool(reports))
        syncs.close()

    on(factory, main())


@pytest.mark.parametrize("factory", LOOPS)
def test_the_users_of_a_loop_share_a_context_that_the_loop_gives_back(
    factory: Factory, file: OsFile
) -> None:
    had, before = contexts(), descriptors()

    async def main() -> None:
        opened = descriptors()
        users, reports = [loaded() for _ in range(3)], Reports()
        assert all(user.ready for user in users)
        assert contexts() == had + 1
        assert descriptors() == opened + 1
        context: Any = users[0]._context
        assert not os.get_inheritable(context._context.fileno)
        del context
        for user in users:
            assert user.begin(file, reports.append)
            wanted = len(reports) + 1
            await until(lambda wanted=wanted: len(reports) == wanted)  # type: ignore[misc]
            user.close()
        # Another of this loop has the same.
        again = loaded()
        assert ready(again)
        assert again.begin(file, reports.append)
        await until(lambda: len(reports) == 4)
        again.close()
        assert contexts() == had + 1
        assert descriptors() == opened + 1

    on(factory, main())
    assert contexts() == had
    assert descriptors() == before


@pytest.mark.parametrize("factory", LOOPS)
@pytest.mark.parametrize("under_way", [0, 5])
def test_a_loop_that_is_closed_and_dropped_gives_all_back(
    factory: Factory, under_way: int, file: OsFile
) -> None:
    had, opened = contexts(), descriptors()
    users = list[AioSyncs]()

    async def main() -> None:
        users.extend((loaded(), loaded()))
        assert all(user.ready for user in users)
        for _ in range(under_way):
            assert users[0].begin(file, lambda _: None)
        # They end, and no turn of the loop comes between.
        context: Any = users[0]._context
        ended = 0
        while ended < under_way:
            with selectors.DefaultSelector() as selector:
                selector.register(context._context.fileno, selectors.EVENT_READ)
                assert selector.select(60)
            ended += context._context.poll()

    on(factory, main())
    users[0].close()
    users.clear()
    assert contexts() == had
    assert descriptors() == opened


def test_each_loop_has_a_context_of_its_own(file: OsFile) -> None:
    had = contexts()

    async def main(outer: AioSyncs | None) -> None:
        syncs, reports = loaded(), Reports()
        assert ready(syncs)
        if outer is None:
            await asyncio.to_thread(on, asyncio.SelectorEventLoop, main(syncs))
            assert contexts() == had + 1
        else:
            assert contexts() == had + 2
        assert syncs.begin(file, reports.append)
        await until(lambda: bool(reports))
        syncs.close()

    on(asyncio.SelectorEventLoop, main(None))
    assert contexts() == had


def test_a_loop_that_watches_nothing_has_none() -> None:
    async def main() -> None:
        had = contexts()
        syncs = loaded()
        assert not ready(syncs)
        assert not ready(syncs)
        syncs.close()
        assert contexts() == had

    run_virtual(main())


def test_without_the_package_none_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "caio.linux_aio", None)

    async def main() -> None:
        syncs = loaded()
        assert not ready(syncs)
        syncs.close()

    on(asyncio.SelectorEventLoop, main())


def test_one_that_is_loaded_behind_its_close_begins_nothing() -> None:
    async def main() -> None:
        had = contexts()
        syncs = AioSyncs()
        syncs.close()
        assert not ready(syncs)
        assert contexts() == had

    on(asyncio.SelectorEventLoop, main())


FORK = """
import asyncio, os, sys
from segmentstore.contracts.aio_syncs import AioSyncs
from segmentstore.contracts.disk import OsDisk
from segmentstore.contracts.event_loops import new_event_loop

async def main():
    file = OsDisk().open(sys.argv[1], write=True)
    syncs, unused = AioSyncs(), AioSyncs()
    for each in (syncs, unused):
        each.load()
    assert syncs.ready
    child = os.fork()
    if not child:
        # The second has not even a context of the parent's.
        ready = syncs.ready or unused.ready
        syncs.close()
        os._exit(3 if ready else 0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    for number in range(3):
        done = asyncio.get_running_loop().create_future()
        assert syncs.ready
        assert syncs.begin(file, done.set_result)
        assert await asyncio.wait_for(done, 60) is None
    syncs.close()

asyncio.Runner(loop_factory=eval(sys.argv[2])).run(main())
"""


@pytest.mark.parametrize("factory", ["asyncio.SelectorEventLoop", "new_event_loop"])
def test_a_forked_child_is_not_ready_and_leaves_the_parents_alone(
    factory: str, file: OsFile, tmp_path: Path
) -> None:
    program = [sys.executable, "-c", FORK, str(tmp_path / "file"), factory]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
