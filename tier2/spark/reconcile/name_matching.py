"""Which names of one column are in another: by walking along both where they are sorted, by a hash
table otherwise.

The walk searches for the next difference by comparing ever longer stretches, each of them one
comparison of memory: columns that are nearly the same cost next to nothing. Names in both differ in
few places, or there is something badly wrong; then the hash table is the quicker one.

Pure: Arrow arrays in, numpy arrays out.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

DIFFERENCES_MAX: Final = 256
"""Beyond so many the walk is given up."""
STRETCH_MIN: Final = 64

_Names = Any
"""An Arrow array of strings; the stubs know little of what is done with it."""


class Matched(NamedTuple):
    """Of names `ours` and names `theirs`."""

    listed: NDArray[np.bool_]
    """Of each of ours: whether theirs has it."""
    known: NDArray[np.bool_]
    """Of each of theirs: whether ours has it."""
    places: NDArray[np.int64]
    """Of each known one of theirs: a place in ours where it stands."""


def match_names(ours: _Names, theirs: _Names) -> Matched:
    """Which names are in both; either may have a name twice, and be in any order. O(names)."""
    if ours.equals(theirs):
        everything = np.ones(len(ours), dtype=bool)
        return Matched(everything, everything, np.arange(len(ours)))
    walked = _walked(ours, theirs) if _is_sorted(ours) and _is_sorted(theirs) else None
    return _hashed(ours, theirs) if walked is None else walked


def _is_sorted(names: _Names) -> bool:
    """Strictly: no name stands there twice."""
    return len(names) < 2 or pc.min(pc.less(names[:-1], names[1:])).as_py() is True


def _walked(ours: _Names, theirs: _Names) -> Matched | None:
    """None after too many differences."""
    listed, known = np.ones(len(ours), dtype=bool), np.ones(len(theirs), dtype=bool)
    one = other = differences = 0
    while True:
        same = _same_from(ours, one, theirs, other)
        one, other = one + same, other + same
        if one == len(ours) or other == len(theirs):
            break
        if differences == DIFFERENCES_MAX:
            return None
        differences += 1
        if ours[one].as_py() < theirs[other].as_py():
            listed[one] = False
            one += 1
        else:
            known[other] = False
            other += 1
    listed[one:] = False
    known[other:] = False
    return Matched(listed, known, np.flatnonzero(listed))


def _same_from(ours: _Names, one: int, theirs: _Names, other: int) -> int:
    """How many names from there on are the same in both."""
    rest = min(len(ours) - one, len(theirs) - other)
    same, stretch = 0, STRETCH_MIN
    while same < rest:
        stretch = min(stretch, rest - same)
        if ours.slice(one + same, stretch).equals(theirs.slice(other + same, stretch)):
            same += stretch
            stretch *= 2
        elif stretch == 1:
            break
        else:
            stretch //= 2
    return same


def _hashed(ours: _Names, theirs: _Names) -> Matched:
    found: Any = pc.index_in(theirs, value_set=ours)
    position: NDArray[np.int32] = found.fill_null(-1).to_numpy()
    known = position >= 0
    places = position[known].astype(np.int64)
    listed = np.zeros(len(ours), dtype=bool)
    listed[places] = True
    rest = np.flatnonzero(~listed)
    if len(rest):
        # Of a name that stands in ours twice only the first was met.
        twice = theirs.filter(pc.is_in(theirs, value_set=ours.take(pa.array(rest))))
        listed[rest] = pc.is_in(ours.take(pa.array(rest)), value_set=twice).to_numpy(
            zero_copy_only=False
        )
    return Matched(listed, known, places)
