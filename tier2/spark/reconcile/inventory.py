"""Prepared listings: Parquet, CSV or ORC that the user provides, and S3 Inventory by its manifest.

An inventory is opened once, where the job is planned, and is a plain value then that tasks get. It
says which files there are, and of Parquet which keys each row group has. Rules of this file:

- a shard is read from the row groups that may hold it; whether that is cheap (`rows_read`) depends
  on how the files are sorted, whether it is right does not;
- an inventory is as old as it is: whatever is found from it must be confirmed at the store itself;
- a file that lacks, or has another size than its manifest says, is an error: a listing in part is
  never taken for a whole one.

Blocking: for tasks of a job, which have no event loop running.
"""

from __future__ import annotations

import contextlib
import json
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from csv import reader
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, orc
from pyarrow import parquet as pq

from segmentstore.contracts.urls import redacted
from tier2.object_names import ENGINE_PREFIXES
from tier2.s3.s3_location import parse_s3_url
from tier2.spark.reconcile.inventory_files import files_at, open_file, places_of
from tier2.spark.reconcile.inventory_rows import (
    InventoryError,
    KeyRules,
    PrefixMismatchMode,
    conform_listing,
    conform_sorted,
    key_column,
    key_rules,
    wanted_columns,
)
from tier2.spark.reconcile.listing import SHARDS, is_known_prefix, shards_of
from tier2.spark.reconcile.listing_table import TABLE_ROWS

CSV_BYTES: Final = 4 * 1024 * 1024
"""Of a CSV so much becomes one table."""
HEADER_BYTES: Final = 64 * 1024
PIECE_ROWS: Final = 32_768
"""A piece of a range of shards has so many rows or more, on average."""
READ_AGAIN: Final = 0.25
"""Of the rows of a range so many, at the most, are read with more than one of its pieces."""

_PARQUET: Final = "parquet"
_CSV: Final = "csv"
_ORC: Final = "orc"


class KeyRange(NamedTuple):
    """The keys of one row group as they stand in the file, by its statistics."""

    first: str
    last: str
    """Or a little more: writers may cut long statistics."""


class RowGroup(NamedTuple):
    """A row group of a Parquet file."""

    rows: int
    keys: KeyRange | None
    """None: the file does not say."""


class InventoryFile(NamedTuple):
    """One file of an inventory."""

    path: str
    form: str
    """`parquet`, `csv` or `orc`."""
    columns: tuple[str, ...] = ()
    """Of a CSV, by its header or by the manifest."""
    groups: tuple[RowGroup, ...] = ()
    """Of a Parquet file."""
    header: bool = False
    """Whether the first line of a CSV names its columns."""


class Inventory(NamedTuple):
    """A prepared listing. Small, and made of plain values: tasks get it whole."""

    files: tuple[InventoryFile, ...]
    rules: KeyRules
    created_ms: int | None = None
    """When S3 began to list, by the manifest; milliseconds since 1970 UTC."""


def open_inventory(
    path: str,
    url: str,
    *,
    prefix: str | None = None,
    prefix_mismatch_mode: PrefixMismatchMode = "ERROR",
) -> Inventory:
    """The inventory at `path` of the store at `url`: a file, a folder of files, or S3 Inventory's
    manifest.json.

    Files are `.parquet`, `.orc`, `.csv` with a header and `.csv.gz`; paths may be at `s3://`.
    `prefix` says what keys begin with where that is not what the store's URL says. Reads manifests
    and footers, no rows. Raises InventoryError, ConfigError("tier2", ...) for a URL,
    ObjectStorageError.
    """
    rules = key_rules(url, prefix=prefix, mode=prefix_mismatch_mode)
    with _named(path):
        if os.path.basename(path.partition("?")[0]) == "manifest.json":
            return _of_manifest(path, url, rules)
        files = tuple(_opened(each, _form_of(each)) for each in files_at(path))
    if not files:
        raise InventoryError(f"{redacted(path)}: no files of a listing are there")
    return Inventory(files, rules)


