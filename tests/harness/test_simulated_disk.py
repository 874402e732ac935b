"""The simulated disk of a process: its effects, faults and death, and the engine's own adapters on
it.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from durablelog.file.file_log import FileLog
from recovery.harness.simulation.disk import SimulatedDisk
from recovery.harness.simulation.disk_image import DiskImage
from recovery.harness.simulation.fault_points import TABLE
from recovery.harness.simulation.kernel_syncs import SimulatedKernelSyncs
from recovery.harness.simulation.power_cut import Nothing
from recovery.harness.simulation.virtual_loop import InlineExecutor, VirtualLoop, inline_executor
from segmentstore.contracts.disk import KernelSyncs, make_directories
from segmentstore.contracts.runtime import Runtime
from tests.contracts.durable_data_log_contract import (
    PAYLOAD_BYTES_MAX,
    DurableDataLogContract,
    LogWorld,
)
from tests.contracts.object_storage_contract import PAGE_OBJECTS, ObjectStorageContract
from tests.harness.disk_world import DiedError, Process, World, read, write
from tier2.file_object_storage import FileObjectStorage
from tier2.object_storage import ObjectStorage

# --- effects, faults, death -----------------------------------------------------------------------


def store(process: Process) -> tuple[DiskImage, SimulatedDisk]:
    image = DiskImage()
    disk = SimulatedDisk(image, process)
    for folder in ("log/0", "tier2"):
        make_directories(disk, f"/store/{folder}")
    process.effects.clear()
    return image, disk


def test_making_folders_syncs_each_parent() -> None:
    process = Process()
    image = DiskImage()
    disk = SimulatedDisk(image, process)
    make_directories(disk, "/a/b")
    assert process.effects == [
        ("store.sync-directory", "/"),
        ("folder.make", "/a"),
        ("store.sync-directory", "/"),
        ("folder.make", "/a/b"),
        ("store.sync-directory", "/a"),
    ]
    image.cut(Nothing(), lambda _: None)
    assert disk.is_directory("/a/b")


def test_a_folder_whose_maker_died_before_its_sync_is_durable_for_who_makes_it_again() -> None:
    image = DiskImage()
    disk = SimulatedDisk(image, Process())
    disk.make_directory("/a")
    make_directories(disk, "/a")
    image.cut(Nothing(), lambda _: None)
    assert disk.is_directory("/a")


def test_a_prepared_file_is_the_log_s_from_its_link_on_and_a_spare_again_after_truncation() -> None:
    process = Process()
    _, disk = store(process)
    log = "/store/log/0"
    file = disk.open(f"{log}/next-1-0.tmp", write=True, create=True, exclusive=True)
    file.pwrite([b"head"], 0)
    file.sync()
    disk.link(f"{log}/next-1-0.tmp", f"{log}/{1:016x}.log")
    disk.unlink(f"{log}/next-1-0.tmp")
    disk.sync_directory(log)
    file.pwrite([b"frame"], 4)
    file.sync()
    file.close()
    disk.rename(f"{log}/{1:016x}.log", f"{log}/spare-1-1.tmp")
    disk.rename(f"{log}/spare-1-1.tmp", f"{log}/next-1-1.tmp")
    file = disk.open(f"{log}/next-1-1.tmp", write=True)
    file.pwrite([b"head"], 0)
    disk.link(f"{log}/next-1-1.tmp", f"{log}/{2:016x}.log")
    file.sync()
    disk.unlink(f"{log}/{2:016x}.log")
    assert [kind for kind, _ in process.effects] == [
        *(
            "prepare.create",
            "prepare.write",
            "prepare.sync",
            "log.link",
            "prepare.unlink",
            "log.sync-directory",
        ),
        *(
            "log.write",
            "log.sync",
            "spare.rename",
            "spare.rename",
            "prepare.write",
            "log.link",
            "log.sync",
            "log.unlink",
        ),
    ]
    assert process.effects[6][1] == f"{log}/{1:016x}.log"


def test_the_effects_of_the_other_files() -> None:
    process = Process()
    _, disk = store(process)
    record = f"/store/log/0/state-{1:016x}"
    for new, name, give in (
        (f"{record}-x.tmp", record, disk.link),
        ("/store/store.toml.x.new", "/store/store.toml", disk.link),
    ):
        file = disk.open(new, write=True, create=True)
        file.pwrite([b"x"], 0)
        file.sync()
        file.close()
        give(new, name)
        disk.sync_directory(name.rpartition("/")[0])
    disk.unlink(record)
    for lock in ("lock", "log/0/LOCK", "log/0/x.lock"):
        disk.lock(f"/store/{lock}").close()
        disk.unlink(f"/store/{lock}")
    assert [kind for kind, _ in process.effects] == [
        *("state.create", "state.write", "state.sync", "state.link", "log.sync-directory"),
        *("store.create", "store.write", "store.sync", "store.link", "store.sync-directory"),
        "state.unlink",
    ]


def test_what_is_in_the_way_is_no_effect() -> None:
    process = Process()
    _, disk = store(process)
    write(disk, "/store/a", b"")
    write(disk, "/store/b", b"")
    process.effects.clear()
    with pytest.raises(FileNotFoundError):
        disk.unlink("/store/x")
    with pytest.raises(FileExistsError):
        disk.link("/store/a", "/store/b")
    with pytest.raises(OSError, match="not empty"):
        disk.remove_directory("/store")
    assert disk.open("/store/a", write=True).size() == 0
    with pytest.raises(FileExistsError):
        disk.make_directory("/store/log")
    assert process.effects == []


def test_what_comes_between_an_effect_and_its_change_is_seen() -> None:
    process = Process()
    image, disk = store(process)
    write(disk, "/store/a", b"")
    process.between = lambda _: image.link("/store/a", "/store/b")
    with pytest.raises(FileExistsError):
        disk.link("/store/a", "/store/b")
    process.between = lambda _: image.unlink("/store/a")
    with pytest.raises(FileNotFoundError):
        disk.rename("/store/a", "/store/c")
    process.between = lambda _: (
        image.link("/store/b", "/store/d") if image.find("/store/d") is None else None
    )
    with pytest.raises(FileExistsError):
        disk.open("/store/d", write=True, create=True, exclusive=True)


def test_each_fault_gives_its_error_and_changes_nothing_more() -> None:
    process = Process()
    image, disk = store(process)
    write(disk, "/store/a", b"old")
    file = disk.open("/store/a", write=True)
    before = image.fingerprint()
    calls: dict[str, tuple[Callable[[], object], int]] = {
        "disk.write.eio": (lambda: file.pwrite([b"x"], 0), errno.EIO),
        "disk.create.enospc": (
            lambda: disk.open("/store/b", write=True, create=True),
            errno.ENOSPC,
        ),
        "disk.sync-directory.eio": (lambda: disk.sync_directory("/store"), errno.EIO),
        "disk.rename.eio": (lambda: disk.rename("/store/a", "/store/b"), errno.EIO),
        "disk.link.eio": (lambda: disk.link("/store/a", "/store/b"), errno.EIO),
        "disk.unlink.eio": (lambda: disk.unlink("/store/a"), errno.EIO),
        "disk.read.eio": (lambda: file.pread(0, 1), errno.EIO),
        "disk.sync.eio": (file.sync, errno.EIO),
    }
    others = {"disk.write.partial", "disk.write.enospc", "disk.stall", "disk.full"}
    assert {point for point in TABLE if point.startswith("disk.")} == {*calls, *others}
    for point, (call, code) in calls.items():
        process.world.meet(point)
        with pytest.raises(OSError, match=r"\[Errno") as caught:
            call()
        assert caught.value.errno == code
        assert image.fingerprint() == before
    process.world.meet("disk.create.enospc")
    with pytest.raises(OSError, match="No space"):
        make_directories(disk, "/store/d")
    with pytest.raises(OSError, match="No space"):
        disk.lock("/store/l")
    assert image.fingerprint() == before


@pytest.mark.parametrize(
    ("point", "code"),
    [("disk.write.partial", errno.EIO), ("disk.write.enospc", errno.ENOSPC)],
    ids=["partial", "full"],
)
def test_a_write_that_fails_in_the_middle_has_written_a_beginning(point: str, code: int) -> None:
    process = Process()
    image, disk = store(process)
    lengths: dict[int, None] = {}
    file = disk.open("/store/a", write=True, create=True)
    for _ in range(200):
        process.world.meet(point)
        file.truncate(0)
        with pytest.raises(OSError, match=r"\[Errno") as caught:
            file.pwrite([b"abcd", b"efgh"], 0)
        assert caught.value.errno == code
        left = image.read("/store/a")
        assert b"abcdefgh".startswith(left)
        lengths[len(left)] = None
    assert sorted(lengths) == list(range(8))


def test_a_full_disk_takes_what_lies_in_its_blocks_and_what_others_give_up() -> None:
    process = Process()
    image, disk = store(process)
    write(disk, "/store/other", bytes(5000))
    file = disk.open("/store/a", write=True, create=True)
    file.pwrite([b"x" * 100], 0)
    file.allocate(0, 8192)
    assert file.size() == 100
    image.fill()
    assert image.capacity == 4 * 4096
    file.pwrite([b"y" * 8092], 100)
    with pytest.raises(OSError, match="No space"):
        file.allocate(8192, 1)
    with pytest.raises(OSError, match="No space"):
        file.pwrite([b"z" * 10], 8190)
    assert file.size() == 8192, "what there is room for is written"
    with pytest.raises(OSError, match="No space"):
        file.truncate(8193)
    assert image.copy().capacity == image.capacity
    disk.unlink("/store/other")
    file.pwrite([b"z" * 8192], 8192)
    with pytest.raises(OSError, match="No space"):
        file.allocate(16384, 1)
    file.close()


def test_a_failed_sync_is_not_repaired_by_the_next() -> None:
    process = Process()
    image, disk = store(process)
    file = disk.open("/store/a", write=True, create=True)
    disk.sync_directory("/store")
    file.pwrite([b"lost"], 0)
    process.world.meet("disk.sync.eio")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    process.world.meet("")
    file.sync()
    assert read(disk, "/store/a") == b"lost"
    image.cut(Nothing(), lambda _: None)
    assert read(disk, "/store/a") == b""


def test_a_stalled_call_takes_seconds_and_its_change_comes_before_or_after_them() -> None:
    process = Process()
    image, disk = store(process)
    process.world.meet("disk.stall")
    file = disk.open("/store/a", write=True, create=True)
    for _ in range(50):
        before = process.seconds
        file.pwrite([b"x"], 0)
        assert 1.0 < process.seconds - before < 20.1
        before = process.seconds
        file.pread(0, 1)
        assert 1.0 < process.seconds - before < 20.1
    assert image.read("/store/a") == b"x"


def test_ordinary_calls_take_their_time() -> None:
    process = Process()
    _, disk = store(process)
    file = disk.open("/store/a", write=True, create=True)
    for call, least, most in (
        (lambda: file.pwrite([b"x"], 0), 15e-6, 100e-6),
        (file.sync, 50e-6, 51e-3),
        (lambda: [file.pread(0, 1) for _ in range(100)], 100e-6, 5e-3),
        (lambda: disk.sync_directory("/store"), 50e-6, 1e-3),
    ):
        before = process.seconds
        call()
        assert least < process.seconds - before < most


def test_a_dead_process_reads_and_closes_and_changes_nothing() -> None:
    process = Process()
    image, disk = store(process)
    write(disk, "/store/a", b"a")
    file, held = disk.open("/store/a", write=True), disk.lock("/store/lock")
    before, effects = image.fingerprint(), image.outcome_count()
    process.is_dead = True
    assert file.pread(0, 1) == b"a"
    assert file.is_at("/store/a")
    assert disk.exists("/store/a")
    assert disk.list_directory("/store") == ["a", "lock", "log", "tier2"]
    for call in (
        lambda: file.pwrite([b"x"], 0),
        lambda: file.truncate(0),
        file.sync,
        lambda: disk.open("/store/b", write=True, create=True),
        lambda: disk.rename("/store/a", "/store/b"),
        lambda: disk.link("/store/a", "/store/b"),
        lambda: disk.unlink("/store/a"),
        lambda: disk.unlink("/store/lock"),
        lambda: disk.lock("/store/l"),
        lambda: make_directories(disk, "/store/d"),
        lambda: disk.remove_directory("/store/tier2"),
        lambda: disk.sync_directory("/store"),
    ):
        with pytest.raises(DiedError):
            call()
    file.close()
    held.close()
    assert (image.fingerprint(), image.outcome_count()) == (before, effects)


def test_two_processes_see_the_same_disk_and_exclude_each_other() -> None:
    world = World()
    one, two = Process(world, "one"), Process(world, "two")
    image, disk = store(one)
    other = SimulatedDisk(image, two)
    write(disk, "/store/a", b"a")
    assert read(other, "/store/a") == b"a"
    stale = disk.lock("/store/lock")
    with pytest.raises(BlockingIOError):
        other.lock("/store/lock")
    image.expire_locks("one")
    other.lock("/store/lock")
    stale.close()
    with pytest.raises(BlockingIOError):
        disk.lock("/store/lock")


def test_modification_times_are_the_world_s() -> None:
    process = Process()
    _, disk = store(process)
    clock = process.world.clock
    write(disk, "/store/a", b"a")
    assert disk.modified_ms("/store/a") == clock.time_ms()
    clock.jump(5000)
    assert disk.modified_ms("/store/a") == clock.time_ms() - 5000
    write(disk, "/store/a", b"b")
    disk.rename("/store/a", "/store/b")
    assert disk.modified_ms("/store/b") == clock.time_ms()


def test_each_check_is_reported_before_anything_is_done_about_it_and_no_change_is_one() -> None:
    process = Process()
    _, disk = store(process)
    write(disk, "/store/a", b"abc")
    process.reads = 0
    file = disk.open("/store/a", write=True)
    reads: list[Callable[[], object]] = [
        lambda: disk.open("/store/a"),
        lambda: disk.exists("/store/none"),
        lambda: disk.is_directory("/store"),
        lambda: disk.list_directory("/store"),
        lambda: disk.size("/store/a"),
        lambda: disk.modified_ms("/store/a"),
        lambda: disk.lock("/store/lock"),
        lambda: file.pread(0, 3),
        lambda: file.is_at("/store/a"),
    ]
    assert process.reads == 1
    for number, look in enumerate(reads):
        look()
        assert process.reads == number + 2
    file.pwrite([b"d"], 3)
    file.sync()
    disk.link("/store/a", "/store/b")
    disk.sync_directory("/store")
    disk.unlink("/store/a")
    assert process.reads == len(reads) + 1


# --- the engine's own adapters on it --------------------------------------------------------------


class LogOnSimulatedDisk(LogWorld):
    def __init__(self, *, kernel_syncs: bool = False) -> None:
        self.process = Process()
        self.image = DiskImage()
        syncs = self.syncs if kernel_syncs else lambda: None
        self.runtime = Runtime(
            disk=SimulatedDisk(self.image, self.process, syncs), executor=inline_executor
        )

    def syncs(self) -> KernelSyncs:
        return SimulatedKernelSyncs(
            asyncio.get_running_loop(),
            InlineExecutor(),
            random.Random(1),
            self.process.world.reach,
        )

    def make_log(self) -> FileLog:
        return FileLog(
            "/store/log/0", 0, self.runtime, file_bytes=8192, payload_bytes_max=PAYLOAD_BYTES_MAX
        )

    def usurp(self) -> None:
        self.image.unlink("/store/log/0/LOCK")

    def fail_append_after(self, appends: int) -> None:
        passed = 0

        def plan(point: str, effect: str) -> bool:
            nonlocal passed
            if point != "disk.write.eio" or effect != "log.write":
                return False
            passed += 1
            return passed == appends + 1

        self.process.world.plan = plan


class TestFileLogOnSimulatedDisk(DurableDataLogContract):
    def make_world(self, tmp_path: Path) -> LogWorld:
        return LogOnSimulatedDisk()

    @staticmethod
    def run(coroutine: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(asyncio.wait_for(coroutine, 30))


class TestFileLogThatTheKernelSyncs(TestFileLogOnSimulatedDisk):
    def make_world(self, tmp_path: Path) -> LogWorld:
        return LogOnSimulatedDisk(kernel_syncs=True)


class TestFileObjectStorageOnSimulatedDisk(ObjectStorageContract):
    process: Process
    image: DiskImage

    def make(self, folder: Path) -> ObjectStorage:
        self.process, self.image = Process(), DiskImage()
        runtime = Runtime(
            clock=self.process.world.clock,
            random=random.Random(2),
            disk=SimulatedDisk(self.image, self.process),
            executor=inline_executor,
        )
        return FileObjectStorage("/store/tier2", runtime, page_objects=PAGE_OBJECTS)

    def raw(self, storage: ObjectStorage) -> dict[str, bytes]:
        assert storage.url == "file:///store/tier2"
        root = "/store/tier2/"
        files = {path.removeprefix(root): self.image.read(path) for path in self.image.files()}
        return {name: data for name, data in files.items() if not name.startswith("~")}

    def lose_next_put_reply(self, storage: ObjectStorage) -> None:
        struck: list[str] = []

        def plan(point: str, effect: str) -> bool:
            if point != "disk.sync-directory.eio" or effect != "tier2.sync-directory" or struck:
                return False
            if not any(path.startswith("/store/tier2/a/x") for path in self.image.files()):
                return False
            struck.append(point)
            return True

        self.process.world.plan = plan
