"""What every KeyStore promises of scans of several ranges. A part of the suite of its contract."""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from durablelog.catalog.key_ranges import StoreKeyRange
from durablelog.catalog.key_store import (
    PORTION_BYTES_MAX,
    KeyPair,
    KeyPortion,
    KeyStore,
    KeyStoreClosedError,
)
from tests.contracts.key_store_contract import EVERYTHING, batch, numbered, run

RANGES = 100


def between(start: int, end: int) -> StoreKeyRange:
    return StoreKeyRange(b"key %06d" % start, b"key %06d" % end)


async def all_of_each(
    store: KeyStore, ranges: list[StoreKeyRange], limit: int
) -> list[list[KeyPair]]:
    """All pairs of each range, in as many calls as they take."""
    found: list[list[KeyPair]] = [[] for _ in ranges]
    left = list(enumerate(ranges))
    while left:
        portions = await store.scan_each([keys for _, keys in left], limit)
        assert any(portion.pairs or portion.rest is None for portion in portions), "it goes on"
        assert sum(len(portion.pairs) for portion in portions) <= limit
        for (place, _), portion in zip(left, portions, strict=True):
            found[place] += portion.pairs
        left = [
            (place, portion.rest)
            for (place, _), portion in zip(left, portions, strict=True)
            if portion.rest is not None
        ]
    return found


class KeyStoreScans(ABC):
    """Each test gets a folder of its own."""

    @abstractmethod
    async def opened(self, folder: Path) -> KeyStore:
        """A new store in the folder."""

    def test_ranges_share_the_limit_of_a_scan(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await self.opened(tmp_path / "s")
            await store.apply(batch(numbered(range(60))), 1)
            await store.flush()
            await store.apply(batch(numbered([22], b"new"), [b"key 000023"]), 2)
            ranges = [between(10, 14), between(9, 3), between(20, 40), between(50, 60)]
            assert await store.scan_each(ranges, 8) == [
                KeyPortion(numbered(range(10, 14)), None),
                KeyPortion([], None),
                KeyPortion(
                    [*numbered([20, 21]), *numbered([22], b"new"), *numbered([24])],
                    between(25, 40),
                ),
                KeyPortion([], between(50, 60)),
            ]
            # What ends with the limit is at its end; what is behind it is not known to be empty.
            assert await store.scan_each([between(50, 60), between(9, 3)], 10) == [
                KeyPortion(numbered(range(50, 60)), None),
                KeyPortion([], between(9, 3)),
            ]
            whole = [list((await store.scan(keys, 100)).pairs) for keys in ranges]
            for limit in (1, 3, 100):
                assert await all_of_each(store, ranges, limit) == whole
            assert await store.scan_each([], 1) == []
            with pytest.raises(ValueError, match="limit=0"):
                await store.scan_each(ranges, 0)
            await store.close()
            with pytest.raises(KeyStoreClosedError):
                await store.scan_each(ranges, 1)

        run(main())

    def test_ranges_share_the_bytes_of_a_portion(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await self.opened(tmp_path / "s")
            large, huge = bytes(PORTION_BYTES_MAX // 3), bytes(2 * PORTION_BYTES_MAX)
            await store.apply(batch([*numbered(range(5), large), *numbered([5], huge)]), 1)
            singles = [between(number, number + 1) for number in range(6)]
            portions = await store.scan_each(singles, 1000)
            assert [portion.pairs for portion in portions] == [
                *(numbered([number], large) for number in range(2)),
                *([] for _ in range(4)),
            ]
            rests = [portion.rest for portion in portions]
            assert rests == [None, None, *singles[2:]]
            portions = await store.scan_each([singles[5], singles[0]], 1000)
            assert portions == [
                KeyPortion(numbered([5], huge), None),
                KeyPortion([], singles[0]),
            ]
            assert (await store.scan_each([singles[0], singles[5]], 1000))[1].pairs == []
            assert await all_of_each(store, singles, 1000) == [
                *(numbered([number], large) for number in range(5)),
                numbered([5], huge),
            ]
            await store.close()

        run(main())

    def test_a_scan_of_ranges_shows_no_key_of_the_stores_own(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await self.opened(tmp_path / "s")
            await store.apply(batch([(b"\x01", b"first")]), 7)
            found = await store.scan_each([EVERYTHING, StoreKeyRange(b"", b"\x01")], 9)
            assert found == [KeyPortion([(b"\x01", b"first")], None), KeyPortion([], None)]
            await store.close()

        run(main())

    def test_what_a_scan_finds_in_its_ranges_is_of_one_moment(self, tmp_path: Path) -> None:
        async def main() -> None:
            store = await self.opened(tmp_path / "s")
            ranges = [between(number, number + 1) for number in range(RANGES)]
            await store.apply(batch(numbered(range(RANGES), b"0")), 0)
            done = False

            async def change() -> None:
                for number in range(1, 150):
                    await store.apply(batch(numbered(range(RANGES), b"%d" % number)), number)

            async def read() -> set[bytes]:
                seen = set()
                while not done:
                    portions = await store.scan_each(ranges, 1000)
                    values = {value for portion in portions for _, value in portion.pairs}
                    assert len(values) == 1, values
                    seen |= values
                return seen

            reading = asyncio.ensure_future(read())
            await change()
            done = True
            assert len(await reading) > 1, "they were read while they changed"
            await store.close()

        usual = sys.getswitchinterval()
        try:
            # A scan takes less time than the usual turn of a thread.
            sys.setswitchinterval(1e-6)
            run(main())
        finally:
            sys.setswitchinterval(usual)
