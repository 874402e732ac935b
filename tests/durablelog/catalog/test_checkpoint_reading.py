"""Reading checkpoints of stopped stores, which changes nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from durablelog.catalog.checkpoint_reading import (
    CheckpointReader,
    CheckpointSnapshot,
    open_checkpoint_read_only,
)
from durablelog.catalog.key_ranges import StoreKeyRange
from durablelog.catalog.key_store import (
    ForeignKeyStoreError,
    KeyStoreClosedError,
    KeyStoreCorruptError,
)
from durablelog.catalog.memory_key_store import MemoryCheckpointReader, MemoryKeyStore
from durablelog.catalog.rocksdb_key_store import RocksDbCheckpointReader, RocksDbKeyStore
from recovery.harness.simulation.virtual_loop import inline_executor
from segmentstore.contracts.disk import OsDisk
from tests.contracts.key_store_contract import EVERYTHING, IDENTITY, all_of
from tests.durablelog.catalog.test_metadata_catalog import FOREIGN, Kind, built, everything

ROOT = Path(__file__).resolve().parents[3]

ReaderKind = type[MemoryCheckpointReader] | type[RocksDbCheckpointReader]
both = pytest.mark.parametrize(
    ("kind", "reader_kind"),
    [(MemoryKeyStore, MemoryCheckpointReader), (RocksDbKeyStore, RocksDbCheckpointReader)],
)


def read(
    folder: Path, number: int, reader_kind: ReaderKind, identity: object = IDENTITY
) -> CheckpointReader:
    assert isinstance(identity, type(IDENTITY))
    return open_checkpoint_read_only(str(folder), identity, number, OsDisk(), reader_kind)


@both
def test_a_checkpoint_is_read_and_not_changed(
    kind: Kind, reader_kind: ReaderKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    states = asyncio.run(built(tmp_path / "c", kind, (5, 7)))
    before = everything(tmp_path / "c")
    for number, state in states.items():
        with read(tmp_path / "c", number, reader_kind) as reader:
            assert list(reader.pairs(EVERYTHING)) == state
            keys = StoreKeyRange(state[2][0], state[9][0])
            assert reader.scan(keys, 3) == (state[2:5], StoreKeyRange(state[5][0], keys.end))
            snapshot = CheckpointSnapshot(reader, number, inline_executor("", 1))
            assert snapshot.sequence_number == number
            assert asyncio.run(all_of(snapshot)) == state
        reader.close()
        with pytest.raises(KeyStoreClosedError):
            reader.scan(EVERYTHING, 1)
    assert everything(tmp_path / "c") == before
    assert os.listdir(tmp_path / "temporary") == []


@both
def test_what_is_no_whole_checkpoint_is_refused(
    kind: Kind, reader_kind: ReaderKind, tmp_path: Path
) -> None:
    folder = tmp_path / "c"
    asyncio.run(built(folder, kind, (5, 7)))
    for identity in FOREIGN:
        with pytest.raises(ForeignKeyStoreError):
            read(folder, 5, reader_kind, identity)
    with pytest.raises(KeyStoreCorruptError, match="there is no checkpoint of 6"):
        read(folder, 6, reader_kind)
    with pytest.raises(KeyStoreCorruptError, match="there is no checkpoint of 6"):
        read(tmp_path / "absent", 6, reader_kind)
    shutil.copytree(folder / f"{5:016x}", tmp_path / "copy")
    os.truncate(folder / f"{5:016x}/CURRENT", 2)
    before = everything(tmp_path)
    with pytest.raises(KeyStoreCorruptError, match="has 2 bytes"):
        read(folder, 5, reader_kind)
    with pytest.raises(KeyStoreCorruptError):
        reader_kind(str(folder / f"{5:016x}"), OsDisk())
    with pytest.raises(KeyStoreCorruptError):
        reader_kind(str(tmp_path / "absent"), OsDisk())
    assert everything(tmp_path) == before


def test_a_read_only_file_system_is_enough(tmp_path: Path) -> None:
    mount = tmp_path / "disk"
    mount.mkdir()
    inside = f'mount -t tmpfs tmpfs "{mount}" && exec "$@"'
    program = [sys.executable, "-m", "tests.durablelog.catalog.read_only_checkpoint", str(mount)]
    command = ["unshare", "-rm", "sh", "-c", inside, "sh", *program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    words = "this test needs `unshare -rm` and a tmpfs: util-linux, and user namespaces (or root)\n"
    assert done.returncode == 0, words + done.stdout + done.stderr
    assert done.stdout == "read\n"