def rows_read(inventory: Inventory, ranges: Sequence[range]) -> int | None:
    """How many rows `read_inventory_range` of all these ranges of shards reads; None where files
    have no row groups.
    """
    read = 0
    for file in inventory.files:
        if file.form != _PARQUET:
            return None
        for group in file.groups:
            held = _shards_held(group, inventory.rules)
            read += group.rows * sum(any(_meet(shards, each) for each in held) for shards in ranges)
    return read


def inventory_pieces(inventory: Inventory, shards: range) -> list[range]:
    """The range in pieces to be read one after another: as small as files are cut, and no smaller
    than PIECE_ROWS.
    """
    groups = [
        (group.rows, _shards_held(group, inventory.rules))
        for file in inventory.files
        for group in file.groups
    ]
    groups = [(rows, held) for rows, held in groups if any(_meet(shards, each) for each in held)]
    whole = sum(rows for rows, _ in groups)
    width = 1
    while width < len(shards):
        starts = range(shards.start, shards.stop, width)
        pieces = [range(start, min(start + width, shards.stop)) for start in starts]
        if whole >= PIECE_ROWS * len(pieces):
            read = sum(
                rows * sum(any(_meet(piece, each) for each in held) for piece in pieces)
                for rows, held in groups
            )
            if read <= (1 + READ_AGAIN) * whole:
                return pieces
        width *= 2
    return [shards]


def read_inventory_range(inventory: Inventory, shards: range) -> Iterator[pa.Table]:
    """LISTING of neighbouring shards, each row group read once, as its rows lie.

    A key that is not the store's: see `read_inventory_rest`.
    """
    patient = inventory.rules._replace(mode="IGNORE")
    low, high = f"{SHARDS[shards.start]}/", f"{SHARDS[shards.stop - 1]}0"
    spans = [(prefix + low, prefix + high) for prefix in patient.prefixes]
    tops = [f"{SHARDS[shard]}/" for shard in shards]
    for file in inventory.files:
        groups = [
            number
            for number, (_, keys) in enumerate(file.groups)
            if keys is None
            or any(keys.last >= first and keys.first < behind for first, behind in spans)
        ]
        if file.form == _PARQUET and not groups:
            continue
        with _named(file.path):
            for table in _tables(file, groups):
                listing = conform_sorted(table, patient, tops)
                yield (
                    _within(conform_listing(table, patient), low, high)
                    if listing is None
                    else listing
                )


def _within(listing: pa.Table, low: str, high: str) -> pa.Table:
    """The rows of shards from `low` to `high`, in whatever order they are."""
    keys = listing["key"]
    within = pc.and_(pc.greater_equal(keys, pa.scalar(low)), pc.less(keys, pa.scalar(high)))
    listing = listing if pc.all(within, min_count=0).as_py() else listing.filter(within)
    # Between two shards sort only names that are in none: almost all of these have no slash there.
    slashed = pc.equal(pc.utf8_slice_codeunits(listing["key"], 2, 3), pa.scalar("/"))
    if not pc.all(slashed, min_count=0).as_py():
        listing = listing.filter(slashed)
        listing = listing.filter(pc.invert(pc.equal(shards_of(listing["key"]), pa.scalar(""))))
    return listing


def read_inventory_file(inventory: Inventory, file: InventoryFile) -> Iterator[pa.Table]:
    """LISTING of one file, as its rows lie; shards are mixed, and what is in none is among them.

    Raises InventoryError.
    """
    with _named(file.path):
        for table in _tables(file, tuple(range(len(file.groups)))):
            yield conform_listing(table, inventory.rules)


