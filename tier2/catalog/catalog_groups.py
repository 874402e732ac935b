"""A table of a snapshot by its row groups: a planner by ranges knows from the footer where each
segment lies.

Rules of this file:

- `segments` and `chunks` alone: their rows are sorted by segment, and their statistics say from
  which to which;
- the footer is fetched once; row groups as they are asked for, a few together.

Coroutines over ObjectStorage. All may raise CatalogFormatError and StorageUnavailableError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from tier2.catalog.catalog_files import PartialFile, chosen_schema
from tier2.catalog.catalog_format_error import CatalogFormatError
from tier2.catalog.catalog_manifest import Manifest, TableFile
from tier2.catalog.catalog_reading import open_table, read_groups
from tier2.catalog.catalog_schema import SCHEMAS
from tier2.object_storage import ObjectStorage


class GroupRange(NamedTuple):
    """Row groups [start, stop) of a table of segments, and what their neighbours say of the
    borders.
    """

    start: int
    stop: int
    least: int | None
    """The least segment id that is in here; None: nothing lies before this range."""
    behind: int | None
    """The segment that the next range begins with; None: nothing lies behind this range."""
    continues: bool
    """The first segment began in an earlier range."""
    goes_on: bool
    """The last segment goes on in the next range, as `behind`."""


class TableGroups:
    """Row groups of `segments` or `chunks`, with these columns. Made by `open_groups`."""

    def __init__(
        self, storage: ObjectStorage, file: TableFile, partial: PartialFile, columns: Sequence[str]
    ) -> None:
        self._storage = storage
        self._file = file
        self._partial = partial
        self._columns = list(columns)
        self._bounds: list[tuple[int, int]] = []
        for group, bounds in enumerate(partial.segments()):
            if bounds is None:
                raise CatalogFormatError(
                    f"{file.object}: row group {group} does not say which segments it has"
                )
            self._bounds.append(bounds)

    def __len__(self) -> int:
        return len(self._bounds)

    def rows(self, start: int, stop: int) -> int:
        """How many rows row groups [start, stop) have."""
        return self._partial.row_count(range(start, stop))

    def range(self, part: int, parts: int) -> GroupRange | None:
        """One of `parts` nearly equal ranges; None of one that is empty.

        Of an empty table the first is all of it.
        """
        groups = len(self)
        start, stop = groups * part // parts, groups * (part + 1) // parts
        if start == stop:
            return (
                GroupRange(0, 0, None, None, continues=False, goes_on=False)
                if not groups and not part
                else None
            )
        least = self._bounds[start][0] if start else None
        behind = self._bounds[stop][0] if stop < groups else None
        return GroupRange(
            start,
            stop,
            least,
            behind,
            continues=start > 0 and self._bounds[start - 1][1] == least,
            goes_on=behind is not None and self._bounds[stop - 1][1] == behind,
        )

    def of_segments(self, least: int | None, most: int | None) -> tuple[int, int]:
        """The row groups [start, stop) that may hold segments `least` to `most`, both included;
        None: no such bound.
        """
        chosen = [
            group
            for group, (first, last) in enumerate(self._bounds)
            if (least is None or last >= least) and (most is None or first <= most)
        ]
        return (chosen[0], chosen[-1] + 1) if chosen else (0, 0)

    async def read(self, start: int, stop: int) -> pa.Table:
        """The rows of row groups [start, stop), with the columns asked for."""
        try:
            groups = list(range(start, stop))
            table = await read_groups(self._storage, self._file, self._partial, groups)
            return table.select(self._columns)
        except CatalogFormatError as error:
            raise CatalogFormatError(f"{self._file.object}: {error}") from error


async def open_groups(
    storage: ObjectStorage, manifest: Manifest, name: str, columns: Sequence[str]
) -> TableGroups:
    """The table `segments` or `chunks` of a snapshot, none of its rows read yet.

    One request. ValueError for a column.
    """
    file, schema = manifest.tables[name], SCHEMAS[name]
    chosen_schema(schema, columns)
    return TableGroups(
        storage, file, await open_table(storage, file, schema, list(columns)), columns
    )
