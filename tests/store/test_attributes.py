"""Attributes through the public API: the five update types, alone and with an append, all or
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from segmentstore import (
    ATTRIBUTE_UNSET,
    AttributeUpdate,
    BadAttributeUpdateError,
    InvalidArgumentError,
    SegmentStore,
    TooManyAttributesError,
    UpdateType,
)
from tests.store.harness import attribute, open_tiny, read_all, run

HIGH, LOW = 2**63 - 1, 1 - 2**63
UNSET = ATTRIBUTE_UNSET
A, B, C = attribute(1), attribute(2), UUID(int=2**128 - 1)

CASES = [
    # type, value there, value, expected -> value after, UNSET = no value; None after = refused
    (UpdateType.NONE, None, 5, None, 5),
    (UpdateType.NONE, 4, 5, None, None),
    (UpdateType.REPLACE, None, 5, None, 5),
    (UpdateType.REPLACE, 4, LOW, None, LOW),
    (UpdateType.REPLACE_IF_GREATER, None, LOW, None, LOW),
    (UpdateType.REPLACE_IF_GREATER, 4, 5, None, 5),
    (UpdateType.REPLACE_IF_GREATER, 5, 5, None, None),
    (UpdateType.REPLACE_IF_GREATER, 6, 5, None, None),
    (UpdateType.ACCUMULATE, None, 5, None, 5),
    (UpdateType.ACCUMULATE, 4, -5, None, -1),
    (UpdateType.ACCUMULATE, HIGH, 1, None, None),
    (UpdateType.ACCUMULATE, LOW, -1, None, None),
    (UpdateType.ACCUMULATE, HIGH, LOW, None, 0),
    (UpdateType.ACCUMULATE, 5, UNSET, None, 5 - 2**63),
    (UpdateType.ACCUMULATE, None, UNSET, None, None),
    (UpdateType.REPLACE_IF_EQUALS, None, 5, None, 5),
    (UpdateType.REPLACE_IF_EQUALS, 4, 5, 4, 5),
    (UpdateType.REPLACE_IF_EQUALS, 4, 5, None, None),
    (UpdateType.REPLACE_IF_EQUALS, 4, 5, 3, None),
    (UpdateType.REPLACE_IF_EQUALS, None, 5, 0, None),
    (UpdateType.REPLACE_IF_EQUALS, 0, 5, None, None),
    (UpdateType.NONE, None, UNSET, None, UNSET),
    (UpdateType.NONE, 4, UNSET, None, None),
    (UpdateType.REPLACE, 4, UNSET, None, UNSET),
    (UpdateType.REPLACE, None, UNSET, None, UNSET),
    (UpdateType.REPLACE_IF_GREATER, 4, UNSET, None, None),
    (UpdateType.REPLACE_IF_GREATER, None, UNSET, None, UNSET),
    (UpdateType.REPLACE_IF_EQUALS, 4, UNSET, 4, UNSET),
    (UpdateType.REPLACE_IF_EQUALS, 4, UNSET, 3, None),
    (UpdateType.REPLACE_IF_EQUALS, None, 5, UNSET, 5),
    (UpdateType.REPLACE_IF_EQUALS, 4, 5, UNSET, None),
    (UpdateType.REPLACE_IF_EQUALS, None, UNSET, UNSET, UNSET),
]


async def make(store: SegmentStore, there: int | None) -> None:
    await store.create_segment(
        "x", [] if there is None else [AttributeUpdate(A, UpdateType.REPLACE, there)]
    )


@pytest.mark.parametrize(("kind", "there", "value", "expected", "after"), CASES)
@pytest.mark.parametrize("with_append", [False, True])
def test_each_update_type_alone_and_with_an_append(
    tmp_path: Path,
    kind: UpdateType,
    there: int | None,
    value: int,
    expected: int | None,
    after: int | None,
    with_append: bool,
) -> None:
    async def main() -> None:
        update = AttributeUpdate(A, kind, value, expected)
        async with open_tiny(tmp_path / "s", tier1="memory", tier2="memory://") as store:
            await make(store, there)

            async def call() -> None:
                if with_append:
                    await store.append("x", b"data", attributes=[update])
                else:
                    await store.update_attributes("x", [update])

            if after is None:
                with pytest.raises(BadAttributeUpdateError) as caught:
                    await call()
                assert (caught.value.name, caught.value.attribute_id, caught.value.current) == (
                    "x",
                    A,
                    there,
                )
            else:
                await call()
            left = there if after is None else after
            expected_left = {} if left in {None, UNSET} else {A: left}
            assert await store.get_attributes("x") == expected_left
            assert (await store.get_info("x")).length == (
                4 if with_append and after is not None else 0
            )

    run(main())


def test_all_or_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await make(store, 1)
            updates = [
                AttributeUpdate(B, UpdateType.REPLACE, 2),
                AttributeUpdate(A, UpdateType.ACCUMULATE, 10),
                AttributeUpdate(C, UpdateType.REPLACE_IF_EQUALS, 3, 99),
            ]
            for call in (
                lambda: store.update_attributes("x", updates),
                lambda: store.append("x", b"data", attributes=updates),
                lambda: store.append_batch("x", [b"da", b"ta"], attributes=updates),
            ):
                with pytest.raises(BadAttributeUpdateError):
                    await call()
            with pytest.raises(BadAttributeUpdateError):
                await store.create_segment("y", updates)
            assert await store.get_attributes("x") == {A: 1}
            assert [(info.name, info.length) async for info in store.list_segments()] == [("x", 0)]
            await store.update_attributes("x", updates[:2])
            assert await store.get_attributes("x") == {A: 11, B: 2}

    run(main())


def test_later_updates_of_one_call_see_earlier_ones(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await make(store, None)
            await store.update_attributes(
                "x",
                [
                    AttributeUpdate(A, UpdateType.NONE, 1),
                    AttributeUpdate(A, UpdateType.ACCUMULATE, 2),
                    AttributeUpdate(A, UpdateType.REPLACE_IF_EQUALS, 7, 3),
                ],
            )
            assert await store.get_attributes("x") == {A: 7}

    run(main())


def test_conditions_see_updates_that_are_not_durable_yet(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await make(store, None)
            claims = [
                store.append(
                    "x", b"%d" % number, attributes=[AttributeUpdate(A, UpdateType.NONE, number)]
                )
                for number in range(10)
            ]
            results = await asyncio.gather(*claims, return_exceptions=True)
            assert results[0] == 0
            assert all(
                isinstance(result, BadAttributeUpdateError) and result.current == 0
                for result in results[1:]
            )
            await asyncio.gather(
                *(
                    store.update_attributes("x", [AttributeUpdate(B, UpdateType.ACCUMULATE, 1)])
                    for _ in range(300)
                )
            )
            assert await store.get_attributes("x") == {A: 0, B: 300}
            assert await read_all(store, "x") == b"0"

    run(main())


def test_values_live_through_checkpoint_and_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await make(store, HIGH)
            await store.update_attributes("x", [AttributeUpdate(B, UpdateType.REPLACE, LOW)])
            await store.checkpoint()
            await store.append("x", b"d", attributes=[AttributeUpdate(C, UpdateType.REPLACE, 0)])
        for _ in range(2):
            async with open_tiny(tmp_path / "s") as store:
                assert await store.get_attributes("x") == {A: HIGH, B: LOW, C: 0}
                assert await store.get_attributes("x", [B, attribute(77)]) == {B: LOW}
                assert await store.get_attributes("x", []) == {}

    run(main())


def test_a_removal_counts_before_it_is_durable_and_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await make(store, 1)
            removal = AttributeUpdate(A, UpdateType.REPLACE_IF_EQUALS, UNSET, 1)
            absent = AttributeUpdate(A, UpdateType.NONE, 2)
            await asyncio.gather(
                store.append("x", b"one", attributes=[removal]),
                store.append("x", b"two", attributes=[absent]),
                store.update_attributes("x", [AttributeUpdate(A, UpdateType.ACCUMULATE, 3)]),
                store.update_attributes("x", [AttributeUpdate(A, UpdateType.REPLACE, UNSET)]),
                store.update_attributes("x", [AttributeUpdate(B, UpdateType.NONE, 7)]),
            )
            assert await store.get_attributes("x") == {B: 7}
            await store.checkpoint()
            await store.update_attributes("x", [AttributeUpdate(B, UpdateType.REPLACE, UNSET)])
        for _ in range(2):
            async with open_tiny(tmp_path / "s") as store:
                assert await store.get_attributes("x") == {}

    run(main())


def test_a_writer_that_is_removed_begins_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await store.create_segment("x")
            writer = store.writer("x", C)
            await writer.append(b"5", 5)
            removal = AttributeUpdate(C, UpdateType.REPLACE, UNSET)
            # All on its way at once: the removal is seen by what comes behind it.
            repeated = writer.append(b"repeated", 5)
            removed = store.append("x", b"-", attributes=[removal])
            again, lower = writer.append(b"5", 5), writer.append(b"repeated", 4)
            assert await repeated is None
            assert (await removed, await again, await lower) == (1, 2, None)
            assert await store.get_attributes("x") == {C: 5}
            await store.update_attributes("x", [removal])
            assert store.writer("x", C).last_event_number == -1

    run(main())


def test_creations_and_merges_take_unset_for_absent_and_for_a_removal(tmp_path: Path) -> None:
    async def main() -> None:
        def compared(key: UUID, value: int, expected: int) -> list[AttributeUpdate]:
            return [AttributeUpdate(key, UpdateType.REPLACE_IF_EQUALS, value, expected)]

        async with open_tiny(tmp_path / "s") as store:
            with pytest.raises(BadAttributeUpdateError):
                await store.create_segment("x", compared(A, 1, 0))
            await store.create_segment("x", [*compared(A, 1, UNSET), *compared(B, UNSET, UNSET)])
            assert await store.get_attributes("x") == {A: 1}
            for number, (updates, after) in enumerate(
                (
                    (compared(B, 5, UNSET), {A: 1, B: 5}),
                    (compared(B, 6, UNSET), None),
                    (compared(A, UNSET, 2), None),
                    (compared(A, UNSET, 1), {B: 5}),
                    (compared(A, UNSET, UNSET), {B: 5}),
                    (compared(A, 7, UNSET), {A: 7, B: 5}),
                )
            ):
                await store.create_segment(f"source-{number}")
                merging = store.merge("x", f"source-{number}", updates)
                if after is None:
                    with pytest.raises(BadAttributeUpdateError):
                        await merging
                else:
                    await merging
                    assert await store.get_attributes("x") == after
        async with open_tiny(tmp_path / "s") as store:
            assert await store.get_attributes("x") == {A: 7, B: 5}

    run(main())


def test_many_attributes_are_more_than_a_frame_holds(tmp_path: Path) -> None:
    async def main() -> None:
        updates = [
            AttributeUpdate(attribute(number), UpdateType.REPLACE, -number)
            for number in range(1, 120)
        ]
        expected = {attribute(number): -number for number in range(1, 120)}
        async with open_tiny(tmp_path / "s") as store:
            await store.create_segment("x")
            await asyncio.gather(
                store.append("x", b"a"), store.append("x", b"data", attributes=updates)
            )
            await store.create_segment("y", updates)
            await store.create_segment("z")
            await store.update_attributes("z", updates)
        async with open_tiny(tmp_path / "s") as store:
            assert await read_all(store, "x") == b"adata"
            for name in "xyz":
                assert await store.get_attributes(name) == expected

    run(main())


def test_no_segment_gets_more_attributes_than_the_setting_allows(tmp_path: Path) -> None:
    async def main() -> None:
        ids = [attribute(number) for number in range(9)]

        def new(*numbers: int) -> list[AttributeUpdate]:
            return [AttributeUpdate(ids[number], UpdateType.REPLACE, 1) for number in numbers]

        async with open_tiny(tmp_path / "s", attributes_per_segment_max=3) as store:
            await store.create_segment("x", new(0, 1))
            await store.create_segment("t")
            refused = [
                await asyncio.gather(call, return_exceptions=True)
                for call in (
                    store.create_segment("y", new(0, 1, 2, 3)),
                    store.update_attributes("x", new(0, 2, 3)),
                    store.append("x", b"data", attributes=new(2, 3)),
                    store.append_batch("x", [b"da", b"ta"], attributes=new(2, 3)),
                    store.merge("x", "t", new(2, 3)),
                )
            ]
            assert all(isinstance(each, TooManyAttributesError) for (each,) in refused)
            async with store.writer("x", ids[4]) as one:
                assert await one.append(b"one") == 0
            # As with any refusal the session of a writer ends with it.
            async with store.writer("x", ids[5]) as two:
                for _ in range(2):
                    with pytest.raises(TooManyAttributesError) as caught:
                        await two.append(b"two")
                    assert (caught.value.name, caught.value.count, caught.value.count_max) == (
                        "x",
                        3,
                        3,
                    )
            removal = AttributeUpdate(ids[0], UpdateType.REPLACE, UNSET)
            await store.update_attributes("x", [removal])
            async with store.writer("x", ids[5]) as two:
                assert await two.append(b"two") == 3
        held = {ids[1]: 1, ids[4]: 0, ids[5]: 0}
        async with open_tiny(tmp_path / "s", attributes_per_segment_max=1) as store:
            assert await store.get_attributes("x") == held
            assert await read_all(store, "x") == b"onetwo"
            with pytest.raises(TooManyAttributesError):
                await store.append("x", b"", attributes=new(6))
            async with store.writer("x", ids[4]) as one:
                assert await one.append(b"more") == 6
            assert [info.name async for info in store.list_segments()] == ["t", "x"]

    run(main())


BAD: list[Sequence[object]] = [
    [7],
    [AttributeUpdate(5, UpdateType.REPLACE, 1)],  # type: ignore[arg-type]
    [AttributeUpdate(A, 2, 1)],  # type: ignore[arg-type]
    [AttributeUpdate(A, UpdateType.REPLACE, HIGH + 1)],
    [AttributeUpdate(A, UpdateType.REPLACE, UNSET - 1)],
    [AttributeUpdate(A, UpdateType.REPLACE, 1.0)],  # type: ignore[arg-type]
    [AttributeUpdate(A, UpdateType.REPLACE, None)],  # type: ignore[arg-type]
    [AttributeUpdate(A, UpdateType.REPLACE_IF_EQUALS, 1, "1")],  # type: ignore[arg-type]
]


@pytest.mark.parametrize("updates", BAD)
def test_malformed_updates_are_refused_everywhere(
    tmp_path: Path, updates: Sequence[AttributeUpdate]
) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await make(store, None)
            await store.create_segment("s")
            with pytest.raises(InvalidArgumentError):
                await store.update_attributes("x", updates)
            with pytest.raises(InvalidArgumentError):
                await store.append("x", b"d", attributes=updates)
            with pytest.raises(InvalidArgumentError):
                await store.create_segment("y", updates)
            with pytest.raises(InvalidArgumentError):
                await store.merge("x", "s", updates)
            with pytest.raises(InvalidArgumentError):
                await store.get_attributes("x", ["not an id"])  # type: ignore[list-item]
            assert [(info.name, info.length) async for info in store.list_segments()] == [
                ("s", 0),
                ("x", 0),
            ]

    run(main())
