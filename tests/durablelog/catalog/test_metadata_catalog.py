"""MetadataCatalog on both stores of keys: what is on disk after each call, and after damage."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import struct
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from durablelog.catalog.catalog_keys import MetadataFormatError
from durablelog.catalog.checkpoint_files import LIST_SUFFIX, LOCK_NAME
from durablelog.catalog.checkpoint_list import (
    CheckpointList,
    decode_checkpoint_list,
    encode_checkpoint_list,
)
from durablelog.catalog.key_store import (
    CheckpointFile,
    ForeignKeyStoreError,
    KeyBatch,
    KeyPair,
    KeyStoreCheckpoint,
    KeyStoreClosedError,
    KeyStoreCorruptError,
    KeyStoreError,
    KeyStoreInUseError,
)
from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.catalog.metadata_catalog import MetadataCatalog
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from recovery.harness.simulation.virtual_loop import inline_executor
from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.runtime import Runtime
from tests.contracts.key_store_contract import IDENTITY, all_of, batch, numbered
from tests.support.suites import sized

Kind = type[MemoryKeyStore] | type[RocksDbKeyStore]
KINDS = (MemoryKeyStore, RocksDbKeyStore)
GOLDEN = Path(__file__).parents[1] / "golden/metadata-catalog-files.bin"
FOREIGN = (IDENTITY._replace(container_id=4), IDENTITY._replace(store_id="x"))

both = pytest.mark.parametrize("kind", KINDS)


def catalog(
    folder: Path | str,
    kind: Kind,
    identity: KeyStoreIdentity = IDENTITY,
    runtime: Runtime | None = None,
) -> MetadataCatalog:
    return MetadataCatalog(str(folder), identity, runtime or Runtime(), kind)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def changes(number: int) -> list[KeyBatch]:
    """Of one write, in batches that depend on their order."""
    return [
        batch(numbered(range(number, number + 40), b"early %d" % number)),
        batch(numbered([number, 500 + number], b"%d" % number), [b"key %06d" % (number + 3)]),
    ]


async def write(made: MetadataCatalog, number: int) -> list[KeyPair]:
    """Write the changes of `number`; all that there is then."""
    await made.write(changes(number), number)
    return await all_of(made.store)


async def content(made: MetadataCatalog, number: int) -> list[KeyPair]:
    """Of a checkpoint."""
    await made.open_at(number)
    assert made.store.sequence_number == number
    return await all_of(made.store)


async def built(folder: Path, kind: Kind, numbers: tuple[int, ...]) -> dict[int, list[KeyPair]]:
    """A closed catalog with these checkpoints; the state at each."""
    made = catalog(folder, kind)
    await made.begin_empty()
    states = {number: await write(made, number) for number in numbers}
    await made.close()
    return states


def names(folder: Path) -> list[str]:
    """Without the tokens of working directories."""
    return sorted(
        re.sub(r"^working-[0-9a-f]{16}", "working", name)
        for name in os.listdir(folder)
        if name != LOCK_NAME
    )


def finished(*numbers: int) -> list[str]:
    return sorted(f"{number:016x}{suffix}" for number in numbers for suffix in ("", LIST_SUFFIX))


WORKING = ["working", "working.files"]


# --- life -----------------------------------------------------------------------------------------


@both
def test_each_checkpoint_is_the_state_of_its_number(kind: Kind, tmp_path: Path) -> None:
    async def main() -> None:
        states = await built(tmp_path / "c", kind, (5, 7, 260))
        assert names(tmp_path / "c") == [*finished(5, 7, 260), *WORKING]
        made = catalog(tmp_path / "c", kind)
        for number in (260, 5, 7):
            assert await made.has_checkpoint(number)
            assert made.damage is None
            assert await content(made, number) == states[number]
            checkpoint = await made.open_checkpoint(number)
            assert checkpoint.sequence_number == number
            assert await all_of(checkpoint) == states[number]
            await checkpoint.close()
        # The store that was opened goes on, and its checkpoint stays what it was.
        later = await write(made, 300)
        assert await content(made, 7) == states[7]
        assert await content(made, 300) == later
        assert not await made.has_checkpoint(6)
        assert made.damage is None
        await made.close()

    run(main())


@both
def test_changes_may_come_slowly(kind: Kind, tmp_path: Path) -> None:
    async def slowly() -> AsyncIterator[KeyBatch]:
        for each in changes(9):
            await asyncio.sleep(0)
            yield each

    async def main() -> None:
        expected = await built(tmp_path / "whole", kind, (9,))
        made = catalog(tmp_path / "c", kind)
        await made.begin_empty()
        done = await made.write(slowly(), 9)
        assert done.sequence_number == 9
        assert await all_of(made.store) == expected[9]
        assert (await made.write([], 12)).sequence_number == 12
        assert await content(made, 12) == await content(made, 9) == expected[9]
        with pytest.raises(ValueError, match="8 is below 9"):
            await made.write([], 8)
        await made.write([], 10)
        await made.close()

    run(main())


@both
def test_files_are_read_for_an_upload(kind: Kind, tmp_path: Path) -> None:
    async def main() -> None:
        made = catalog(tmp_path / "c", kind)
        await made.begin_empty()
        done: KeyStoreCheckpoint = await made.write(changes(5), 5)
        assert [file.name for file in done.files] == names(tmp_path / "c" / f"{5:016x}")
        await write(made, 6)
        for file in done.files:
            whole = (tmp_path / "c" / f"{5:016x}" / file.name).read_bytes()
            parts = [await made.read(5, file.name, at, 10) for at in range(0, file.size, 10)]
            assert b"".join(parts) == whole
            assert await made.read(5, file.name, 3, 1 << 20) == whole[3:]
        with pytest.raises(KeyStoreCorruptError, match="is missing"):
            await made.read(4, "CURRENT", 0, 1)
        await made.close()

    run(main())


@both
def test_older_checkpoints_and_leftovers_are_removed(kind: Kind, tmp_path: Path) -> None:
    async def main() -> None:
        folder = tmp_path / "c"
        states = await built(folder, kind, (5, 7, 9))
        for leftover in (f"{8:016x}", f"{10:016x}.part", f"{11:016x}.tmp", f"{9:016x}.unknown"):
            shutil.copytree(folder / f"{7:016x}", folder / leftover)
        (folder / f"{12:016x}.files.new").write_bytes(b"cut")
        (folder / f"{13:016x}.files").write_bytes(b"damaged")
        (folder / f"{14:016x}.files").write_bytes((folder / f"{9:016x}.files").read_bytes())
        (folder / "note").write_bytes(b"a person's")
        made = catalog(folder, kind)
        await made.keep_from(7)
        others = [f"{9:016x}.unknown", "note"]
        assert names(folder) == sorted([*finished(7, 9), *WORKING, *others])
        await made.keep_from(8)
        assert await content(made, 9) == states[9]
        assert not await made.has_checkpoint(7)
        await made.keep_from(1000)
        assert await all_of(made.store) == states[9]
        states[12] = await write(made, 12)
        assert await content(made, 12) == states[12]
        assert names(folder) == sorted([*finished(12), *WORKING, *others])
        await made.close()

    run(main())


@both
def test_what_is_being_written_is_kept(kind: Kind, tmp_path: Path) -> None:
    async def main() -> None:
        made = catalog(tmp_path / "c", kind)
        await made.begin_empty()

        async def batches() -> AsyncIterator[KeyBatch]:
            for each in changes(5):
                yield each
            # As far as a checkpoint gets that is not finished.
            (tmp_path / "c" / f"{5:016x}").mkdir()
            await made.keep_from(1000)
            assert (tmp_path / "c" / f"{5:016x}").exists()

        await made.write(batches(), 5)
        assert await made.has_checkpoint(5)
        await made.close()

    run(main())


@both
def test_a_download_is_adopted(kind: Kind, tmp_path: Path) -> None:
    async def main() -> None:
        made = catalog(tmp_path / "c", kind)
        await made.begin_empty()
        done = await made.write(changes(5), 5)
        expected = await all_of(made.store)
        source = made.checkpoint_directory(5)
        other = catalog(tmp_path / "other", kind)
        assert not await other.has_checkpoint(5)
        shutil.copytree(source, other.checkpoint_directory(5))
        assert not await other.has_checkpoint(5)
        assert names(tmp_path / "other") == []
        for spoil in (True, False):
            shutil.copytree(source, other.checkpoint_directory(5))
            if spoil:
                os.truncate(f"{other.checkpoint_directory(5)}/CURRENT", 3)
                with pytest.raises(KeyStoreCorruptError, match="has 3 bytes"):
                    await other.adopt_download(5, done.files)
                assert not await other.has_checkpoint(5)
        await other.adopt_download(5, reversed(done.files))
        assert await other.has_checkpoint(5)
        assert await content(other, 5) == expected
        await other.close()
        await made.close()

    run(main())


@both
def test_checkpoints_outlive_the_working_store(kind: Kind, tmp_path: Path) -> None:
    async def main() -> None:
        folder = tmp_path / "c"
        made = catalog(folder, kind)
        await made.begin_empty()
        states = {number: await write(made, number) for number in (5, 7)}
        await made.destroy_working()
        assert names(folder) == finished(5, 7)
        with pytest.raises(KeyStoreClosedError):
            await made.store.flush()
        await made.begin_empty()
        assert await all_of(made.store) == []
        states[8] = await write(made, 8)
        assert states[8] != states[7]
        for number, state in states.items():
            assert await made.has_checkpoint(number)
            assert await content(made, number) == state
        await made.destroy()
        assert names(tmp_path) == []
        for call in (made.has_checkpoint(5), made.begin_empty(), made.keep_from(1)):
            with pytest.raises(KeyStoreClosedError):
                await call
        await made.close()

    run(main())


@both
def test_what_an_earlier_run_left_in_the_working_store_is_discarded(
    kind: Kind, tmp_path: Path
) -> None:
    async def main() -> None:
        states = await built(tmp_path / "c", kind, (5, 7))
        ahead = catalog(tmp_path / "c", kind)
        await ahead.open_at(7)
        await ahead.store.apply(batch(numbered([1], b"ahead"), [b"key 000007"]), 9)
        await ahead.store.flush()
        # A second one may not take it away.
        second = catalog(tmp_path / "c", kind)
        with pytest.raises(KeyStoreInUseError):
            await second.open_at(7)
        await second.close()
        await ahead.close()
        for left in (tmp_path / "c").glob("working-*/"):
            (left / "more").mkdir()
        # Of an early version.
        shutil.copytree(tmp_path / "c" / f"{7:016x}", tmp_path / "c/working")
        shutil.copy(tmp_path / "c" / f"{7:016x}.files", tmp_path / "c/working.files")
        made = catalog(tmp_path / "c", kind)
        assert await content(made, 7) == states[7]
        await made.begin_empty()
        assert (made.store.sequence_number, await all_of(made.store)) == (0, [])
        assert await content(made, 5) == states[5]
        assert names(tmp_path / "c") == [*finished(5, 7), *WORKING]
        await made.close()

    run(main())


# --- whose it is ----------------------------------------------------------------------------------


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@both
@pytest.mark.parametrize("identity", FOREIGN)
@pytest.mark.parametrize("checkpoints", [(), (5, 7)])
def test_the_files_of_another_are_refused(
    kind: Kind, identity: KeyStoreIdentity, checkpoints: tuple[int, ...], tmp_path: Path
) -> None:
    async def main() -> None:
        await built(tmp_path / "c", kind, checkpoints)
        before = everything(tmp_path)
        foreign = catalog(tmp_path / "c", kind, identity)
        for call in (
            foreign.has_checkpoint(5),
            foreign.adopt_download(5, ()),
            foreign.open_at(5),
            foreign.open_checkpoint(5),
            foreign.begin_empty(),
            foreign.keep_from(100),
            foreign.destroy_working(),
            foreign.destroy(),
        ):
            with pytest.raises(ForeignKeyStoreError, match=IDENTITY.store_id):
                await call
        await foreign.close()
        assert everything(tmp_path) == before

    run(main())


@both
def test_a_checkpoint_of_another_number_is_refused(kind: Kind, tmp_path: Path) -> None:
    async def main() -> None:
        made = catalog(tmp_path / "c", kind)
        await made.begin_empty()
        done = await made.write(changes(5), 5)
        shutil.copytree(made.checkpoint_directory(5), made.checkpoint_directory(6))
        await made.adopt_download(6, done.files)
        with pytest.raises(KeyStoreCorruptError, match="the checkpoint of 6 has the state of 5"):
            await made.open_at(6)
        with pytest.raises(KeyStoreCorruptError, match="the checkpoint of 6 has the state of 5"):
            await made.open_checkpoint(6)
        for number in (6, 7):
            shutil.copy(tmp_path / "c" / f"{5:016x}.files", tmp_path / "c" / f"{number:016x}.files")
            with pytest.raises(KeyStoreCorruptError):
                await made.open_at(number)
            assert not await made.has_checkpoint(number)
            assert "the list of 5" in (made.damage or "")
        assert await content(made, 5) == await content(made, 5)
        await made.close()

    run(main())


# --- damage ---------------------------------------------------------------------------------------


@sized(10)
@both
def test_damage_of_any_file_is_found(kind: Kind, tmp_path: Path) -> None:
    async def main() -> None:
        await built(tmp_path / "whole", kind, (5, 7))
        folder = tmp_path / "c"
        rng = random.Random(3)
        inside = [f"{7:016x}/{name}" for name in names(tmp_path / "whole" / f"{7:016x}")]
        for name in (f"{7:016x}{LIST_SUFFIX}", *inside):
            size = (tmp_path / "whole" / name).stat().st_size
            for damage in ("flip", "first", "last", "cut", "empty", "longer", "missing"):
                shutil.copytree(tmp_path / "whole", folder)
                whole = bytearray((folder / name).read_bytes())
                (folder / name).unlink()
                place = {"first": 0, "last": size - 1}.get(damage, rng.randrange(size))
                if damage in {"flip", "first", "last"}:
                    whole[place] ^= 1 << rng.randrange(8)
                elif damage == "longer":
                    whole += b"\0"
                else:
                    del whole[0 if damage == "empty" else place :]
                if damage != "missing":
                    (folder / name).write_bytes(whole)
                made = catalog(folder, kind)
                assert not await made.has_checkpoint(7), (name, damage)
                expected = damage != "missing" or name in inside
                assert bool(made.damage) == expected, (name, damage, made.damage)
                assert names(folder) == [*finished(5), *WORKING]
                assert await made.has_checkpoint(5)
                await made.close()
                shutil.rmtree(folder)

    run(main())


def test_the_golden_list_of_files() -> None:
    """The format of docs/formats/metadata-catalog-files.md: it changes with the version alone."""
    files = (CheckpointFile("000012.sst", 1303, 0x7D13F00D), CheckpointFile("CURRENT", 16, 1))
    identity = KeyStoreIdentity("0b4f6c1e6f0a4c8e9d7b2f5f4f9f6d10", 3)
    listed = CheckpointList(identity, 0x102, files)
    whole = GOLDEN.read_bytes()
    assert encode_checkpoint_list(listed) == whole
    assert decode_checkpoint_list(whole) == listed
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 4
        for spoilt in (bytes(flipped), whole[:place]):
            with pytest.raises(MetadataFormatError):
                decode_checkpoint_list(spoilt)


@pytest.mark.parametrize(
    ("place", "bytes_there", "words"),
    [
        (0, b"X", "magic"),
        (8, b"\0\0\0\2", "version 2"),
        (58, b"\0\0\0\3", "malformed"),
        (58, b"\0\0\0\1", "behind a list"),
        (76, b"/", "no name of a file"),
        (76, b"\xff", "malformed"),
    ],
)
def test_a_list_that_is_none_is_refused(place: int, bytes_there: bytes, words: str) -> None:
    content = bytearray(GOLDEN.read_bytes()[:-4])
    content[place : place + len(bytes_there)] = bytes_there
    with pytest.raises(MetadataFormatError, match=words):
        decode_checkpoint_list(bytes(content) + struct.pack(">I", crc32c(content)))


# --- writes that are not finished -----------------------------------------------------------------


@both
def test_a_write_that_failed_is_the_last_of_its_store(kind: Kind, tmp_path: Path) -> None:
    async def failing() -> AsyncIterator[KeyBatch]:
        yield changes(7)[0]
        raise RuntimeError("no more")

    async def main() -> None:
        made = catalog(tmp_path / "c", kind)
        await made.begin_empty()
        state = await write(made, 5)
        with pytest.raises(RuntimeError, match="no more"):
            await made.write(failing(), 7)
        with pytest.raises(KeyStoreError, match="of 7 was not finished"):
            await made.write([], 8)
        assert await content(made, 5) == state
        await made.write([], 8)
        assert await content(made, 8) == state
        await made.close()

    run(main())


@both
def test_a_write_may_be_cancelled_anywhere(kind: Kind, tmp_path: Path) -> None:
    async def main() -> None:
        made = catalog(tmp_path / "c", kind, runtime=Runtime(executor=inline_executor))
        await made.begin_empty()
        state = await write(made, 5)
        turns, done = 0, False
        while not done:
            turns += 1
            writing = asyncio.ensure_future(made.write(changes(7), 7))
            for _ in range(turns):
                await asyncio.sleep(0)
            done = writing.done()
            writing.cancel()
            await asyncio.wait([writing])
            await made.destroy_working()
            # Cancelled at its very end, it is finished all the same.
            possible = (finished(5, 7),) if done else (finished(5), finished(5, 7))
            assert names(tmp_path / "c") in possible
            assert await content(made, 5) == state
        await made.close()
        made = catalog(tmp_path / "c", kind)
        opening = asyncio.ensure_future(made.open_at(5))
        await asyncio.sleep(0)
        opening.cancel()
        await made.close()
        await asyncio.wait([opening])
        made = catalog(tmp_path / "c", kind)
        assert await content(made, 5) == state
        await made.close()

    run(main())
