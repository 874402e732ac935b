"""Stores that are never closed: dropped, left behind on a closed loop, opened a second time in one
session.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from segmentstore import SegmentStore, StoreInUseError, blocking
from segmentstore.contracts.disk import OsDisk
from segmentstore.contracts.errors import ContainerStoppedError
from tests.store.harness import open_tiny, read_all, run
from tests.support.suites import slow

ROOT = Path(__file__).resolve().parents[2]
DROPPED = r"was dropped without close\(\)"


async def make(folder: Path) -> SegmentStore:
    store = await open_tiny(folder)
    await store.create_segment("x")
    await store.append("x", b"kept")
    return store


async def check(folder: Path) -> None:
    async with open_tiny(folder) as store:
        assert await read_all(store, "x") == b"kept"


class TestOnALoopThatRuns:
    @pytest.mark.parametrize("options", [{}, {"local_server": False}])
    def test_a_dropped_store_warns_and_can_be_opened_again_at_once(
        self, tmp_path: Path, options: dict[str, Any]
    ) -> None:
        async def main() -> None:
            store = await open_tiny(tmp_path / "s", **options)
            await store.create_segment("x")
            pending = store.append("x", b"kept")
            with pytest.warns(ResourceWarning, match=DROPPED) as caught:
                del store
            assert str(tmp_path / "s") in str(caught[0].message)
            await check(tmp_path / "s")
            assert await pending == 0

        run(main())

    def test_its_locks_are_free_without_another_opening(self, tmp_path: Path) -> None:
        async def main() -> None:
            with pytest.warns(ResourceWarning, match=DROPPED):
                await make(tmp_path / "s")
            while True:
                await asyncio.sleep(0)
                try:
                    OsDisk().lock(str(tmp_path / "s" / "lock")).close()
                except BlockingIOError:
                    continue
                return

        run(main())

    def test_a_store_in_a_cycle_is_found(self, tmp_path: Path) -> None:
        async def main() -> None:
            cycle: list[object] = [await make(tmp_path / "s")]
            cycle.append(cycle)
            del cycle
            with pytest.warns(ResourceWarning, match=DROPPED):
                await check(tmp_path / "s")

        run(main())

    @slow(2)
    def test_readers_and_writers_keep_their_store(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await make(tmp_path / "s")
            reader = store.reader("x")
            del store
            gc.collect()
            assert await anext(reader) == b"kept"
            with pytest.raises(StoreInUseError):
                await check(tmp_path / "s")
            with pytest.warns(ResourceWarning, match=DROPPED):
                del reader
            await check(tmp_path / "s")

        run(main())

    def test_a_closed_store_says_nothing_when_it_goes(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await make(tmp_path / "s")
            await store.close()
            del store
            gc.collect()

        run(main())

    def test_who_opens_it_while_it_closes_waits(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await make(tmp_path / "s")
            closing = asyncio.get_running_loop().create_task(store.close())
            await asyncio.sleep(0)
            await check(tmp_path / "s")
            await closing

        run(main())


class TestBlocking:
    def test_a_dropped_store_warns_ends_its_thread_and_can_be_opened_again(
        self, tmp_path: Path
    ) -> None:
        store = blocking.open(tmp_path / "s")
        store.create_segment("x")
        pending = store.append_nowait("x", b"kept")
        thread = store._thread._thread
        with pytest.warns(ResourceWarning, match=DROPPED):  # noqa: PT031
            del store
            # The last call may still have it, on the store's own thread.
            thread.join(60)
        assert not thread.is_alive()
        assert pending.result(60) == 0
        with blocking.open(tmp_path / "s") as store:
            assert b"".join(store.reader("x")) == b"kept"

    def test_readers_keep_their_store(self, tmp_path: Path) -> None:
        store = blocking.open(tmp_path / "s")
        store.create_segment("x")
        store.append("x", b"kept")
        thread, reader = store._thread._thread, store.reader("x")
        del store
        gc.collect()
        assert next(reader) == b"kept"
        with pytest.warns(ResourceWarning, match=DROPPED):  # noqa: PT031
            del reader
            thread.join(60)
        with blocking.open(tmp_path / "s") as store:
            assert store.get_info("x").length == 4


class TestOnALoopThatIsClosed:
    def test_left_open_by_a_main_that_returns(self, tmp_path: Path) -> None:
        with pytest.warns(ResourceWarning, match=DROPPED):
            run(drop(tmp_path / "s"))
        run(check(tmp_path / "s"))

    @pytest.mark.parametrize("end", ["pass", "del store", "del store, loop; gc.collect()"])
    def test_closed_without_an_end_of_its_tasks(self, tmp_path: Path, end: str) -> None:
        """What asyncio says of the tasks that are destroyed is its own; so this is a process of its
        own.
        """
        program = f"""
import asyncio, gc, sys, segmentstore, segmentstore.blocking

async def opened():
    store = await segmentstore.open(sys.argv[1])
    await store.create_segment("x")
    await store.append("x", b"kept")
    return store

loop = asyncio.new_event_loop()
store = loop.run_until_complete(opened())
loop.close()
{end}
with segmentstore.blocking.open(sys.argv[1]) as again:
    print(again.read("x", 0, 10).decode())
