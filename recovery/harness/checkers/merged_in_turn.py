"""Merged in turn: of the merges of one call none is done behind one that is not.

Rules of this file:

- a source is in its target if one of its records is: that it is there whole `content` checks;
- targets whose beginning was truncated unseen are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from recovery.harness.checkers.index import HistoryIndex
from recovery.harness.history import Call, CallOutcome, Violation

NAME: Final = "merged in turn"


def check(index: HistoryIndex) -> Iterator[Violation]:
    """Violations of merges of one call."""
    for name, named in index.names.items():
        for merge in named.merges:
            if merge.behind is None:
                continue
            front = index.calls[merge.behind]
            own, others = _records(index, merge), _records(index, front)
            for chain in index.chains_of(name):
                if not chain.complete or own.isdisjoint(chain.at) or others <= chain.at.keys():
                    continue
                detail = f"{merge.source!r} was merged into {name!r} behind {front.source!r}"
                yield Violation(NAME, f"{detail}, which was not", [front.number, merge.number])


def _records(index: HistoryIndex, merge: Call) -> set[tuple[bool, int, int]]:
    """Origins of the records that the source of a merge certainly had."""
    source = index.names.get(merge.source)
    return {
        (False, call.number, item)
        for call in (source.appends if source is not None else ())
        if call.outcome is CallOutcome.OK
        for item in range(len(call.lengths))
    }
