"""Rows of a prepared listing, whatever its source, as rows of LISTING.

Columns are known by name, in any spelling of case and underscores. They are key (or path,
file_path), size, last_modified (or last_modified_date, or modified_ms as a number) and, if it is
there, etag. Of a bucket with versions, is_latest and is_delete_marker are obeyed. Rules of this
file:

- a key may be whole (`s3://bucket/prefix/ab/...`) or below the bucket (`prefix/ab/...`). What
  stands before the store's own names is removed, and a key that lies elsewhere is an error unless
  the caller wants to omit it;
- whole columns are worked on, no row becomes a Python value but where a key is URL-encoded.

Pure: Arrow tables in and out.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote_plus, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from segmentstore.contracts.urls import redacted
from tier2.file_urls import path_of, printable
from tier2.s3.s3_location import parse_s3_url
from tier2.spark.reconcile.listing_table import LISTING

PrefixMismatchMode = Literal["ERROR", "IGNORE"]
"""What becomes of keys that are not the store's: as Iceberg's `prefix_mismatch_mode`, without
DELETE.
"""

_NAMES: Final = {
    "key": ("key", "path", "filepath"),
    "size": ("size",),
    "modified": ("modifiedms", "lastmodified", "lastmodifieddate"),
    "etag": ("etag",),
    "latest": ("islatest",),
    "marker": ("isdeletemarker",),
}
"""Columns that are read, and how each may be called."""
_WANTED: Final = ("key", "size", "modified")
_MS: Final = "modifiedms"

_WHOLE: Final = r"^(?:/|file:|[A-Za-z0-9+.-]+://)"
"""How keys begin that say more than a name in a bucket."""

_Column = Any
"""An array in one piece; the stubs know little of what is done with it."""


class InventoryError(Exception):
    """A prepared listing that cannot be taken; the message names what is wrong with it."""


class KeyRules(NamedTuple):
    """How keys of a prepared listing become names below the store's URL."""

    prefixes: tuple[str, ...]
    """What keys begin with, the longest first; each ends in a slash or is empty."""
    mode: PrefixMismatchMode = "ERROR"
    url_encoded: bool = False
    """As S3 Inventory writes them in CSV: a space is `+`."""


def key_rules(
    url: str,
    *,
    prefix: str | None = None,
    mode: PrefixMismatchMode = "ERROR",
    url_encoded: bool = False,
) -> KeyRules:
    """Rules for listings of the store at `url`; `prefix` instead of what the URL says that keys
    begin with.
    """
    if mode not in {"ERROR", "IGNORE"}:
        raise InventoryError(f"prefix_mismatch_mode={mode!r} is not ERROR or IGNORE")
    prefixes = _prefixes_of(url) if prefix is None else (prefix,)
    return KeyRules(tuple(sorted(prefixes, key=lambda each: -len(each))), mode, url_encoded)


def wanted_columns(names: Sequence[str]) -> list[str]:
    """Those of the names that are read. InventoryError where one that must be there lacks."""
    places = _places(names)
    return [names[place] for place in sorted(places.values())]


def key_column(names: Sequence[str]) -> str:
    """The one that has the key."""
    return names[_places(names)["key"]]


def conform_listing(table: pa.Table, rules: KeyRules) -> pa.Table:
    """The rows as LISTING, in their order, without those that are no objects or, if so ruled, lie
    elsewhere.

    Raises InventoryError for a column that lacks, for a value that cannot be read, for a key that
    lies elsewhere.
    """
    places = _places(table.column_names)
    columns = {name: _whole(table.column(place)) for name, place in places.items()}
    there = _there(columns)
    if there is not None:
        columns = {name: column.filter(there) for name, column in columns.items()}
    keys = _text(columns["key"], "key")
    if keys.null_count:
        raise InventoryError("the listing has a row without a key")
    if rules.url_encoded:
        keys = _decoded(keys)
    names, ours = _stripped(keys, rules)
    own_folder = pc.equal(names, pa.scalar(""))
    if pc.any(
        own_folder, min_count=0
    ).as_py():  # What a console makes of the store's prefix is no object in it.
        ours = pc.invert(own_folder) if ours is None else pc.and_not(ours, own_folder)
    result = _listing(columns, names, table.column_names[places["modified"]])
    return _sized(result if ours is None else result.filter(ours))


