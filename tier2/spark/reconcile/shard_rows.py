"""Rows of a snapshot's `objects` in all containers, shard by shard: fetched for many shards,
decoded for a few at a time.

Rules of this file:

- the bytes of all shards are fetched together, and decoded as far as some BLOCK_ROWS rows go. The
  rows in work stay in a processor's caches, and the rest of a task's rows are as small as they lie
  in Tier 2;
- names are sorted within a shard, so that a shard's tables from several containers, put one behind
  another, are sorted too.

Coroutines over ObjectStorage; no pyspark.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from tier2.catalog.catalog_manifest import Manifest
from tier2.catalog.catalog_reading import fetch_shards
from tier2.catalog.catalog_schema import OBJECTS
from tier2.object_storage import ObjectStorage
from tier2.spark.reconcile.listing import SHARDS

CONTAINERS_AT_ONCE: Final = 8
"""Tables of so many containers are fetched together."""
CONTAINERS_HELD: Final = 32
"""Of more containers the rows are decoded at once: a footer with all of its columns takes more
memory than few rows.
"""
BLOCK_ROWS: Final = 65_536
"""So many rows are decoded together, or those of a shard if they are more."""


class _Container(Protocol):
    """The shards of one container."""

    def row_count(self, shards: Sequence[int]) -> int:
        """How many rows there are to decode."""

    async def read(self, shards: Sequence[int]) -> pa.Table:
        """The rows of these shards, sorted by name, perhaps with others."""


class _Decoded(NamedTuple):
    """Shards of one container that have been decoded."""

    table: pa.Table

    def row_count(self, shards: Sequence[int]) -> int:  # noqa: ARG002 - as of one that has not
        return 0

    async def read(self, shards: Sequence[int]) -> pa.Table:  # noqa: ARG002 - as above
        return self.table


class ShardRows:
    """Rows of some shards in all containers.

    Cheapest where shards are asked for one after another.
    """

    def __init__(
        self, containers: Sequence[_Container], shards: Sequence[int], columns: Sequence[str]
    ) -> None:
        self._containers = containers
        self._empty = no_objects(columns)
        self._blocks = {shard: block for block in self._cut(shards) for shard in block}
        self._decoded: dict[int, pa.Table] = {}

    async def of(self, shard: int) -> pa.Table:
        """The rows of one of the shards, by name. Raises as `shard_rows`."""
        if shard not in self._decoded:
            self._decoded = await self._decode(self._blocks[shard])
        return self._decoded[shard]

    def _cut(self, shards: Sequence[int]) -> list[list[int]]:
        blocks: list[list[int]] = []
        rows = 0
        for shard in shards:
            more = sum(container.row_count([shard]) for container in self._containers)
            if not blocks or rows + more > BLOCK_ROWS:
                blocks.append([])
                rows = 0
            blocks[-1].append(shard)
            rows += more
        return blocks

    async def _decode(self, shards: Sequence[int]) -> dict[int, pa.Table]:
        prefixes = [f"{SHARDS[shard]}/" for shard in shards]
        parts: list[list[pa.Table]] = [[self._empty] for _ in shards]
        for container in self._containers:
            table = await container.read(shards)
            for part, (start, end) in zip(parts, stretches(table["name"], prefixes), strict=True):
                part.append(table.slice(start, end - start))
        return {shard: pa.concat_tables(part) for shard, part in zip(shards, parts, strict=True)}


async def shard_rows(
    storage: ObjectStorage,
    manifests: Mapping[int, Manifest],
    shards: Sequence[int],
    columns: Sequence[str],
) -> ShardRows:
    """These columns of the rows of these shards, ascending; `name` is one of the columns.

    Raises as `read_table`.
    """
    every = [manifest for _, manifest in sorted(manifests.items())]
    containers: list[_Container] = []
    for first in range(0, len(every), CONTAINERS_AT_ONCE):
        some = every[first : first + CONTAINERS_AT_ONCE]
        fetched = await asyncio.gather(
            *(fetch_shards(storage, manifest, shards, columns) for manifest in some)
        )
        containers += (
            fetched
            if len(every) <= CONTAINERS_HELD
            else [_Decoded(await each.read(shards)) for each in fetched]
        )
    return ShardRows(containers, shards, columns)


def stretches(names: Any, prefixes: Sequence[str]) -> list[tuple[int, int]]:
    """Where the names of each prefix begin and end; names and prefixes are sorted, and prefixes end
    in a slash.
    """

    def place(prefix: str) -> int:
        return bisect_left(range(len(names)), prefix, key=lambda index: str(names[index].as_py()))

    return [(place(prefix), place(prefix[:-1] + chr(ord("/") + 1))) for prefix in prefixes]


def no_objects(columns: Sequence[str]) -> pa.Table:
    """Rows of `objects` with these columns, none."""
    return OBJECTS.empty_table().select(list(columns))
