"""Several containers in one store: Pravega's mapping, independent logs, no merge across."""

from __future__ import annotations

from pathlib import Path

import pytest

from segmentstore import ContainerMismatchError
from segmentstore.contracts.segment_mapper import container_of
from tests.store.harness import open_tiny, read_all, run

TRANSACTION = "#transaction." + "0123456789abcdef" * 2
TRANSIENT = "#transient." + "x" * 32


class TestMapping:
    """The values the issue names, which a Pravega Controller computes as well."""

    @pytest.mark.parametrize(
        ("name", "of_4", "of_8", "of_64"),
        [
            ("examples/someStream", 0, 5, 59),
            ("logs/web-1", 1, 1, 1),
            ("scope/stream/0.#epoch.0", 3, 3, 46),
            ("scope/stream/0.#epoch.0" + TRANSACTION, 3, 3, 46),
            ("scope/stream/0.#epoch.7", 3, 3, 46),
            ("scope/stream/0.#epoch.0" + TRANSIENT, 3, 3, 46),
            ("scope/stream/0", 3, 3, 46),
        ],
    )
    def test_the_examples(self, name: str, of_4: int, of_8: int, of_64: int) -> None:
        assert [container_of(name, containers) for containers in (1, 4, 8, 64)] == [
            0,
            of_4,
            of_8,
            of_64,
        ]

    def test_what_only_resembles_a_transaction_is_a_name(self) -> None:
        parent = container_of("logs/web-1", 65536)
        assert container_of("logs/web-1" + TRANSACTION, 65536) == parent
        assert container_of("logs/web-1" + TRANSIENT + "longer", 65536) == parent
        for suffix in (
            TRANSACTION[:-1],
            TRANSACTION + "0",
            TRANSIENT[:-1],
            "#transaction." + "g" * 32,
        ):
            assert container_of("logs/web-1" + suffix, 65536) != parent

    def test_growing_moves_only_to_new_containers(self) -> None:
        for number in range(200):
            before, after = container_of(f"s/{number}", 7), container_of(f"s/{number}", 8)
            assert after in {before, 7}


def test_segments_live_where_the_rule_says(tmp_path: Path) -> None:
    async def main() -> None:
        names = [f"s/{number}" for number in range(40)]
        async with open_tiny(tmp_path / "s", containers=4) as store:
            for name in names:
                info = await store.create_segment(name)
                assert info.container_id == container_of(name, 4)
                await store.append(name, name.encode() * 20)
            await store.flush()
            await store.checkpoint()
            for name in names[:20]:
                await store.append(name, b"+")
        async with open_tiny(tmp_path / "s") as store:
            found = [info async for info in store.list_segments()]
            assert [info.name for info in found] == sorted(names)
            assert {info.container_id for info in found} == {0, 1, 2, 3}
            for name in names:
                assert await read_all(store, name) == name.encode() * 20 + b"+" * (
                    name in names[:20]
                )
            containers = store.stats()["containers"]
            assert isinstance(containers, dict)
            assert sorted(containers) == [0, 1, 2, 3]

    run(main())


def test_a_merge_across_containers_is_refused_and_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", containers=4) as store:
            target, source = "examples/someStream", "logs/web-1"
            for name in (target, source, target + TRANSACTION):
                await store.create_segment(name)
                await store.append(name, name.encode())
            with pytest.raises(ContainerMismatchError) as caught:
                await store.merge(target, source)
            error = caught.value
            assert (error.name, error.source) == (target, source)
            assert (error.target_container, error.source_container) == (0, 1)
            assert "container" in str(error)
            assert await read_all(store, source) == source.encode()
            assert not (await store.get_info(source)).sealed
            merged = await store.merge(target, target + TRANSACTION)
            assert merged.offset == len(target)

    run(main())