def conform_sorted(table: pa.Table, rules: KeyRules, tops: Sequence[str]) -> pa.Table | None:
    """Of what `conform_listing` gives, the rows whose names begin with one of `tops`; None if it
    cannot be known without it.

    It can where keys are sorted: between two that begin alike all do, and no other is checked.
    `tops` end in a slash.
    """
    places = _places(table.column_names)
    if rules.url_encoded or "latest" in places or "marker" in places:
        return None
    columns = {name: _whole(table.column(place)) for name, place in places.items()}
    keys = columns["key"]
    if keys.type != pa.string() or keys.null_count or not _ascend(_text(keys, "key")):
        return None
    found = []
    for start, end, head in _stretches(
        keys, [(prefix, prefix + top) for prefix in rules.prefixes for top in tops]
    ):
        if _taker(head[1], rules) != head[0]:
            return None
        some = {name: column.slice(start, end - start) for name, column in columns.items()}
        names = pc.utf8_slice_codeunits(some["key"], len(head[0])) if head[0] else some["key"]
        found.append((start, _listing(some, names, table.column_names[places["modified"]])))
    tables = [listing for _, listing in sorted(found, key=lambda each: each[0])]
    return _sized(pa.concat_tables([LISTING.empty_table(), *tables]))


def _ascend(keys: _Column) -> bool:
    return len(keys) < 2 or pc.min(pc.less(keys[:-1], keys[1:])).as_py() is True


def _stretches(
    keys: _Column, heads: Sequence[tuple[str, str]]
) -> Iterator[tuple[int, int, tuple[str, str]]]:
    """Where sorted keys begin with the second of each pair, if any do. It ends in a slash."""
    if not len(keys):
        return
    first, last = keys[0].as_py(), keys[-1].as_py()
    for head in heads:
        low, high = head[1], f"{head[1][:-1]}{chr(ord('/') + 1)}"
        if last < low or first >= high:
            continue
        rows = range(len(keys))
        start = bisect_left(rows, low, key=lambda row: str(keys[row].as_py()))
        end = bisect_left(rows, high, lo=start, key=lambda row: str(keys[row].as_py()))
        if start < end:
            yield start, end, head


def _taker(head: str, rules: KeyRules) -> str | None:
    """Which prefix is taken away from every key that begins with `head`, which ends in a slash;
    None if that depends on the key.

    Whether a key is whole is reported by its first slash and by what is beside it.
    """
    for prefix in rules.prefixes:
        if len(prefix) > len(head) and prefix.startswith(head):
            return None
        if head.startswith(prefix) and (re.match(_WHOLE, prefix) or not re.match(_WHOLE, head)):
            return prefix
    return None


def _listing(columns: dict[str, _Column], names: _Column, modified_name: str) -> pa.Table:
    listing = {
        "key": names,
        "size": _read(columns["size"], pa.int64(), "size"),
        "modified_ms": _milliseconds(columns["modified"], _plain(modified_name)),
        "etag": _text(columns["etag"], "etag")
        if "etag" in columns
        else pa.nulls(len(names), pa.string()),
    }
    return pa.table(listing, schema=LISTING)


def _sized(listing: pa.Table) -> pa.Table:
    if listing["size"].null_count:
        raise InventoryError(
            f"the listing has no size of {listing.filter(pc.is_null(listing['size']))['key'][0]}"
        )
    return listing


def _prefixes_of(url: str) -> tuple[str, ...]:
    scheme = url.partition("://")[0].lower()
    if scheme == "s3":
        location = parse_s3_url(url)
        return (
            location.prefix,
            *(f"{each}://{location.bucket}/{location.prefix}" for each in ("s3", "s3a", "s3n")),
        )
    if scheme == "file":
        path = printable(path_of(urlsplit(url).path)).rstrip("/")
        return ("", f"{path}/", f"file:{path}/", f"file://{path}/")
    # Options are of the URL and of no key.
    return ("", f"{url.partition('?')[0].rstrip('/')}/")


