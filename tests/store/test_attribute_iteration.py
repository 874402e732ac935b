"""`iterate_attributes`: by id, in slices, while the segment changes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from segmentstore import (
    ATTRIBUTE_UNSET,
    AttributeUpdate,
    ContainerStoppedError,
    InvalidArgumentError,
    SegmentNotFoundError,
    SegmentStore,
    UpdateType,
    blocking,
)
from tests.store.harness import TINY, open_tiny, run


def replace(values: dict[UUID, int]) -> list[AttributeUpdate]:
    return [
        AttributeUpdate(attribute_id, UpdateType.REPLACE, value)
        for attribute_id, value in values.items()
    ]


def many(count: int) -> dict[UUID, int]:
    """At random places, in no order."""
    return {UUID(bytes=random.Random(n).randbytes(16)): n for n in range(count)}


async def fill(store: SegmentStore, name: str, values: dict[UUID, int]) -> None:
    updates = replace(values)
    await store.create_segment(name)
    for begin in range(0, len(updates), 1000):
        await store.update_attributes(name, updates[begin : begin + 1000])


async def exhaust(iterator: AsyncIterator[tuple[UUID, int]], into: list[tuple[UUID, int]]) -> None:
    while True:
        into.append(await anext(iterator))


def test_from_one_id_to_another_both_included(tmp_path: Path) -> None:
    async def main() -> None:
        values = many(900)
        ids = sorted(values)
        async with open_tiny(tmp_path / "s") as store:
            await fill(store, "x", values)
            await store.create_segment("empty")

            async def got(*bounds: UUID | None) -> list[tuple[UUID, int]]:
                return [item async for item in store.iterate_attributes("x", *bounds)]

            in_order = sorted(values.items())
            assert await got() == in_order
            assert list((await store.get_attributes("x")).items()) == in_order
            assert await got(ids[300]) == in_order[300:]
            assert await got(ids[300], ids[700]) == in_order[300:701]
            assert await got(None, ids[255]) == in_order[:256]
            assert await got(UUID(int=ids[5].int + 1), UUID(int=ids[7].int - 1)) == in_order[6:7]
            assert await got(ids[7], ids[6]) == []
            assert await got(UUID(int=2**128 - 1)) == []
            assert [item async for item in store.iterate_attributes("empty")] == []
        async with open_tiny(tmp_path / "s") as store:
            assert [item async for item in store.iterate_attributes("x")] == in_order

    run(main())


def test_what_is_there_all_the_time_is_given_exactly_once(tmp_path: Path) -> None:
    async def main() -> None:
        values = many(2_000)
        ids = sorted(values)
        kept, leaving = ids[::2], ids[1::2]
        coming = sorted(many(3_000).keys() - values.keys())
        held = {attribute_id: {value} for attribute_id, value in values.items()}
        chance = random.Random(3)
        async with open_tiny(tmp_path / "s") as store:
            await fill(store, "x", values)

            async def change(number: int) -> None:
                changed = dict.fromkeys(chance.sample(kept, 40), number)
                gone = dict.fromkeys(chance.sample(leaving, 90), ATTRIBUTE_UNSET)
                new = dict.fromkeys(chance.sample(coming, 50), number)
                for attribute_id, value in {**changed, **new}.items():
                    held.setdefault(attribute_id, set()).add(value)
                await store.update_attributes("x", replace({**changed, **gone, **new}))

            given: list[tuple[UUID, int]] = []
            async for item in store.iterate_attributes("x"):
                given.append(item)
                if len(given) % 64 == 0:
                    await change(10_000 + len(given))
        seen = [attribute_id for attribute_id, _ in given]
        assert seen == sorted(set(seen))
        assert set(kept) <= set(seen)
        assert all(value in held[attribute_id] for attribute_id, value in given)

    run(main())


def test_others_have_a_turn_between_slices(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await fill(store, "x", many(2_000))
            turns = given = longest = 0

            async def other() -> None:
                nonlocal turns, given, longest
                while True:
                    longest, given = max(longest, given), 0
                    turns += 1
                    await asyncio.sleep(0)

            task = asyncio.create_task(other())
            async for _ in store.iterate_attributes("x"):
                given += 1
            task.cancel()
            assert turns > 6
            assert longest <= 256

    run(main())


@pytest.mark.parametrize("ending", ["deleted", "made again", "merged", "closed"])
def test_a_segment_that_ends_meanwhile(tmp_path: Path, ending: str) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await fill(store, "x", many(900))
            iterator = store.iterate_attributes("x")
            first = await anext(iterator)
            if ending == "merged":
                await store.create_segment("t")
                await store.merge("t", "x")
            elif ending == "closed":
                await store.close()
            else:
                await store.delete("x")
            if ending == "made again":
                await fill(store, "x", many(900))
            error = ContainerStoppedError if ending == "closed" else SegmentNotFoundError
            rest: list[tuple[UUID, int]] = []
            with pytest.raises(error):
                await exhaust(iterator, rest)
            assert [first, *rest] == sorted(many(900).items())[: len(rest) + 1]

    run(main())


def test_two_who_ask_one_iterator_get_each_attribute_once(tmp_path: Path) -> None:
    async def main() -> None:
        values = many(1_500)
        async with open_tiny(tmp_path / "s") as store:
            await fill(store, "x", values)
            iterator = store.iterate_attributes("x")

            async def take() -> list[tuple[UUID, int]]:
                items = []
                async for item in iterator:
                    items.append(item)
                    await asyncio.sleep(0)
                return items

            one, two = await asyncio.gather(take(), take())
            assert one
            assert two
            assert sorted(one + two) == sorted(values.items())

    run(main())


def test_what_it_refuses(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            with pytest.raises(SegmentNotFoundError):
                store.iterate_attributes("x")
            await store.create_segment("x")
            with pytest.raises(InvalidArgumentError, match="from_id"):
                store.iterate_attributes("x", 5)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgumentError, match="to_id"):
                store.iterate_attributes("x", None, "a")  # type: ignore[arg-type]

    run(main())


def test_the_blocking_iterator(tmp_path: Path) -> None:
    values = many(900)
    in_order = sorted(values.items())
    with blocking.open(tmp_path / "s", **TINY) as store:
        store.create_segment("x", replace(values))
        assert list(store.iterate_attributes("x")) == in_order
        assert (
            list(store.iterate_attributes("x", in_order[3][0], in_order[400][0]))
            == (in_order[3:401])
        )
        iterator = store.iterate_attributes("x")
        assert next(iterator) == in_order[0]
        store.delete("x")
        with pytest.raises(SegmentNotFoundError):
            list(iterator)
        with pytest.raises(SegmentNotFoundError):
            store.iterate_attributes("x")
