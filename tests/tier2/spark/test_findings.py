"""Verdicts over objects: every class planted, nothing else reported; the same as a slow obvious
reference says.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.findings import Severity
from tier2.object_names import ENGINE_PREFIXES, object_name, parse_object_name
from tier2.spark.reconcile.findings import (
    FINDINGS,
    SEVERITIES,
    FindingKind,
    FindingRow,
    StoreFacts,
    check_shard,
    find_suspects,
    findings_table,
)
from tier2.spark.reconcile.listing_table import LISTING

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
OLD_MS = NOW_MS - 100 * HOUR_MS
YOUNG_MS = NOW_MS - HOUR_MS
BLOCK = pa.struct(
    [
        pa.field(name, pa.int64())
        for name in (
            "block_offset",
            "length",
            "block_segment_id",
            "block_start_offset",
            "segment_id",
            "start_offset",
        )
    ]
)


class Known(NamedTuple):
    """An object of a snapshot."""

    name: str
    size: int = 100
    live: bool = True
    blocks: Sequence[tuple[int, int, int]] = ()
    """Segment, offset, length."""


class Listed(NamedTuple):
    """An object of a listing."""

    key: str
    size: int = 100
    modified_ms: int | None = OLD_MS


def name_of(number: int, container_id: int = 1, epoch: int = 5) -> str:
    return object_name(
        container_id, epoch, "flush", hashlib.sha256(str(number).encode()).digest()[:16]
    )


def objects(known: Sequence[Known]) -> pa.Table:
    return pa.table(
        {
            "name": pa.array([each.name for each in known], pa.string()),
            "size": pa.array([each.size for each in known], pa.int64()),
            "state": pa.array(["live" if each.live else "garbage" for each in known], pa.string()),
            "blocks": pa.array([blocks_of(each) for each in known], pa.list_(BLOCK)),
        }
    )


def blocks_of(known: Known) -> list[dict[str, int]]:
    return [
        {
            "block_offset": 0,
            "length": length,
            "block_segment_id": segment,
            "block_start_offset": start,
            "segment_id": segment,
            "start_offset": start,
        }
        for segment, start, length in known.blocks
    ]


def listing(listed: Sequence[Listed]) -> pa.Table:
    rows = [{**each._asdict(), "etag": None} for each in listed]
    return pa.Table.from_pylist(rows, schema=LISTING)


def place(**changes: Any) -> StoreFacts:
    return StoreFacts({1: 7, 2: 7, 3: None}, NOW_MS, 72 * HOUR_MS)._replace(**changes)


def checked(
    before: Sequence[Known],
    listed: Sequence[Listed],
    after: Sequence[Known] | None = None,
    **changes: Any,
) -> list[dict[str, Any]]:
    """Checked as a whole, and by suspects alone: both must say the same."""
    a, found, b = objects(before), listing(listed), objects(before if after is None else after)
    table = check_shard(a, found, b, place(**changes), run_id="run")
    suspects = find_suspects(a, found)
    assert check_shard(suspects.before, suspects.listed, b, place(**changes), run_id="run").equals(
        table
    )
    assert table.schema.equals(FINDINGS)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def kinds(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return sorted((row["kind"], row["object"]) for row in rows)


X = name_of(0)


def test_what_is_listed_as_both_snapshots_have_it_is_no_finding() -> None:
    known = [Known(name_of(number), number + 1) for number in range(50)]
    listed = [Listed(each.name, each.size) for each in known]
    assert checked(known, listed) == []
    assert checked(known[::-1], listed) == []
    assert checked([], []) == []


def test_an_object_that_both_snapshots_need_and_no_listing_has_is_missing() -> None:
    (row,) = checked([Known(X, 100, blocks=[(4, 1000, 50)])], [])
    assert row == {
        "kind": "missing",
        "severity": "harmful",
        "container_id": 1,
        "segment_id": 4,
        "start_offset": 1000,
        "length": 50,
        "object": X,
        "expected": "100 bytes",
        "actual": "not listed",
        "last_modified_ms": None,
        "age_seconds": None,
        "evidence": "live in both snapshots: holds segment 4 from 1000 to 1050",
        "run_id": "run",
    }
    (many,) = checked([Known(X, 100, blocks=[(number, 0, 50) for number in range(5)])], [])
    assert (many["segment_id"], many["length"]) == (None, None)
    assert many["evidence"].endswith("segment 2 from 0 to 50 and 2 more")


def test_an_object_that_came_or_went_between_the_snapshots_is_not_missing() -> None:
    assert checked([Known(X)], [], []) == []
    assert checked([], [], [Known(X)]) == []
    assert checked([Known(X)], [], [Known(X, live=False)]) == []
    assert checked([Known(X, live=False)], [], [Known(X, live=False)]) == []


def test_a_size_is_compared_wherever_snapshot_b_needs_the_object() -> None:
    for before in ([Known(X, 100)], []):
        (row,) = checked(before, [Listed(X, 99)], [Known(X, 100)])
        assert (row["kind"], row["expected"], row["actual"]) == (
            "wrong_size",
            "100 bytes",
            "99 bytes",
        )
        assert checked(before, [Listed(X, 100)], [Known(X, 100)]) == []
    assert [row["kind"] for row in checked([Known(X, 100)], [Listed(X, 99)], [])] == ["in_flight"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([Known(X, live=False)], [Known(X, live=False)]),
        ([Known(X, live=False)], []),
        ([Known(X, 99)], [Known(X, 99, live=False)]),
        ([], [Known(X, live=False)]),
    ],
)
def test_garbage_that_is_still_listed_waits_for_its_deletion(
    before: Sequence[Known], after: Sequence[Known]
) -> None:
    (row,) = checked(before, [Listed(X)], after)
    assert (row["kind"], row["severity"], row["age_seconds"]) == (
        "waiting_for_deletion",
        "information",
        360_000,
    )


@pytest.mark.parametrize("after", [[], [Known(X, live=False)]])
def test_an_object_listed_as_snapshot_a_has_it_is_left_to_the_next_run_whatever_became_of_it(
    after: Sequence[Known],
) -> None:
    assert checked([Known(X)], [Listed(X)], after) == []


def test_an_old_object_in_neither_snapshot_is_an_orphan_with_its_age() -> None:
    (row,) = checked([], [Listed(X)])
    assert (row["kind"], row["severity"], row["age_seconds"]) == ("orphan", "note", 360_000)
    assert (row["last_modified_ms"], row["container_id"], row["actual"]) == (OLD_MS, 1, "100 bytes")


@pytest.mark.parametrize(
    ("listed", "changes", "evidence"),
    [
        (Listed(X, 100, NOW_MS - 72 * HOUR_MS + 1), {}, "younger than 259200 seconds"),
        (Listed(X, 100, NOW_MS + HOUR_MS), {}, "younger"),
        (Listed(X, 100, None), {}, "unknown age"),
        (Listed(name_of(1, epoch=8), 100, YOUNG_MS), {}, "(a stray: its name is of epoch 8"),
        (Listed(X), {"tag": b"12345678"}, "of unknown owner"),
        (Listed(X), {"open_names": {X}}, "named in a proposal"),
        (Listed(X), {"shared_with": "of store 5 too"}, "perhaps of another store: of store 5 too"),
    ],
)
def test_what_could_be_under_way_is_in_flight_and_no_orphan(
    listed: Listed, changes: Mapping[str, Any], evidence: str
) -> None:
    (row,) = checked([], [listed], **changes)
    assert (row["kind"], row["severity"]) == ("in_flight", "information")
    assert evidence in row["evidence"]


def test_an_old_object_of_an_epoch_its_store_has_not_come_to_is_an_orphan_and_a_stray() -> None:
    (row,) = checked([], [Listed(name_of(1, epoch=8))])
    assert (row["kind"], row["severity"]) == ("orphan", "note")
    assert row["evidence"].endswith(
        "(a stray: its name is of epoch 8, and the snapshot, taken since, of epoch 7)"
    )


@pytest.mark.parametrize("listed", [[], [Listed(X, 100)]])
def test_of_a_snapshot_before_the_last_only_what_is_missing_or_orphaned_cannot_be_known(
    listed: Sequence[Listed],
) -> None:
    known, wrong = ([] if listed else [Known(X, 100)]), Known(name_of(5), 100)
    rows = checked([*known, wrong], [*listed, Listed(wrong.name, 99)], outdated={1: "x is newer"})
    told = {row["object"]: (row["kind"], row["severity"]) for row in rows}
    assert told == {X: ("in_flight", "unknown"), wrong.name: ("wrong_size", "harmful")}
    (row,) = [row for row in rows if row["object"] == X]
    assert row["evidence"].endswith("x is newer")


def test_an_orphan_is_as_old_as_asked_to_the_millisecond() -> None:
    (row,) = checked([], [Listed(X, 100, NOW_MS - 72 * HOUR_MS)])
    assert row["kind"] == "orphan"


def test_unknown_names_are_foreign_and_the_engines_own_are_nothing() -> None:
    foreign = ["readme.txt", "ab/x", X[:-1] + "g", X.upper(), "zz" + X[2:]]
    wrong_shard = ("00" if X[:2] != "00" else "01") + X[2:]
    assert parse_object_name(wrong_shard) is None
    listed = [
        Listed(name)
        for name in (*foreign, wrong_shard, *(prefix + "x" for prefix in ENGINE_PREFIXES))
    ]
    rows = checked([], listed)
    assert kinds(rows) == sorted(("foreign", name) for name in (*foreign, wrong_shard))
    assert {row["container_id"] for row in rows} == {None}


def test_a_container_not_of_the_store_is_foreign_and_one_without_snapshot_is_open() -> None:
    other, unresponsive = name_of(1, container_id=9), name_of(2, container_id=3)
    rows = checked([], [Listed(other), Listed(unresponsive)])
    assert {(row["kind"], row["severity"], row["container_id"]) for row in rows} == {
        ("foreign", "note", 9),
        ("in_flight", "unknown", 3),
    }
    # Snapshot A had it, and B is not there.
    (row,) = checked([Known(unresponsive)], [], [])
    assert (row["kind"], row["severity"], row["object"]) == ("in_flight", "unknown", unresponsive)
    (row,) = checked([Known(unresponsive)], [Listed(unresponsive, 7)], [])
    assert (row["kind"], row["severity"], row["object"]) == ("in_flight", "unknown", unresponsive)


def test_a_listing_that_names_an_object_twice_changes_nothing() -> None:
    assert checked([Known(X)], [Listed(X), Listed(X)]) == []
    assert checked([Known(X), Known(X)], [Listed(X)]) == []
    assert [row["kind"] for row in checked([], [Listed(X), Listed(X)])] == ["orphan", "orphan"]


def test_every_kind_has_a_severity() -> None:
    table = findings_table([FindingRow(kind, "why") for kind in FindingKind])
    assert table["severity"].to_pylist() == [SEVERITIES[kind] for kind in FindingKind]
    assert findings_table([]).schema.equals(FINDINGS)


def test_planted_faults_are_found_one_by_one_in_a_generated_shard() -> None:
    rng = random.Random(7)
    names = [name_of(number, rng.choice((1, 2)), rng.randrange(8)) for number in range(6000)]
    planted = {
        kind: names[at * 100 : at * 100 + 100]
        for at, kind in enumerate(("missing", "wrong_size", "orphan"))
    }
    planted["in_flight"] = names[300:400]
    planted["waiting_for_deletion"] = names[400:500]
    came, went = names[500:600], names[600:700]
    rest = names[700:]
    always = [*planted["missing"], *planted["wrong_size"], *rest]
    before = [Known(name) for name in (*always, *went)] + [
        Known(name, live=False) for name in planted["waiting_for_deletion"]
    ]
    after = [Known(name) for name in (*always, *came)]
    listed = [
        Listed(name)
        for name in (*rest, *came, *planted["orphan"], *planted["waiting_for_deletion"])
    ]
    listed += [Listed(name, 101) for name in planted["wrong_size"]]
    listed += [Listed(name, 100, YOUNG_MS) for name in planted["in_flight"]]
    rng.shuffle(before)
    rng.shuffle(listed)
    found = checked(before, listed, after)
    assert kinds(found) == sorted((kind, name) for kind, group in planted.items() for name in group)


def reference(
    before: Sequence[Known], listed: Sequence[Listed], after: Sequence[Known], where: StoreFacts
) -> set[Any]:
    """What docs/reconciliation.md says, object by object."""
    a, b = ({each.name: each for each in rows} for rows in (before, after))
    seen = {each.key: each for each in listed}
    result: set[Any] = set()
    for name in a.keys() | b.keys() | seen.keys():
        was, now, there = a.get(name), b.get(name), seen.get(name)
        parts = parse_object_name(name)
        told = parts is None or where.epochs.get(parts.container_id) is not None
        if there is None:
            if was is not None and was.live and not told:
                result.add((name, "in_flight", Severity.UNKNOWN))
            elif was is not None and now is not None and was.live and now.live:
                result.add((name, "missing", Severity.HARMFUL))
        elif was is not None and was.live and was.size == there.size:
            pass
        elif now is not None and now.live:
            if there.size != now.size:
                result.add((name, "wrong_size", Severity.HARMFUL))
        elif now is not None or (was is not None and not was.live):
            result.add((name, "waiting_for_deletion", Severity.INFORMATION))
        elif was is not None:
            result.add((name, "in_flight", Severity.INFORMATION if told else Severity.UNKNOWN))
        elif parts is None or parts.container_id not in where.epochs:
            result.add((name, "foreign", Severity.NOTE))
        elif not told:
            result.add((name, "in_flight", Severity.UNKNOWN))
        else:
            epoch = where.epochs[parts.container_id]
            old = (
                there.modified_ms is not None and NOW_MS - there.modified_ms >= where.older_than_ms
            )
            sure = epoch is not None and old and name not in where.open_names
            result.add(
                (name, "orphan", Severity.NOTE)
                if sure
                else (name, "in_flight", Severity.INFORMATION)
            )
    return result


NAMES = [name_of(number, number % 4, number % 9) for number in range(24)] + ["foreign", "00/x"]
states = st.sampled_from(("absent", "live", "garbage"))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(NAMES),
            states,
            states,
            st.booleans(),
            st.sampled_from((100, 101)),
            st.sampled_from((OLD_MS, YOUNG_MS, None)),
            st.booleans(),
        ),
        unique_by=lambda each: each[0],
        max_size=24,
    ),
    st.randoms(use_true_random=False),
)
def test_verdicts_are_those_of_the_obvious_reference(rows: list[Any], rng: random.Random) -> None:
    before = [Known(name, 100, was == "live") for name, was, *_ in rows if was != "absent"]
    after = [Known(name, 100, now == "live") for name, _, now, *_ in rows if now != "absent"]
    # What lives does not become unknown, nor garbage live again.
    after = [
        each for each in after if not (each.live and Known(each.name, 100, live=False) in before)
    ]
    listed = [Listed(name, size, at) for name, _, _, there, size, at, _ in rows if there]
    opened = {name for name, *_, named in rows if named}
    # A container without a snapshot B has no rows in it.
    after = [
        each
        for each in after
        if (parts := parse_object_name(each.name)) is None or parts.container_id != 3
    ]
    rng.shuffle(before)
    rng.shuffle(listed)
    found = checked(before, listed, after, open_names=opened)
    assert {(row["object"], row["kind"], row["severity"]) for row in found} == reference(
        before, listed, after, place(open_names=opened)
    )
    assert len(found) == len({row["object"] for row in found})