def read_inventory_rest(inventory: Inventory) -> Iterator[pa.Table]:
    """LISTING of what is in no shard, from all files.

    Raises InventoryError for a key that is not the store's.
    """
    for file in inventory.files:
        groups = [
            number
            for number, group in enumerate(file.groups)
            if not _in_one_shard(group, inventory.rules)
        ]
        if file.form == _PARQUET and not groups:
            continue
        with _named(file.path):
            for table in _tables(file, groups):
                listing = conform_listing(table, inventory.rules)
                listing = listing.filter(pc.equal(shards_of(listing["key"]), pa.scalar("")))
                if listing.num_rows:
                    yield listing


def _shards_held(group: RowGroup, rules: KeyRules) -> list[range]:
    """Shards that the row group may have rows of, by each way in which keys may be written."""
    if group.keys is None:
        return [range(len(SHARDS))]
    first, last = group.keys
    held = []
    for prefix in rules.prefixes:
        starts, ends = _borders(prefix)
        held.append(range(bisect_right(ends, first), bisect_right(starts, last)))
    return held


@lru_cache(maxsize=16)
def _borders(prefix: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Before and behind all keys of each shard: they are between `ab/` and `ab0`, which is what
    follows the slash.
    """
    return tuple(f"{prefix}{shard}/" for shard in SHARDS), tuple(
        f"{prefix}{shard}0" for shard in SHARDS
    )


def _meet(one: range, other: range) -> bool:
    return max(one.start, other.start) < min(one.stop, other.stop)


def _in_one_shard(group: RowGroup, rules: KeyRules) -> bool:
    if group.keys is None:
        return False
    first, last = group.keys
    for prefix in rules.prefixes:
        top = first.removeprefix(prefix)[:3]
        if first.startswith(prefix) and last.startswith(prefix + top) and is_known_prefix(top):
            return top not in ENGINE_PREFIXES
    return False


def _of_manifest(path: str, url: str, rules: KeyRules) -> Inventory:
    with open_file(path) as file:
        try:
            manifest = json.loads(file.read())
        except ValueError as error:
            raise InventoryError(f"the manifest is no JSON: {error}") from None
    try:
        form = str(manifest["fileFormat"]).lower()
        source, destination = str(manifest["sourceBucket"]), str(manifest["destinationBucket"])
        listed = [(str(each["key"]), int(each["size"])) for each in manifest["files"]]
        schema, created_ms = str(manifest["fileSchema"]), int(manifest["creationTimestamp"])
    except (KeyError, TypeError, ValueError) as error:
        raise InventoryError(f"the manifest is not one of S3 Inventory: {error!r}") from None
    if form not in {_PARQUET, _CSV, _ORC}:
        raise InventoryError(
            f"the manifest is of files in the format {form!r}, not CSV, ORC or Parquet"
        )
    _check_bucket(source, url)
    columns = tuple(name.strip() for name in schema.split(",")) if form == _CSV else ()
    if columns:
        wanted_columns(columns)
        rules = rules._replace(url_encoded=True)
    files = (_opened(_found(path, destination, key, size), form, columns) for key, size in listed)
    return Inventory(tuple(files), rules, created_ms)


def _check_bucket(source: str, url: str) -> None:
    if url.lower().startswith("s3://") and parse_s3_url(url).bucket != source:
        raise InventoryError(
            f"the manifest is of bucket {source!r}, and the store is in "
            f"{parse_s3_url(url).bucket!r}"
        )


def _found(manifest: str, destination: str, key: str, size: int) -> str:
    for place in places_of(manifest, destination, key):
        try:
            with open_file(place) as file:
                there = file.size()
        except FileNotFoundError:
            continue
        if there != size:
            raise InventoryError(f"{redacted(place)} has {there} bytes, and {size} by the manifest")
        return place
    raise InventoryError(f"the file {key} of the manifest is not there")


def _form_of(path: str) -> str:
    name = path.partition("?")[0].lower().removesuffix(".gz")
    form = name.rpartition(".")[2]
    if form not in {_PARQUET, _CSV, _ORC}:
        raise InventoryError(
            f"{redacted(path)} is not a .parquet, .csv, .csv.gz or .orc file, nor a manifest.json"
        )
    return form


def _opened(path: str, form: str, columns: tuple[str, ...] = ()) -> InventoryFile:
    """What is known of a file before its rows are read; that what is wanted is among its columns,
    too.
    """
    with _named(path):
        if form == _PARQUET:
            with open_file(path) as file:
                return InventoryFile(path, form, (), _row_groups(pq.ParquetFile(file)))
        if form == _ORC:
            with open_file(path) as file:
                wanted_columns(orc.ORCFile(file).schema.names)
            return InventoryFile(path, form)
        if columns:
            return InventoryFile(path, form, columns)
        with _uncompressed(path) as stream:
            header = tuple(
                next(reader([stream.read(HEADER_BYTES).decode().partition("\n")[0]]), [])
            )
        wanted_columns(header)
        return InventoryFile(path, form, header, header=True)


def _row_groups(file: pq.ParquetFile) -> tuple[RowGroup, ...]:
    wanted_columns(file.schema_arrow.names)
    name = key_column(file.schema_arrow.names)
    metadata = file.metadata
    place = next(
        number
        for number in range(metadata.num_columns)
        if metadata.schema.column(number).path == name
    )
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    return tuple(
        RowGroup(group.num_rows, _key_range(group.column(place).statistics)) for group in groups
    )


def _key_range(statistics: Any) -> KeyRange | None:
    if statistics is None or not statistics.has_min_max:
        return None
    first, last = statistics.min, statistics.max
    return KeyRange(first, last) if isinstance(first, str) and isinstance(last, str) else None


def _tables(file: InventoryFile, groups: Sequence[int]) -> Iterator[pa.Table]:
    """The wanted columns of the rows, as they are in the file; `groups` of a Parquet file."""
    if file.form == _CSV:
        yield from _csv_tables(file)
        return
    with open_file(file.path) as source:
        if file.form == _PARQUET:
            parquet = pq.ParquetFile(source)
            columns = wanted_columns(parquet.schema_arrow.names)
            for batch in parquet.iter_batches(TABLE_ROWS, list(groups), columns, use_threads=False):
                yield pa.Table.from_batches([batch])
            return
        stripes = orc.ORCFile(source)
        columns = wanted_columns(stripes.schema.names)
        for number in range(stripes.nstripes):
            yield pa.Table.from_batches([stripes.read_stripe(number, columns)])


def _csv_tables(file: InventoryFile) -> Iterator[pa.Table]:
    with _uncompressed(file.path) as stream:
        if not stream.read(1):
            return
    wanted = wanted_columns(file.columns)
    with _uncompressed(file.path) as stream:
        batches = csv.open_csv(
            stream,
            csv.ReadOptions(
                use_threads=False,
                block_size=CSV_BYTES,
                skip_rows=int(file.header),
                column_names=list(file.columns),
            ),
            convert_options=csv.ConvertOptions(
                include_columns=wanted,
                column_types=dict.fromkeys(wanted, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
        for batch in batches:
            yield pa.Table.from_batches([batch])


def _uncompressed(path: str) -> Any:
    file: Any = open_file(path)
    return (
        pa.input_stream(file, compression="gzip")
        if path.partition("?")[0].endswith(".gz")
        else file
    )


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """What goes wrong inside is an InventoryError that names the file."""
    shown = redacted(path)
    try:
        yield
    except InventoryError as error:
        raise InventoryError(f"{shown}: {error}".replace(f"{shown}: {shown}", shown)) from None
    except (pa.ArrowException, OSError, ValueError) as error:
        detail = str(error).partition("\n")[0].replace(path, shown)
        # Without its cause, which quotes the path as it was given, where that has something to
        # hide.
        raise InventoryError(f"{shown}: cannot be read as a listing: {detail}") from (
            error if shown == path else None
        )
