"""MetadataCatalog when the power goes, and when the disk is full."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from durablelog.catalog.checkpoint_files import CheckpointFiles
from durablelog.catalog.key_store import KeyPair
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.catalog.metadata_catalog import MetadataCatalog
from recovery.harness.simulation.disk import SimulatedDisk
from recovery.harness.simulation.disk_image import DiskImage
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.runtime import Runtime
from tests.contracts.key_store_contract import IDENTITY, all_of
from tests.durablelog.catalog.test_metadata_catalog import catalog, changes, content
from tests.harness.disk_world import DiedError, Process
from tests.support.suites import share

ROOT = Path(__file__).resolve().parents[3]
OTHER = "/store/catalog/other"


class Noted:
    """What is promised, and what there may be."""

    def __init__(self) -> None:
        self.states: dict[int, list[KeyPair]] = {}
        self.kept: set[int] = set()
        self.adopted = False


def on(image: DiskImage, process: Process, folder: str = "/store/catalog/3") -> MetadataCatalog:
    runtime = Runtime(disk=SimulatedDisk(image, process), executor=inline_executor)
    return catalog(folder, MemoryKeyStore, runtime=runtime)


async def adopt(
    image: DiskImage, process: Process, source: MetadataCatalog, number: int, noted: Noted
) -> None:
    """Into another folder, by a downloader that makes no name durable."""
    disk = SimulatedDisk(image, process)
    made = on(image, process, OTHER)
    assert not await made.has_checkpoint(number)
    files = CheckpointFiles("/store/catalog/3", IDENTITY, disk).files_of(number)
    disk.make_directory(made.checkpoint_directory(number))
    for name, size, _ in files:
        path = f"{made.checkpoint_directory(number)}/{name}"
        file = disk.open(path, write=True, create=True)
        file.pwrite([await source.read(number, name, 0, size)], 0)
        file.sync()
        file.close()
    await made.adopt_download(number, files)
    noted.adopted = True
    await made.close()


async def use(image: DiskImage, process: Process, noted: Noted) -> None:
    """Everything that a container does with a catalog, some of it twice."""
    made = on(image, process)
    await made.begin_empty()
    await write(made, 5, noted)
    await adopt(image, process, made, 5, noted)
    await write(made, 6, noted)
    await keep_from(made, 6, noted)
    await write(made, 9, noted)
    assert await made.has_checkpoint(6)
    assert await content(made, 6) == noted.states[6]
    await write(made, 12, noted)
    await made.destroy_working()
    await made.begin_empty()
    await keep_from(made, 12, noted)
    await write(made, 15, noted)
    await made.close()


async def write(made: MetadataCatalog, number: int, noted: Noted) -> None:
    batches = changes(number)
    there = dict(await all_of(made.store))
    for batch in batches:
        for key, value, _ in batch:
            if value is None:
                there.pop(key, None)
            else:
                there[key] = value
    noted.states[number] = sorted(there.items())
    await made.write(batches, number)
    noted.kept.add(number)


async def keep_from(made: MetadataCatalog, number: int, noted: Noted) -> None:
    noted.kept = {each for each in noted.kept if each >= number}
    await made.keep_from(number)


async def check(image: DiskImage, noted: Noted) -> None:
    """Of a process that begins after the power was cut."""
    made = on(image, Process(name="next"))
    for number in range(20):
        if await made.has_checkpoint(number):
            assert await content(made, number) == noted.states[number]
        else:
            assert number not in noted.kept
            assert made.damage is None
    for number in sorted(noted.kept):
        # Nothing that was done meanwhile has changed another.
        assert await content(made, number) == noted.states[number]
    if not noted.kept:
        await made.begin_empty()
    await write(made, 100, noted)
    await made.keep_from(100)
    assert await content(made, 100) == noted.states[100]
    await made.destroy()
    other = on(image, Process(name="next"), OTHER)
    if await other.has_checkpoint(5):
        assert await content(other, 5) == noted.states[5]
    else:
        assert not noted.adopted
    await other.destroy()
    assert image.files() == []


@pytest.mark.parametrize("seed", share(range(24), 8, 3))
def test_a_power_cut_loses_no_finished_checkpoint(seed: int) -> None:
    """At each effect on the disk in turn: of several runs, by their seeds."""
    rng = random.Random(seed)
    effects, died = 0, True
    while died:
        effects += rng.randrange(1, 9)
        image, process, noted = DiskImage(), Process(), Noted()

        def die(_: str, process: Process = process, most: int = effects) -> None:
            if len(process.effects) >= most:
                process.is_dead = True
                raise DiedError

        process.between = die
        try:
            run_virtual(use(image, process, noted))
            died = False
        except DiedError:
            pass
        image.release_locks(process.name)
        image.lose_power(rng, lambda _: None)
        run_virtual(check(image, noted))


def test_a_full_disk_costs_no_finished_checkpoint(tmp_path: Path) -> None:
    mount = tmp_path / "disk"
    mount.mkdir()
    inside = f'mount -t tmpfs -o size=10m tmpfs "{mount}" && exec "$@"'
    program = [sys.executable, "-m", "tests.durablelog.catalog.full_catalog", str(mount)]
    command = ["unshare", "-rm", "sh", "-c", inside, "sh", *program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    words = "this test needs `unshare -rm` and a tmpfs: util-linux, and user namespaces (or root)\n"
    assert done.returncode == 0, words + done.stdout + done.stderr