"""
        ended = subprocess.run(
            [sys.executable, "-W", "always::ResourceWarning", "-c", program, str(tmp_path / "s")],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            timeout=120,
        )
        assert (ended.stdout, ended.returncode) == ("kept\n", 0), ended.stderr
        assert ("was dropped without close()" in ended.stderr) == (end != "pass")


async def drop(folder: Path) -> None:
    await make(folder)


class TestOpenedTwice:
    def test_in_a_program_the_first_one_is_left_alone(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await make(tmp_path / "s")
            with pytest.raises(StoreInUseError, match="this process"):
                await open_tiny(tmp_path / "s")
            assert await read_all(store, "x") == b"kept"
            await store.close()

        run(main())

    def test_in_an_interactive_session_the_first_one_is_closed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def main() -> None:
            first = await make(tmp_path / "s")
            pending = first.append("x", b"!")
            monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
            with pytest.warns(RuntimeWarning, match="still open in this session"):
                second = await open_tiny(tmp_path / "s")
            assert await pending == 4
            with pytest.raises(ContainerStoppedError):
                await first.append("x", b"never")
            assert await read_all(second, "x") == b"kept!"
            await second.close()

        run(main())

    @pytest.mark.parametrize(
        "cell",
        [
            (
                "store = segmentstore.blocking.open(folder)\n"
                "print('length', store.append('x', b'abc'))"
            ),
            (
                "store = loop.run_until_complete(opened())\n"
                "print('length', loop.run_until_complete(append()))"
            ),
        ],
        ids=["blocking", "asyncio"],
    )
    def test_a_cell_can_be_run_twice(self, tmp_path: Path, cell: str) -> None:
        """A shell of Python's own, with a person at its prompt as far as it can know."""
        lines = [
            "import asyncio, segmentstore, segmentstore.blocking",
            f"folder = {str(tmp_path / 's')!r}",
            "loop = asyncio.new_event_loop()",
            "async def opened(): return await segmentstore.open(folder)",
            "",
            "async def append(): return await store.append('x', b'abc')",
            "",
            (
                "with segmentstore.blocking.open(folder) as store: "
                "print(store.create_segment('x').length)"
            ),
            "",
            cell,
            cell,
            cell,
        ]
        shell = subprocess.run(
            [sys.executable, "-i", "-q"],
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            timeout=120,
        )
        assert [line for line in shell.stdout.splitlines() if line.startswith("length")] == [
            "length 0",
            "length 3",
            "length 6",
        ], shell.stderr
        assert "Traceback" not in shell.stderr
        assert shell.returncode == 0


def ended_by(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        check=False,
        timeout=120,
        capture_output=True,
        text=True,
    )


def test_no_loop_runs_behind_the_end_of_the_interpreter(tmp_path: Path) -> None:
    """What the system's library does at the end of a process takes a second here, as it may on a
    busy machine. A timer that comes due first behind the interpreter's end would end the process
    by a signal.
    """
    program = """
import ctypes, sys, segmentstore.blocking
store = segmentstore.blocking.open(sys.argv[1])
store.create_segment("x")
store.append("x", b"kept")
loop = store._thread.loop
loop.call_soon_threadsafe(loop.call_later, 0.5, print)
libc = ctypes.CDLL(None)
libc.on_exit(libc.sleep, None)  # of as many seconds as the exit code is
sys.exit(1)
"""
    ended = ended_by(program, str(tmp_path / "s"))
    assert (ended.returncode, ended.stderr) == (1, "")
    with blocking.open(tmp_path / "s") as store:
        assert store.read("x", 0, 10) == b"kept"


def test_a_call_behind_the_end_of_all_loops_is_refused(tmp_path: Path) -> None:
    """A function that runs at the end, because it was registered before the store's module was
    loaded.
    """
    program = """
import atexit, sys
def late():
    for call in (
        lambda: store.append("x", b"late"),
        lambda: store.read("x", 0, 10),
        lambda: segmentstore.blocking.open(sys.argv[2]),
        store.close,
    ):
        try:
            call()
        except segmentstore.StoreClosedError as error:
            print("left open" in str(error))
atexit.register(late)
import segmentstore.blocking
store = segmentstore.blocking.open(sys.argv[1])
store.create_segment("x")
store.append("x", b"kept")
"""
    ended = ended_by(program, str(tmp_path / "s"), str(tmp_path / "other"))
    assert (ended.stdout.split(), ended.stderr, ended.returncode) == (["True"] * 4, "", 0)


def test_a_program_that_leaves_stores_open_ends(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys, segmentstore, segmentstore.blocking\n"
        "kept = segmentstore.blocking.open(sys.argv[1] + '-1')\n"
        "segmentstore.blocking.open(sys.argv[1] + '-2')\n"
        "async def main():\n"
        "    global other\n"
        "    other = await segmentstore.open(sys.argv[1] + '-3')\n"
        "    await segmentstore.open(sys.argv[1] + '-4')\n"
        "asyncio.run(main())\n"
    )
    assert ended_by(program, str(tmp_path / "s")).returncode == 0
