"""What every KeyStore promises. Subclass, and give `make` and `data_files`."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest

from durablelog.catalog.key_ranges import StoreKeyRange
from durablelog.catalog.key_store import (
    KEY_BYTES_MAX,
    PORTION_BYTES_MAX,
    ForeignKeyStoreError,
    KeyBatch,
    KeyPair,
    KeySnapshot,
    KeyStore,
    KeyStoreClosedError,
    KeyStoreCorruptError,
    KeyStoreError,
    KeyStoreInUseError,
)
from durablelog.catalog.key_store_records import KeyStoreIdentity
from segmentstore.contracts.checksum import crc32c
from tests.support.suites import size as size_of
from tests.support.suites import sized

IDENTITY = KeyStoreIdentity("0" * 31 + "1", 3)
EVERYTHING = StoreKeyRange(b"", b"\xff\xff")


def batch(puts: Iterable[KeyPair] = (), deletes: Iterable[bytes] = ()) -> KeyBatch:
    made = KeyBatch()
    for key in deletes:
        made.delete(key)
    for key, value in puts:
        made.put(key, value)
    return made


def numbered(numbers: Iterable[int], value: bytes = b"v") -> list[KeyPair]:
    return [(b"key %06d" % number, value) for number in numbers]


async def all_of(source: KeyStore | KeySnapshot, keys: StoreKeyRange = EVERYTHING) -> list[KeyPair]:
    """All pairs of a range, in as many portions as they take."""
    pairs: list[KeyPair] = []
    rest: StoreKeyRange | None = keys
    while rest is not None:
        portion = await source.scan(rest, 1000)
        pairs += portion.pairs
        rest = portion.rest
    return pairs


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


class KeyStoreContract(ABC):
    """Each test gets a folder of its own."""

    @abstractmethod
    def make(self, folder: Path, identity: KeyStoreIdentity = IDENTITY) -> KeyStore:
        """A store in the folder, not opened yet."""

    @abstractmethod
    def data_files(self, folder: Path) -> list[Path]:
        """The files without which the store is not whole."""

    async def opened(self, folder: Path) -> KeyStore:
        store = self.make(folder)
        await store.open()
        return store

    # --- keys -------------------------------------------------------------------------------------

    def test_gives_what_was_put_in_the_order_of_the_keys(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await self.opened(tmp_path / "s")
            assert store.sequence_number == 0
            assert await all_of(store) == []
            await store.apply(batch([(b"b", b"2"), (b"a", b""), (b"\xff", b"3")]), 7)
            assert store.sequence_number == 7
            keys = [b"b", b"none", b"a", b"b", b"\xff"]
            assert await store.get(keys) == [b"2", None, b"", b"2", b"3"]
            assert await store.get([]) == []
            await store.apply(batch([(b"b", b"4")], [b"a", b"none"]), 8)
            assert await all_of(store) == [(b"b", b"4"), (b"\xff", b"3")]
            await store.close()

        run(main())

    def test_changes_of_a_batch_take_effect_in_their_order(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await self.opened(tmp_path / "s")
            await store.apply(batch((key, b"old") for key in (b"a", b"b", b"c", b"d")), 1)
            changes = batch([(b"bb", b"lost"), (b"d", b"lost")])
            changes.delete_range(StoreKeyRange(b"b", b"d"))
            changes.delete_range(StoreKeyRange(b"d", b"b"))
            changes.put(b"c", b"new")
            changes.delete(b"d")
            await store.apply(changes, 2)
            assert await all_of(store) == [(b"a", b"old"), (b"c", b"new")]
            await store.flush()
            assert await all_of(store) == [(b"a", b"old"), (b"c", b"new")]
            await store.close()

        run(main())

    def test_finds_the_last_key_of_a_range(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await self.opened(tmp_path / "s")
            await store.apply(batch(numbered(range(0, 100, 10))), 1)
            await store.flush()
            await store.apply(batch(numbered([95], b"new"), [b"key 000050"]), 2)
            ranges = [
                *(StoreKeyRange(b"key", b"key 000030"), StoreKeyRange(b"key", b"key 000030\0")),
                *(StoreKeyRange(b"key 000041", b"key 000049"), StoreKeyRange(b"a", b"b")),
                *(StoreKeyRange(b"key 000041", b"key 000059"), EVERYTHING),
                StoreKeyRange(b"", b"key 000000"),
            ]
            assert await store.find_last(ranges) == [
                *((b"key 000020", b"v"), (b"key 000030", b"v"), None, None, None),
                *((b"key 000095", b"new"), None),
            ]
            await store.close()

        run(main())

    def test_scans_are_in_bounded_portions(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await self.opened(tmp_path / "s")
            await store.apply(batch(numbered(range(100))), 1)
            start, end = b"key 000010", b"key 000020"
            portion = await store.scan(StoreKeyRange(start, end), 4)
            assert portion.pairs == numbered(range(10, 14))
            assert portion.rest == StoreKeyRange(b"key 000014", end)
            assert await store.scan(portion.rest, 6) == (numbered(range(14, 20)), None)
            assert await store.scan(StoreKeyRange(end, start), 6) == ([], None)
            with pytest.raises(ValueError, match="limit=0"):
                await store.scan(EVERYTHING, 0)
            large = bytes(PORTION_BYTES_MAX // 3)
            await store.apply(batch(numbered(range(5), large)), 2)
            portion = await store.scan(EVERYTHING, 1000)
            assert portion.pairs == numbered(range(2), large)
            huge = bytes(2 * PORTION_BYTES_MAX)
            await store.apply(batch(numbered(range(1), huge)), 3)
            assert (await store.scan(EVERYTHING, 1000)).pairs == numbered(range(1), huge)
            assert len(await all_of(store)) == 100
            await store.close()

        run(main())

    def test_what_is_no_key_is_refused(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await self.opened(tmp_path / "s")
            for key in (b"", b"\0", b"\0\1", b"k" * (KEY_BYTES_MAX + 1)):
                with pytest.raises(ValueError, match="cannot be a key"):
                    KeyBatch().put(key, b"")
                with pytest.raises(ValueError, match="cannot be a key"):
                    KeyBatch().delete_range(StoreKeyRange(key, b"\xff" * KEY_BYTES_MAX))
            for key in (b"", b"\0\1"):
                with pytest.raises(ValueError, match="cannot be a key"):
                    await store.get([key])
            longest = b"k" * KEY_BYTES_MAX
            await store.apply(batch([(longest, b"v")]), 1)
            assert await store.get([longest]) == [b"v"]
            await store.close()

        run(main())

    # --- sequence numbers and durability ----------------------------------------------------------

    def test_the_sequence_number_never_falls(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await self.opened(tmp_path / "s")
            await store.apply(batch(numbered([1])), 5)
            await store.apply(batch(numbered([2])), 5)
            with pytest.raises(ValueError, match="4 is below 5"):
                await store.apply(batch(numbered([3])), 4)
            await store.apply(batch(), 9)
            assert await store.flush() == 9
            assert await all_of(store) == numbered([1, 2])
            await store.close()

        run(main())

    def test_what_was_flushed_is_there_when_it_is_opened_again(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await self.opened(tmp_path / "s")
            for number in range(1, 31):
                await store.apply(batch(numbered([number, 7], b"%d" % number)), number)
                if number % 2:
                    assert await store.flush() == number
            there = await all_of(store)
            assert await store.flush() == await store.flush() == 30
            await store.close()
            await store.close()
            store = await self.opened(tmp_path / "s")
            assert (store.sequence_number, await all_of(store)) == (30, there)
            await store.close()

        run(main())

    def test_a_copy_of_the_files_has_a_prefix_of_the_batches(self, tmp_path: Path) -> None:
        """What a crash at that moment leaves, of a machine whose disk keeps what it was given."""

        async def main() -> None:
            store = await self.opened(tmp_path / "s")
            rng = random.Random(1)
            states: dict[int, list[KeyPair]] = {0: []}
            flushed = 0
            for number in range(1, 25):
                changes = batch(numbered(rng.sample(range(50), 5), b"%d" % number))
                changes.delete_range(StoreKeyRange(b"key 0000%d" % rng.randrange(5), b"key 00002"))
                await store.apply(changes, number)
                states[number] = await all_of(store)
                if rng.random() < 0.3:
                    flushed = await store.flush()
                if number % 4 == 0:
                    copied = tmp_path / f"copy-{number}"
                    shutil.copytree(tmp_path / "s", copied)
                    copy = await self.opened(copied)
                    assert flushed <= copy.sequence_number <= number
                    assert await all_of(copy) == states[copy.sequence_number]
                    await copy.close()
            await store.close()

        run(main())

    # --- snapshots --------------------------------------------------------------------------------

    def test_a_snapshot_stays_as_it_was(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await self.opened(tmp_path / "s")
            await store.apply(batch(numbered(range(100))), 1)
            await store.flush()
            await store.apply(batch(numbered(range(100, 200))), 2)
            before = await store.snapshot()
            for number in range(3, 20):
                changes = batch(numbered(range(number, 200, 2), b"later"))
                changes.delete_range(StoreKeyRange(b"key 000000", b"key 000050"))
                await store.apply(changes, number)
                await store.flush()
                first = await before.scan(StoreKeyRange(b"key 000040", b"\xff"), 3)
                assert first.pairs == numbered(range(40, 43))
            after = await store.snapshot()
            assert (before.sequence_number, after.sequence_number) == (2, 19)
            scans = (before.scan(EVERYTHING, 500), before.scan(EVERYTHING, 500))
            assert [each.pairs for each in await asyncio.gather(*scans)] == [
                numbered(range(200))
            ] * 2
            assert await all_of(after) == await all_of(store)
            await before.close()
            await before.close()
            with pytest.raises(KeyStoreClosedError):
                await before.scan(EVERYTHING, 1)
            assert len(await all_of(after)) == 150
            # It is closed with the store, which can then be opened again.
            await store.close()
            await after.close()
            with pytest.raises(KeyStoreClosedError):
                await after.scan(EVERYTHING, 1)
            await (await self.opened(tmp_path / "s")).close()

        run(main())

    # --- checkpoints ------------------------------------------------------------------------------

    def test_a_checkpoint_is_the_whole_store(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await self.opened(tmp_path / "s")
            target = tmp_path / "deep/checkpoint"
            seen: dict[str, tuple[int, int]] = {}
            for number in range(1, 12):
                await store.apply(batch(numbered(range(number * 10), b"%d" % number)), number)
                made = await store.checkpoint(str(target))
                assert made.sequence_number == number
                assert {file.name for file in made.files} == set(os.listdir(target))
                for file in made.files:
                    content = (target / file.name).read_bytes()
                    assert (file.size, file.crc32c) == (len(content), crc32c(content))
                    if not file.name.startswith(("CURRENT", "MANIFEST")):
                        assert seen.setdefault(file.name, file[1:]) == file[1:]
                whole = await all_of(store)
                # A copy: a checkpoint that is opened is changed.
                shutil.copytree(target, tmp_path / f"copy-{number}")
                await store.apply(batch(numbered(range(5), b"behind it")), number)
                copy = await self.opened(tmp_path / f"copy-{number}")
                assert (copy.sequence_number, await all_of(copy)) == (number, whole)
                await copy.apply(batch(numbered([1000])), 100)
                assert await copy.flush() == 100
                await copy.close()
            await store.close()

        run(main())

    def test_a_checkpoint_outlives_its_store(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await self.opened(tmp_path / "s")
            await store.apply(batch(numbered(range(10))), 1)
            await store.checkpoint(str(tmp_path / "c"))
            await store.destroy()
            assert os.listdir(tmp_path / "s") == []
            copy = await self.opened(tmp_path / "c")
            assert await all_of(copy) == numbered(range(10))
            await copy.close()

        run(main())

    # --- whose it is, and what state it is in -----------------------------------------------------

    def test_it_is_of_one_store_and_container(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await self.opened(tmp_path / "s")
            await store.apply(batch(numbered([1])), 1)
            await store.flush()
            await store.close()
            for foreign in (IDENTITY._replace(container_id=4), IDENTITY._replace(store_id="x")):
                other = self.make(tmp_path / "s", foreign)
                with pytest.raises(ForeignKeyStoreError, match=IDENTITY.store_id):
                    await other.open()
                await other.close()
            store = await self.opened(tmp_path / "s")
            assert await all_of(store) == numbered([1])
            await store.destroy()
            other = self.make(tmp_path / "s", IDENTITY._replace(container_id=4))
            await other.open()
            assert (other.sequence_number, await all_of(other)) == (0, [])
            await other.close()

        run(main())

    def test_one_at_a_time_has_it_open(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await self.opened(tmp_path / "s")
            await store.apply(batch(numbered([1])), 1)
            for call in ("open", "destroy"):
                second = self.make(tmp_path / "s")
                with pytest.raises(KeyStoreInUseError, match=f"catalog {tmp_path}/s: "):
                    await getattr(second, call)()
                await second.close()
            await store.apply(batch(numbered([2])), 2)
            assert await store.flush() == 2
            await store.close()
            store = await self.opened(tmp_path / "s")
            assert await all_of(store) == numbered([1, 2])
            await store.close()

        run(main())

    def test_it_answers_only_while_it_is_open(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = self.make(tmp_path / "s")

            async def refused() -> None:
                for call in (
                    store.get([b"a"]),
                    store.find_last([EVERYTHING]),
                    store.scan(EVERYTHING, 1),
                    store.scan_each([EVERYTHING], 1),
                    store.snapshot(),
                    store.apply(batch(), 1),
                    store.flush(),
                    store.checkpoint(str(tmp_path / "c")),
                ):
                    with pytest.raises(KeyStoreClosedError):
                        await call

            await refused()
            await store.open()
            with pytest.raises(KeyStoreClosedError):
                await store.open()
            await store.close()
            await refused()
            with pytest.raises(KeyStoreClosedError):
                await store.open()
            await store.destroy()
            assert os.listdir(tmp_path / "s") == []

        run(main())

    def test_a_cancelled_call_goes_on_and_closing_waits_for_it(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = self.make(tmp_path / "s")
            opening = asyncio.ensure_future(store.open())
            await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            store = await self.opened(tmp_path / "s")
            for number in range(1, 20):
                change = asyncio.ensure_future(store.apply(batch(numbered([number])), number))
                flush = asyncio.ensure_future(store.flush())
                await asyncio.sleep(0)
                change.cancel()
                flush.cancel()
            await store.close()
            store = await self.opened(tmp_path / "s")
            assert store.sequence_number == 19
            assert await all_of(store) == numbered(range(1, 20))
            await store.close()

        run(main())

    # --- damage -----------------------------------------------------------------------------------

    async def filled(self, folder: Path) -> dict[int, list[KeyPair]]:
        """A closed store, and the states it has had when it was flushed."""
        store = await self.opened(folder)
        states: dict[int, list[KeyPair]] = {0: []}
        for number in (10, 20, 30):
            await store.apply(batch(numbered(range(number), b"%d" % number * 20)), number)
            await store.flush()
            states[number] = await all_of(store)
        await store.close()
        return states

    async def check_damaged(self, folder: Path, states: dict[int, list[KeyPair]]) -> bool:
        """Whether the damage was noticed; if not, every answer is right."""
        store = self.make(folder)
        noticed = False
        try:
            await store.open()
            there = states[store.sequence_number]
            assert await all_of(store) == there
            assert await store.get([key for key, _ in there]) == [value for _, value in there]
            assert await store.find_last([EVERYTHING]) == [there[-1] if there else None]
        except KeyStoreCorruptError:
            noticed = True
        await store.close()
        return noticed

    async def begin_anew(self, folder: Path) -> None:
        """What can be done about any damage."""
        await self.make(folder).destroy()
        store = await self.opened(folder)
        assert (store.sequence_number, await all_of(store)) == (0, [])
        await store.close()

    @sized(20)
    def test_a_flipped_bit_is_an_error_or_changes_nothing(self, tmp_path: Path) -> None:
        async def main() -> None:
            states = await self.filled(tmp_path / "whole")
            rng = random.Random(7)
            for path in self.data_files(tmp_path / "whole"):
                size, noticed = path.stat().st_size, 0
                flips = range(size_of("KEY_STORE_FLIPS", 3, 40))
                places = sorted({0, size - 1, *(rng.randrange(size) for _ in flips)})
                for place in places:
                    shutil.copytree(tmp_path / "whole", tmp_path / "s")
                    damaged = tmp_path / "s" / path.name
                    content = bytearray(damaged.read_bytes())
                    content[place] ^= 1 << rng.randrange(8)
                    damaged.write_bytes(content)
                    noticed += await self.check_damaged(tmp_path / "s", states)
                    shutil.rmtree(tmp_path / "s")
                assert noticed > 0, path
                damaged = tmp_path / "whole" / path.name
                damaged.write_bytes(b"\xff" * size)
                await self.begin_anew(tmp_path / "whole")
                shutil.rmtree(tmp_path / "whole")
                await self.filled(tmp_path / "whole")

        run(main())

    def test_a_missing_or_short_file_is_an_error(self, tmp_path: Path) -> None:
        async def main() -> None:
            states = await self.filled(tmp_path / "whole")
            for path in self.data_files(tmp_path / "whole"):
                for length in (None, 0, path.stat().st_size // 2):
                    shutil.copytree(tmp_path / "whole", tmp_path / "s")
                    damaged = tmp_path / "s" / path.name
                    if length is None:
                        damaged.unlink()
                    else:
                        os.truncate(damaged, length)
                    noticed = await self.check_damaged(tmp_path / "s", states)
                    # A cut list of changes is the list of an earlier moment.
                    assert noticed or length, path
                    shutil.rmtree(tmp_path / "s")

        run(main())

    def test_the_first_failed_change_is_the_last(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await self.opened(tmp_path / "s")
            await store.apply(batch(numbered([1])), 1)
            await store.flush()
            await store.apply(batch(numbered([2])), 2)
            (tmp_path / "s").rename(tmp_path / "moved")
            for call in (store.flush(), store.apply(batch(), 3), store.checkpoint(f"{tmp_path}/c")):
                with pytest.raises(KeyStoreCorruptError, match="is missing"):
                    await call
            assert await all_of(store) == numbered([1, 2])
            await store.close()
            store = await self.opened(tmp_path / "moved")
            assert await all_of(store) == numbered(range(1, store.sequence_number + 1))
            assert store.sequence_number >= 1
            await store.close()

        run(main())

    def test_a_checkpoint_that_has_no_place_changes_nothing(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await self.opened(tmp_path / "s")
            await store.apply(batch(numbered([1])), 1)
            (tmp_path / "file").write_bytes(b"not a folder")
            with pytest.raises(KeyStoreError):
                await store.checkpoint(str(tmp_path / "file" / "c"))
            await store.apply(batch(numbered([2])), 2)
            made = await store.checkpoint(str(tmp_path / "c"))
            assert made.sequence_number == 2
            await store.close()

        run(main())

    def test_an_error_that_is_kept_keeps_nothing_open(self, tmp_path: Path) -> None:
        async def main() -> None:
            await self.filled(tmp_path / "s")
            largest = max(self.data_files(tmp_path / "s"), key=lambda path: path.stat().st_size)
            content = bytearray(largest.read_bytes())
            content[50] ^= 1
            largest.write_bytes(content)
            store = self.make(tmp_path / "s")
            errors = []
            try:
                await store.open()
                await all_of(store)
            except KeyStoreCorruptError as error:
                errors.append(error)
            assert errors != []
            await store.close()
            store = self.make(tmp_path / "s")
            await store.destroy()

        run(main())
