"""Tables as Parquet bytes, and back; whole or only the row groups that are wanted.

Rules of this file:

- equal tables make equal bytes: one thread, fixed options;
- row groups are cut where readers cut: 16,384 rows, those of `objects` at the borders of shards
  too;
- statistics stand for the columns that row groups are chosen by; pages carry checksums, for readers
  of only some of them;
- whatever pyarrow says of bytes that are no such table becomes CatalogFormatError.

Pure: bytes and tables, no await, no clock, no I/O.
"""

from __future__ import annotations

import io
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tier2.catalog.catalog_format_error import CatalogFormatError
from tier2.catalog.catalog_schema import ADDED_IN, conform

ROW_GROUP_ROWS: Final = 16_384
"""Of the others: few enough that a reader of the names of some segments' objects, which are most of
it, need not read all.
"""
SHARD_ROWS_MAX: Final = 131_072
"""Of a row group of `objects`."""
FOOTERS_KEPT: Final = 16
"""Parsed, by a process: a reader of one range after another asks for the same few, and a large one
takes 10 ms.
"""
_FOOTER_END_BYTES: Final = 8
_MERGED_GAP_BYTES: Final = 256 * 1024
"""Ranges so near to each other are fetched as one."""
_STATISTICS: Final = ("segment_id", "start_offset", "shard", "name")
_DICTIONARIES: Final = ("shard", "state", "segment_id")
_DELTAS: Final = ("start_offset", "length", "size")
"""Columns of differences in few bits: decoded in a third of the time, and no larger."""
_ARROW_ERRORS: Final = (pa.ArrowException, OSError, ValueError, KeyError)


class ByteRange(NamedTuple):
    """Bytes [offset, offset + length) of a file."""

    offset: int
    length: int


def row_groups(name: str, table: pa.Table) -> list[int]:
    """How many rows each row group of the table `name` has."""
    if name != "objects":
        return _cut(table.num_rows, ROW_GROUP_ROWS)
    if not table.num_rows:
        return []
    # Not in the stubs.
    runs = pc.run_end_encode(table["shard"].combine_chunks())  # type: ignore[attr-defined]
    ends = runs.run_ends.to_pylist()
    starts = [0, *ends[:-1]]
    return [
        rows
        for start, end in zip(starts, ends, strict=True)
        for rows in _cut(end - start, SHARD_ROWS_MAX)
    ]


def _cut(rows: int, rows_max: int) -> list[int]:
    whole, rest = divmod(rows, rows_max)
    return [rows_max] * whole + [rest] * bool(rest)


def encode_parquet(table: pa.Table, groups: Sequence[int]) -> bytes:
    """The table as a Parquet file with row groups of so many rows each."""
    assert sum(groups) == table.num_rows, (groups, table.num_rows)
    names = table.column_names
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        # The stubs know the bool.
        use_dictionary=[name for name in _DICTIONARIES if name in names],  # type: ignore[arg-type]
        column_encoding={name: "DELTA_BINARY_PACKED" for name in _DELTAS if name in names},
        write_statistics=[name for name in _STATISTICS if name in names],
        write_page_checksum=True,
    ) as writer:
        position = 0
        for rows in groups:
            writer.write_table(table.slice(position, rows), row_group_size=rows)
            position += rows
    return sink.getvalue().to_pybytes()


