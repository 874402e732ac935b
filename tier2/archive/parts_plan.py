"""Where an archived part is found: in the tail, or in which list, by which node. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias

from segmentstore.contracts.archive_metadata import (
    LIST_PARTS,
    NODE_LISTS,
    ArchiveMetadata,
    PartsBound,
)
from segmentstore.contracts.archived_parts import ArchivedPart, OffloadState

SearchKey: TypeAlias = Literal["last_sequence", "last_ms"]
"""What parts are searched by; of both no part has a lower one than the part before."""


class InTail(NamedTuple):
    """A part of the tail."""

    position: int


class InList(NamedTuple):
    """A part of this closed list."""

    ordinal: int


class InNode(NamedTuple):
    """A part of one of the lists of this node."""

    ordinal: int


Place: TypeAlias = InTail | InList | InNode | None


def find_place(archive: ArchiveMetadata, key: SearchKey, least: int) -> Place:
    """Where the first part is whose `key` is at least `least`; None: there is none.

    It may lie before `archive.first`: the caller takes that one then.
    """
    node = _first(archive.node_bounds, key, least)
    if node < len(archive.node_bounds):
        return InNode(archive.nodes - len(archive.node_bounds) + node)
    position = _first(archive.list_bounds, key, least)
    if position < len(archive.list_bounds):
        return InList(archive.nodes * NODE_LISTS + position)
    position = first_part(archive.tail, key, least)
    if position < len(archive.tail):
        return InTail(position)
    return None


def list_in_node(ordinal: int, bounds: Sequence[PartsBound], key: SearchKey, least: int) -> int:
    """Which list of a node has the first part whose `key` is at least `least`; one has."""
    return ordinal * NODE_LISTS + _first(bounds, key, least)


def first_part(parts: Sequence[ArchivedPart], key: SearchKey, least: int) -> int:
    """The position of the first part whose `key` is at least `least`; their number if none is."""
    return bisect_left(parts, least, key=lambda part: getattr(part, key))


def with_state(archive: ArchiveMetadata, index: int, part: ArchivedPart) -> ArchivedPart:
    """A part of a closed list as it is by now."""
    if index >= archive.hot_deleted_count or part.state is OffloadState.HOT_DELETED:
        return part
    # Lists do not change: what became of a part later is in the metadata alone.
    return replace(part, state=OffloadState.HOT_DELETED)


def lists_before(begin: int, end: int) -> range:
    """The lists all of whose parts are before the index `end`, and not all before `begin`."""
    return range(begin // LIST_PARTS, end // LIST_PARTS)


def nodes_before(begin: int, end: int) -> range:
    """The same of nodes."""
    return range(begin // (LIST_PARTS * NODE_LISTS), end // (LIST_PARTS * NODE_LISTS))


def _first(bounds: Sequence[PartsBound], key: SearchKey, least: int) -> int:
    return bisect_left(bounds, least, key=lambda bound: getattr(bound, key))
