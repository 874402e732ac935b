"""Stores of keys whose disk is full, whose machine loses power, and whose process is forked."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from durablelog.catalog.key_store import KeyPair, KeyStore
from durablelog.catalog.memory_key_store import RUNS_MAX, MemoryKeyStore
from recovery.harness.simulation.disk import SimulatedDisk
from recovery.harness.simulation.disk_image import DiskImage
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.runtime import Runtime
from tests.contracts.key_store_contract import IDENTITY, all_of, batch, numbered
from tests.harness.disk_world import DiedError, Process
from tests.support.suites import share

ROOT = Path(__file__).resolve().parents[3]


def test_a_full_disk_is_an_error_and_nothing_is_lost(tmp_path: Path) -> None:
    mount = tmp_path / "disk"
    mount.mkdir()
    inside = f'mount -t tmpfs -o size=10m tmpfs "{mount}" && exec "$@"'
    program = [sys.executable, "-m", "tests.durablelog.catalog.full_key_store", str(mount)]
    command = ["unshare", "-rm", "sh", "-c", inside, "sh", *program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    words = "this test needs `unshare -rm` and a tmpfs: util-linux, and user namespaces (or root)\n"
    assert done.returncode == 0, words + done.stdout + done.stderr


# --- power ----------------------------------------------------------------------------------------

States = dict[int, list[KeyPair]]


async def change(store: KeyStore, states: States, flushed: list[int]) -> None:
    """Flush often enough for runs to be replaced by one; `states` and `flushed` say what was."""
    await store.open()
    states[0] = []
    for number in range(1, 3 * RUNS_MAX):
        changes = batch(numbered([number, number % 3], b"%d" % number), [b"key 000001"])
        states[number] = sorted(
            {
                **{key: value for key, value in states[number - 1] if key != b"key 000001"},
                **dict(numbered([number, number % 3], b"%d" % number)),
            }.items()
        )
        await store.apply(changes, number)
        if number % 3:
            flushed.append(await store.flush())


@pytest.mark.parametrize("seed", share(range(40), 8, 3))
def test_a_power_cut_leaves_a_prefix_of_the_batches(seed: int) -> None:
    """At each effect on the disk in turn."""
    rng = random.Random(seed)
    effects, died = 0, True
    while died:
        effects += rng.randrange(1, 12)
        image, process = DiskImage(), Process()
        states: States = {}
        flushed = [0]

        def die(_: str, process: Process = process, most: int = effects) -> None:
            if len(process.effects) >= most:
                process.is_dead = True
                raise DiedError

        process.between = die
        runtime = Runtime(disk=SimulatedDisk(image, process), executor=inline_executor)
        try:
            run_virtual(change(MemoryKeyStore("/keys", IDENTITY, runtime), states, flushed))
            died = False
        except DiedError:
            pass
        image.release_locks(process.name)
        image.lose_power(rng, lambda _: None)
        run_virtual(check_prefix(image, states, flushed[-1]))


async def check_prefix(image: DiskImage, states: States, flushed: int) -> None:
    disk = SimulatedDisk(image, Process(name="next"))
    store = MemoryKeyStore("/keys", IDENTITY, Runtime(disk=disk, executor=inline_executor))
    await store.open()
    assert store.sequence_number >= flushed
    assert await all_of(store) == states.get(store.sequence_number, [])
    await store.apply(batch(numbered([0])), 1000)
    assert await store.flush() == 1000
    await store.close()


# --- forks ----------------------------------------------------------------------------------------

# A loop for each call: a child that ends with an open one closes the parent's too.
FORK = """
import asyncio, gc, os, sys
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from segmentstore.contracts.errors import ForkedStoreError
from segmentstore.contracts.runtime import Runtime
from tests.contracts.key_store_contract import IDENTITY, all_of, batch, numbered

folder = sys.argv[1]
run = asyncio.run
store = RocksDbKeyStore(folder, IDENTITY, Runtime())
run(store.open())
run(store.apply(batch(numbered([1])), 1))
snapshot = run(store.snapshot())
pid = os.fork()
if not pid:
    other = RocksDbKeyStore(folder + "-other", IDENTITY, Runtime())
    for call in (store.get([b"a"]), store.flush(), other.open()):
        try:
            run(call)
        except ForkedStoreError as error:
            assert error.process_id == os.getppid()
        else:
            os._exit(1)
    del store, snapshot, other
    gc.collect()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
run(store.apply(batch(numbered([2])), 2))
assert run(store.flush()) == 2
assert run(all_of(snapshot)) == numbered([1])
run(store.close())
run(RocksDbKeyStore(folder, IDENTITY, Runtime()).open())
"""


def test_a_forked_child_leaves_the_store_to_its_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORK, str(tmp_path / "keys")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