def read_whole(data: bytes, schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of a whole file, as `schema` has them, or only some columns.

    Raises CatalogFormatError.
    """
    wanted = chosen_schema(schema, columns)
    try:
        file = pq.ParquetFile(
            pa.BufferReader(data), pre_buffer=False, page_checksum_verification=True
        )
        table = file.read(columns=_present(file.schema_arrow, wanted), use_threads=False)
    except _ARROW_ERRORS as error:
        raise CatalogFormatError(f"not the Parquet file that it should be: {error}") from error
    return conform(table, wanted)


def chosen_schema(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """`schema` with these columns alone, in this order.

    ValueError for one that it does not have.
    """
    if columns is None:
        return schema
    unknown = [name for name in columns if name not in schema.names]
    if unknown:
        raise ValueError(f"there is no column {unknown[0]}; there are {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in columns])


def _present(there: pa.Schema, wanted: pa.Schema) -> list[str]:
    """The columns to ask a file for. One that it must have and has not is found by `conform`."""
    return [field.name for field in wanted if field.name in there.names]


# --- parts of a file ------------------------------------------------------------------------------


def footer_size(tail: bytes) -> int:
    """How many bytes at a file's end its footer takes, according to its last 8 or more.

    Raises CatalogFormatError.
    """
    if len(tail) < _FOOTER_END_BYTES or tail[-4:] != b"PAR1":
        raise CatalogFormatError("it does not end as a Parquet file")
    return int.from_bytes(tail[-8:-4], "little") + _FOOTER_END_BYTES


class _Footer:
    """What a footer says. Never changed, so that several readers may have the same one."""

    def __init__(self, data: bytes) -> None:
        # A footer says the same wherever it stands: before it there may be anything.
        self.metadata = pq.read_metadata(pa.BufferReader(b"PAR1" + data))
        self.names = frozenset(self.metadata.schema.to_arrow_schema().names)
        self._bounds: dict[str, list[tuple[Any, Any] | None]] = {}

    def bounds(self, column: str) -> list[tuple[Any, Any] | None]:
        """Least and greatest value of a column in each row group, as its statistics say."""
        found = self._bounds.get(column)
        if found is None:
            found = self._bounds[column] = self._read_bounds(column)
        return found

    def leaves(self, columns: Sequence[str]) -> list[int]:
        """Where the parts of these columns are among the columns of a row group."""
        schema = self.metadata.schema
        return [
            i
            for i in range(self.metadata.num_columns)
            if schema.column(i).path.partition(".")[0] in columns
        ]

    def _read_bounds(self, column: str) -> list[tuple[Any, Any] | None]:
        metadata = self.metadata
        index = next(
            (i for i in range(metadata.num_columns) if metadata.schema.column(i).path == column),
            None,
        )
        if index is None:
            return [None] * metadata.num_row_groups
        found: list[tuple[Any, Any] | None] = []
        for group in range(metadata.num_row_groups):
            statistics = metadata.row_group(group).column(index).statistics
            if statistics is None or not statistics.has_min_max:
                found.append(None)
            else:
                found.append((statistics.min, statistics.max))
        return found


@lru_cache(maxsize=FOOTERS_KEPT)
def _parse_footer(footer: bytes) -> _Footer:
    return _Footer(footer)


class PartialFile:
    """A file of which the footer is here, and the rest as far as it is asked for.

    First `choose` row groups, then fetch `ranges`, then `read` them; or, of what is `fetched`, some
    and then others.
    """

    def __init__(
        self, size: int, footer: bytes, schema: pa.Schema, columns: Sequence[str] | None = None
    ) -> None:
        """`footer`: the last bytes of the file, of which there are `size`.

        Raises CatalogFormatError.
        """
        self._schema = chosen_schema(schema, columns)
        self._size = size
        self._footer = (size - len(footer), footer)
        try:
            self._parsed = _parse_footer(footer)
        except _ARROW_ERRORS as error:
            raise CatalogFormatError(f"its footer is not a Parquet file's: {error}") from error
        self._columns = [field.name for field in self._schema if field.name in self._parsed.names]
        self._leaves = self._parsed.leaves(self._columns)
        for field in self._schema:
            if field.name not in self._columns and ADDED_IN not in (field.metadata or {}):
                raise CatalogFormatError(f"column {field.name} is missing")

    def shards(self) -> list[tuple[Any, Any] | None]:
        """The first and the last shard of each row group; None of one that does not say."""
        return self._parsed.bounds("shard")

    def segments(self) -> list[tuple[Any, Any] | None]:
        """The least and the greatest segment id of each row group; None of one that does not
        say.
        """
        return self._parsed.bounds("segment_id")

    def choose_shards(self, shards: Sequence[int], among: Sequence[int] | None = None) -> list[int]:
        """The row groups, of all or some, that may hold rows of these shards, ascending; numbers
        are digits in hexadecimal.
        """
        return self._choose("shard", [f"{shard:02x}" for shard in shards], among) if shards else []

    def choose_segments(self, segment_ids: Sequence[int]) -> list[int]:
        """The row groups that may hold rows of these segments, which are given in ascending
        order.
        """
        return self._choose("segment_id", segment_ids)

    def row_count(self, groups: Sequence[int]) -> int:
        """How many rows these row groups have."""
        return sum(self._parsed.metadata.row_group(group).num_rows for group in groups)

    def ranges(self, groups: Sequence[int]) -> list[ByteRange]:
        """The bytes that `read` needs of these row groups, ascending and apart."""
        found: list[ByteRange] = []
        for start, end in sorted(self._column_chunks(groups)):
            if found and start - (found[-1].offset + found[-1].length) <= _MERGED_GAP_BYTES:
                before = found[-1]
                found[-1] = ByteRange(before.offset, max(before.length, end - before.offset))
            else:
                found.append(ByteRange(start, end - start))
        return found

    def read(self, groups: Sequence[int], pieces: Sequence[tuple[int, bytes]]) -> pa.Table:
        """The rows of these row groups; `pieces` are offsets and bytes of `ranges`.

        Raises CatalogFormatError.
        """
        return self.fetched(pieces).read(groups)

    def fetched(self, pieces: Sequence[tuple[int, bytes]]) -> FetchedGroups:
        """The row groups whose `ranges` are among these offsets and bytes.

        Raises CatalogFormatError.
        """
        source = _Sparse(self._size, [*pieces, self._footer])
        return FetchedGroups(source, self._parsed.metadata, self._columns, self._schema)

    def _choose(
        self, column: str, wanted: Sequence[Any], among: Sequence[int] | None = None
    ) -> list[int]:
        chosen = []
        every = self._parsed.bounds(column)
        for group in range(len(every)) if among is None else among:
            bounds = every[group]
            if bounds is not None:
                index = bisect_left(wanted, bounds[0])
                if index == len(wanted) or wanted[index] > bounds[1]:
                    continue
            chosen.append(group)
        return chosen

    def _column_chunks(self, groups: Sequence[int]) -> list[tuple[int, int]]:
        found = []
        for group in groups:
            row_group = self._parsed.metadata.row_group(group)
            for index in self._leaves:
                chunk = row_group.column(index)
                start = chunk.data_page_offset
                if chunk.dictionary_page_offset is not None:
                    start = min(start, chunk.dictionary_page_offset)
                found.append((start, start + chunk.total_compressed_size))
        return found


class FetchedGroups:
    """Row groups whose bytes are here, decoded as they are asked for.

    Not for two threads at once.
    """

    def __init__(
        self, source: _Sparse, metadata: pq.FileMetaData, columns: list[str], schema: pa.Schema
    ) -> None:
        self._columns = columns
        self._schema = schema
        try:
            self._file = pq.ParquetFile(
                pa.PythonFile(source, "r"),
                metadata=metadata,
                pre_buffer=False,
                page_checksum_verification=True,
            )
        except _ARROW_ERRORS as error:
            raise CatalogFormatError(f"its row groups cannot be read: {error}") from error

    def read(self, groups: Sequence[int]) -> pa.Table:
        """The rows of these row groups. Raises CatalogFormatError."""
        try:
            table = self._file.read_row_groups(
                list(groups), columns=self._columns, use_threads=False
            )
        except _ARROW_ERRORS as error:
            raise CatalogFormatError(f"its row groups cannot be read: {error}") from error
        return conform(table, self._schema)


class _Sparse(io.RawIOBase):
    """A file of which only pieces are here; to read elsewhere is an error."""

    def __init__(self, size: int, pieces: Sequence[tuple[int, bytes]]) -> None:
        super().__init__()
        self._size = size
        self._pieces = pieces
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._position + size)
        if end <= self._position:
            return b""
        for offset, data in self._pieces:
            if offset <= self._position and end <= offset + len(data):
                found = data[self._position - offset : end - offset]
                self._position = end
                return bytes(found)
        raise OSError(f"bytes {self._position} to {end} were not fetched")