def _places(names: Sequence[str]) -> dict[str, int]:
    plain = [_plain(name) for name in names]
    places = {}
    for name, spellings in _NAMES.items():
        place = next((plain.index(spelling) for spelling in spellings if spelling in plain), None)
        if place is not None:
            places[name] = place
    lacking = [name for name in _WANTED if name not in places]
    if lacking:
        wanted = ", ".join("last_modified" if name == "modified" else name for name in lacking)
        raise InventoryError(f"the listing has no column {wanted}, only {', '.join(names)}")
    return places


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "").replace("-", "")


def _there(columns: dict[str, _Column]) -> _Column | None:
    """Which rows are objects as they are now: of a bucket with versions, the latest that is no mark
    of a deletion.
    """
    latest, marker = columns.pop("latest", None), columns.pop("marker", None)
    there: _Column | None = None
    for column, wanted in ((latest, True), (marker, False)):
        if column is None:
            continue
        flags = _read(column, pa.bool_(), "is_latest or is_delete_marker").fill_null(
            pa.scalar(wanted)
        )
        flags = flags if wanted else pc.invert(flags)
        there = flags if there is None else pc.and_(there, flags)
    return there


def _stripped(keys: _Column, rules: KeyRules) -> tuple[_Column, _Column | None]:
    """Names below the store's URL, and which of them are: None for all."""
    whole = pc.match_substring_regex(keys, _WHOLE)
    none_whole = not pc.any(whole, min_count=0).as_py()
    names, ours = keys, None
    for prefix in rules.prefixes:
        is_whole = re.match(_WHOLE, prefix) is not None
        if is_whole and none_whole:
            continue
        fits = (
            pc.starts_with(keys, prefix)
            if is_whole
            else pc.and_not(pc.starts_with(keys, prefix), whole)
        )
        if ours is not None:
            fits = pc.and_not(fits, ours)
        if prefix:
            names = pc.if_else(fits, pc.utf8_slice_codeunits(keys, len(prefix)), names)
        ours = fits if ours is None else pc.or_(ours, fits)
    if ours is None or pc.all(ours, min_count=0).as_py():
        return names, None
    if rules.mode == "ERROR":
        stranger = keys.filter(pc.invert(ours))[0].as_py()
        expected = " or ".join(repr(redacted(prefix)) for prefix in rules.prefixes)
        raise InventoryError(
            f"key {redacted(stranger)!r} does not begin with {expected}: "
            "prefix_mismatch_mode=IGNORE leaves such keys out"
        )
    return names, ours


def _decoded(keys: _Column) -> _Column:
    keys = pc.replace_substring(keys, "%2F", "/")
    encoded: _Column = pc.match_substring_regex(keys, "[%+]")
    if not pc.any(encoded, min_count=0).as_py():
        return keys
    values = [unquote_plus(key) for key in keys.filter(encoded).to_pylist()]
    return pc.replace_with_mask(keys, encoded, pa.array(values, pa.string()))


def _milliseconds(column: _Column, name: str) -> _Column:
    if pa.types.is_integer(column.type):
        if name != _MS:
            raise InventoryError(
                "last_modified is a number: call it modified_ms if it is of milliseconds "
                "since 1970 UTC"
            )
        return _read(column, pa.int64(), name)
    if pa.types.is_timestamp(column.type):
        return _whole_ms(column)
    text = _text(column, "last_modified")
    if name == _MS:
        return _read(text, pa.int64(), name)  # of a CSV
    try:
        moments = pc.cast(text, pa.timestamp("ns", "UTC"))
    except pa.ArrowInvalid:
        moments = _read(text, pa.timestamp("ns"), "last_modified")  # without a zone: UTC
    return _whole_ms(moments)


def _whole_ms(moments: _Column) -> _Column:
    return pc.cast(pc.cast(moments, pa.timestamp("ms", moments.type.tz), safe=False), pa.int64())


def _whole(column: pa.ChunkedArray[Any]) -> _Column:
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
    )


def _text(column: _Column, name: str) -> _Column:
    # By way of bytes, or pyarrow does not check that text is UTF-8: Spark's and Parquet's need not.
    return _read(_read(column, pa.string(), name).cast(pa.binary()), pa.string(), name)


def _read(column: _Column, kind: pa.DataType, name: str) -> _Column:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InventoryError(
            f"the listing's column {name} cannot be read as {kind}: {error}"
        ) from None
