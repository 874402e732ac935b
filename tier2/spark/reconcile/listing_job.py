"""Listings that the user provides: a DataFrame, or an inventory in files, brought to shards and
compared there.

Rules of this file:

- whatever it is becomes rows of LISTING under the store's own names, by the rules of
  `inventory_rows`;
- an inventory whose files are sorted is read by shard, as a listing is; everything else takes one
  shuffle by shard;
- every shard comes to its task, also one that the listing has no row of: there all of the catalog's
  objects are suspects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tier2.catalog.catalog_manifest import Manifest
from tier2.spark.common.arrow_rows import ddl
from tier2.spark.reconcile.inventory import (
    Inventory,
    inventory_pieces,
    open_inventory,
    read_inventory_file,
    read_inventory_range,
    read_inventory_rest,
    rows_read,
)
from tier2.spark.reconcile.inventory_rows import (
    KeyRules,
    PrefixMismatchMode,
    conform_listing,
    key_rules,
    wanted_columns,
)
from tier2.spark.reconcile.listing import shards_of
from tier2.spark.reconcile.listing_table import LISTING
from tier2.spark.reconcile.scan_work import Listers, scan_shards, scan_task, shards_of_part
from tier2.spark.reconcile.second_scan import Again, again_shards, again_task
from tier2.spark.reconcile.work import RESULTS, SURVEYED, Site

_Batches = Iterator[pa.RecordBatch]

FILES_TASKS_MAX: Final = 256
PARTS_MIN: Final = 8
ROWS_READ_FACTOR: Final = 3
"""An inventory is read by shard if that reads no row oftener than so, on average: a shuffle costs
more.
"""
ROWS_READ_FREE: Final = 1_000_000
"""So many rows are read again and again without a thought."""

SHARDED: Final = pa.schema([*LISTING, ("shard", pa.string())])
"""A listing on its way through a shuffle; the rows without a key only bring every shard to a
task.
"""


def scan_listed(
    spark: SparkSession,
    site: Site,
    manifests: Mapping[int, Manifest],
    parts: int,
    again: Again | None = None,
) -> DataFrame:
    """SURVEYED of the place itself, listed by the tasks: one for each of `parts` of the shards, and
    one for the rest.

    With `again`, here as below: RESULTS of what is surveyed again.
    """
    return _by_shard(spark, site, manifests, parts, None, again)


def scan_prepared(
    spark: SparkSession,
    site: Site,
    manifests: Mapping[int, Manifest],
    listing: DataFrame | str,
    parts: int,
    mode: PrefixMismatchMode,
    again: Again | None = None,
) -> DataFrame:
    """SURVEYED of a prepared listing: a DataFrame, or where an inventory is.

    Raises InventoryError, and ObjectStorageError for an inventory that cannot be read.
    """
    if not isinstance(listing, str):
        return scan_frame(spark, site, manifests, listing, mode, again)
    inventory = open_inventory(listing, site.url, prefix_mismatch_mode=mode)
    by_shard = _parts_of(inventory, parts)
    if by_shard is not None:
        listers = Listers(
            partial(read_inventory_range, inventory),
            partial(read_inventory_rest, inventory),
            partial(inventory_pieces, inventory),
        )
        return _by_shard(spark, site, manifests, by_shard, listers, again)
    files = len(inventory.files)
    rows = spark.range(0, files, 1, min(files, FILES_TASKS_MAX)).mapInArrow(
        _file_task(inventory), ddl(SHARDED)
    )
    return scan_sharded(spark, site, manifests, rows, again)


def _parts_of(inventory: Inventory, parts: int) -> int | None:
    """How many parts of the shards it may be read in, `parts` or fewer; None where a shuffle is
    cheaper.

    A row group is read by each part that has rows in it.
    """
    total = sum(group.rows for file in inventory.files for group in file.groups)
    while True:
        read = rows_read(inventory, [shards_of_part(part, parts) for part in range(parts)])
        if read is None:
            return None
        if read <= max(ROWS_READ_FACTOR * total, ROWS_READ_FREE):
            return parts
        if parts // 2 < PARTS_MIN:
            return None
        parts //= 2


def _by_shard(
    spark: SparkSession,
    site: Site,
    manifests: Mapping[int, Manifest],
    parts: int,
    listers: Listers | None,
    again: Again | None = None,
) -> DataFrame:
    every = spark.range(0, parts + 1, 1, parts + 1)
    if again is not None:
        return every.mapInArrow(again_task(site, again, parts, listers), ddl(RESULTS))
    return every.mapInArrow(scan_task(site, manifests, parts, listers), ddl(SURVEYED))


def _file_task(inventory: Inventory) -> Callable[[_Batches], _Batches]:
    def run(batches: _Batches) -> _Batches:
        for batch in batches:
            numbers: list[Any] = batch.column(0).to_pylist()
            for number in numbers:
                for table in read_inventory_file(inventory, inventory.files[number]):
                    yield from sharded(table).to_batches()

    return run


def scan_frame(
    spark: SparkSession,
    site: Site,
    manifests: Mapping[int, Manifest],
    listing: DataFrame,
    mode: PrefixMismatchMode,
    again: Again | None = None,
) -> DataFrame:
    """SURVEYED of a listing in a DataFrame: key, size, last_modified (or modified_ms) and perhaps
    etag. One shuffle of it.

    Raises InventoryError for other columns; a value or key that cannot be taken fails the query.
    """
    columns = wanted_columns(listing.columns)
    rows = listing.select(*(f"`{name}`" for name in columns)).mapInArrow(
        _conform_task(key_rules(site.url, mode=mode)), ddl(SHARDED)
    )
    return scan_sharded(spark, site, manifests, rows, again)


def scan_sharded(
    spark: SparkSession,
    site: Site,
    manifests: Mapping[int, Manifest],
    rows: DataFrame,
    again: Again | None = None,
) -> DataFrame:
    """SURVEYED of rows of SHARDED, in any order."""
    every = spark.range(256).select(
        *(sf.lit(None).cast(kind).alias(name) for name, kind in _plain_columns()),
        sf.lower(sf.lpad(sf.hex("id"), 2, "0")).alias("shard"),
    )
    grouped = rows.unionByName(every).repartition("shard").sortWithinPartitions("shard")
    if again is not None:
        return grouped.mapInArrow(again_shards(site, again, _rows), ddl(RESULTS))
    return grouped.mapInArrow(scan_shards(site, manifests, _rows), ddl(SURVEYED))


def _plain_columns() -> Iterator[tuple[str, str]]:
    for field in LISTING:
        yield field.name, "string" if field.type == pa.string() else "bigint"


def _conform_task(rules: KeyRules) -> Callable[[_Batches], _Batches]:
    def run(batches: _Batches) -> _Batches:
        for batch in batches:
            yield from sharded(conform_listing(pa.Table.from_batches([batch]), rules)).to_batches()

    return run


def sharded(listing: pa.Table) -> pa.Table:
    """LISTING with the shard of each key, as SHARDED."""
    return listing.append_column("shard", shards_of(listing["key"])).cast(SHARDED)


def _rows(group: pa.Table) -> pa.Table:
    return group.filter(pc.is_valid(group["key"])).select(LISTING.names).cast(LISTING)
