"""What a stream had been shown and has not read when its segment goes: deleted, or merged into one
that it reads or does not.
"""

from __future__ import annotations

import itertools
import json
import logging
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes

from durablelog.catalog.metadata_changes import MetadataChanges
from durablelog.operations import StorageUpdateOperation
from durablelog.storage_metadata import apply_storage_update
from segmentstore.contracts.metadata import MergeRecord
from tests.tier2.spark.source_world import Row, SourceWorld, payloads, read_stream, stream_of
from tier2.locations import PROCESS_MEMORY
from tier2.spark.source.errors import DataLossError
from tier2.spark.source.offsets import (
    OffsetFormatError,
    Position,
    SegmentKey,
    SegmentStep,
    StreamOffset,
    WaitingSegment,
    next_offset,
    parse_offset,
    steps_between,
)

NUMBERS = itertools.count()
Offset = dict[str, Any]
START: Offset = StreamOffset().to_json()


class MergingWorld(SourceWorld):
    """A store whose segments merge, in the two steps that merges take."""

    def merge(self, source: str, target: str) -> int:
        """The bytes are the target's from now on, and still lie with the source.

        Gives the source's id.
        """
        container, into, moved = self._containers[0], self.segment(target), self.segment(source)
        del container.names[source]
        moved.sealed, moved.merged_into = True, into.segment_id
        into.add_merge(MergeRecord(into.length, moved.length, moved.segment_id))
        into.length += moved.length
        container.sequence_number += 1
        return moved.segment_id

    def link(self, source_id: int) -> None:
        """The source's chunks become its target's."""
        container = self._containers[0]
        container.sequence_number += 1
        target_id = container.segments[source_id].merged_into
        assert target_id is not None
        apply_storage_update(
            container, MetadataChanges(), StorageUpdateOperation(links=[(target_id, source_id)])
        )

    def delete_with_sources(self, name: str) -> None:
        """Segments on their way into one that is deleted go with it."""
        container = self._containers[0]
        for merge in self.segment(name).merges:
            source = container.segments[merge.source_id]
            self._drop(container, source, list(source.chunks), delete=True)
            del container.segments[merge.source_id]
        self.delete(name)

    def names(self, container_id: int) -> list[str]:
        return sorted(self._containers[container_id].names)


@pytest.fixture
def world() -> Iterator[MergingWorld]:
    made = MergingWorld(f"memory://loss-{next(NUMBERS)}", 2)
    yield made
    PROCESS_MEMORY.drop(made.url.removeprefix("memory://"))


def step(
    world: SourceWorld, start: Offset, most: int | None = None, **options: object
) -> tuple[Offset, list[Row]]:
    """One batch of a query that was started anew from its checkpoint: where it ends, and its
    rows.
    """
    reader = stream_of(world, **{"prefix": "", "format": "lines", **options})
    limit: ReadLimit = ReadAllAvailable() if most is None else ReadMaxBytes(most)
    end = json.loads(json.dumps(reader.latestOffset(start, limit)))
    return end, read_stream(reader, start, end) if end != start else []


def forgiving(
    world: SourceWorld, start: Offset, most: int | None = None, **options: object
) -> tuple[Offset, list[Row]]:
    return step(world, start, most, failOnDataLoss="false", **options)


@pytest.mark.parametrize(("form", "first"), [("lines", b"1"), ("raw", b"1\n")])
def test_deletion_that_overtakes_is_reported_or_passed_over(
    world: MergingWorld, form: str, first: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    world.append("s", b"1\n2\n3\n4\n")
    world.export()
    end, rows = step(world, START, 2, format=form)
    assert payloads(rows) == [first]
    world.delete("s")
    world.export()
    told = (
        r"segment 's': bytes 2 to 8 are not there any more: with 6 bytes unread the segment "
        r"was deleted"
    )
    for most in (2, None):
        with pytest.raises(DataLossError, match=told) as raised:
            step(world, end, most, format=form)
        assert (raised.value.segment, raised.value.start, raised.value.end) == ("s", 2, 8)
    with caplog.at_level(logging.WARNING, "tier2.spark"):
        after, rows = forgiving(world, end, format=form)
    assert "segment 's': bytes 2 to 8 are passed over: with 6 bytes unread" in caplog.text
    assert (rows, after["segments"]) == ([], {})
    assert step(world, after, format=form) == (after, [])


@pytest.mark.parametrize("data", [b"1\n2\n", b"1\n2\nno line y"])
def test_what_was_read_whole_goes_without_an_error(world: MergingWorld, data: bytes) -> None:
    world.append("s", data)
    world.export()
    end, rows = step(world, START, 2)
    assert "waiting" in end
    # The last of these finds at most that no other row is whole.
    for _ in range(2):
        end, more = step(world, end, 2)
        rows += more
    assert "waiting" not in end
    assert payloads(rows) == [b"1", b"2"]
    assert step(world, end, 2) == (end, [])
    world.delete("s")
    world.export()
    after, rows = step(world, end, 2)
    assert (rows, after["segments"]) == ([], {})


def test_without_a_limit_nothing_waits(world: MergingWorld) -> None:
    world.append("s", b"1\n2\n3\nno line y")
    world.export()
    end, _ = step(world, START)
    assert end == {
        "version": 1,
        "segments": {"0/1": 6},
        "begun": {"0/1": 0},
        "snapshots": end["snapshots"],
        "store": world.store_id,
    }
    limited, _ = step(world, START, 2)
    assert limited == {**end, "segments": {"0/1": 2}, "waiting": {"0/1": [15, "s"]}}


def test_one_whose_turn_never_came_is_lost_from_its_beginning(world: MergingWorld) -> None:
    world.append("big", b"%099d\n" % 1 * 100)
    world.append("small", b"1\n2\n3\n", [2, 4])
    world.truncate("small", 2)
    world.export()
    end, rows = step(world, START, 100)
    assert {row["segment"] for row in rows} == {"big"}
    small = f"0/{world.segment('small').segment_id}"
    assert (end["segments"][small], end["begun"][small], end["waiting"][small]) == (
        2,
        2,
        [6, "small"],
    )
    # Nothing of what lies below its beginning is read, and the rest is in its turn.
    assert payloads([row for row in step(world, end)[1] if row["segment"] == "small"]) == [
        b"2",
        b"3",
    ]
    world.truncate("small", 4)
    world.export()
    with pytest.raises(
        DataLossError, match="segment 'small': bytes 2 to 4 are not there any more: truncated"
    ):
        step(world, end, 100)
    world.delete("small")
    world.export()
    with pytest.raises(
        DataLossError,
        match="segment 'small': bytes 2 to 6 are not there any more: with 4 bytes unread",
    ):
        step(world, end, 100)
    assert {row["segment"] for row in forgiving(world, end)[1]} == {"big"}


def test_a_name_created_again_does_not_hide_what_the_first_one_lost(world: MergingWorld) -> None:
    world.append("s", b"1\n2\n3\n")
    world.export()
    end, _ = step(world, START, 2)
    world.delete("s")
    world.append("s", b"second\nlife\n")
    world.export()
    with pytest.raises(DataLossError, match="segment 's': bytes 2 to 6 are not there any more"):
        step(world, end, 7)
    after, rows = forgiving(world, end, 7)
    assert payloads(rows) == [b"second"]
    assert (
        list(after["waiting"]) == list(after["segments"]) == [f"0/{world.segment('s').segment_id}"]
    )
    assert payloads(step(world, after, 7)[1]) == [b"life"]


def test_what_waits_in_a_container_without_news_waits_on(world: MergingWorld) -> None:
    objects = PROCESS_MEMORY.bucket(world.url.removeprefix("memory://")).objects
    world.export()
    old = set(objects)
    world.append("s", b"1\n2\n")
    world.export()
    newer = {
        name: each
        for name, each in objects.items()
        if name.startswith("catalog/") and name not in old
    }
    end, _ = step(world, START, 2)
    world.append("t", b"one\n", container_id=1)
    world.export(1)
    for name in newer:
        del objects[name]
    # An older catalog, without the segment, has taken the newer one's place.
    after, rows = step(world, end, 2)
    assert (payloads(rows), after["waiting"]["0/1"]) == ([b"one"], [4, "s"])
    for name in [name for name in old if name.startswith("catalog/")]:
        del objects[name]
    assert step(world, after, 2) == (after, [])
    world.delete("s")
    world.export()
    with pytest.raises(DataLossError, match="segment 's': bytes 2 to 4"):
        step(world, after, 2)


def test_an_offset_from_before_is_read_and_extended_from_then_on(world: MergingWorld) -> None:
    world.append("s", b"1\n2\n3\n4\n")
    world.export()
    end, _ = step(world, START, 2)
    before = {name: value for name, value in end.items() if name != "waiting"}
    after, rows = step(world, before, 2)
    assert (payloads(rows), after["waiting"]) == ([b"2"], {"0/1": [8, "s"]})
    world.delete("s")
    world.export()
    assert step(world, before, 2)[1] == []
    with pytest.raises(DataLossError, match="bytes 4 to 8"):
        step(world, after, 2)


def test_segments_that_the_options_do_not_select_any_more_are_no_loss(
    world: MergingWorld,
) -> None:
    world.append("s", b"1\n2\n")
    world.append("t", b"1\n2\n")
    world.export()
    end, _ = step(world, START, 2)
    assert set(end["waiting"]) == {"0/1", f"0/{world.segment('t').segment_id}"}
    world.delete("s")
    world.export()
    after, rows = step(world, end, prefix="t")
    assert payloads(rows)[-1] == b"2"
    assert "waiting" not in after


# --- merges ---------------------------------------------------------------------------------------


def begun(world: MergingWorld, prefix: str = "") -> Offset:
    """A stream that has read the first row of `s`, of four; `t` has two rows, read or not
    selected.
    """
    world.append("t", b"a\nb\n")
    world.export()
    start, _ = step(world, START, prefix=prefix)
    world.append("s", b"1\n2\n3\n4\n", [2, 6])
    world.export()
    end, rows = step(world, start, 2, prefix=prefix)
    assert payloads(rows) == [b"1"]
    return end


@pytest.mark.parametrize("linked", [False, True])
def test_bytes_merged_into_a_segment_that_is_not_read_are_lost(
    world: MergingWorld, linked: bool
) -> None:
    end = begun(world, prefix="s")
    source = world.merge("s", "t")
    if linked:
        world.link(source)
    world.export()
    told = (
        "segment 's': bytes 2 to 8 are not there any more: with 6 bytes unread the segment was"
        " merged into segment 't', which this stream does not read"
    )
    with pytest.raises(DataLossError, match=told):
        step(world, end, prefix="s")
    after, rows = forgiving(world, end, prefix="s")
    assert (rows, after["segments"]) == ([], {})


@pytest.mark.parametrize("most", [2, None])
@pytest.mark.parametrize("seen", [False, True])
def test_merged_bytes_come_with_their_target(
    world: MergingWorld, seen: bool, most: int | None
) -> None:
    end = begun(world)
    source = world.merge("s", "t")
    if seen:
        world.export()
        end, rows = step(world, end, most)
        assert rows == []
        assert end["waiting"] == {f"0/{source}": [8, "s", world.segment("t").segment_id]}
        assert step(world, end, most) == (end, [])
    world.link(source)
    if seen:
        # Rewritten, no chunk shows any more whose bytes they were.
        world.rewrite("t", b"a\nb\n1\n2\n3\n4\n")
    world.export()
    found: list[Row] = []
    while (following := step(world, end, most))[0] != end:
        end, found = following[0], found + following[1]
    assert [(row["segment"], row["payload"]) for row in found] == [
        ("t", each) for each in (b"1", b"2", b"3", b"4")
    ]
    assert list(end["segments"]) == [f"0/{world.segment('t').segment_id}"]
    assert "waiting" not in end


def test_bytes_on_their_way_into_a_target_that_is_deleted_are_lost(world: MergingWorld) -> None:
    end = begun(world)
    world.merge("s", "t")
    world.export()
    end, _ = step(world, end, 2)
    world.delete_with_sources("t")
    world.export()
    with pytest.raises(
        DataLossError, match=r"segment 's': bytes 2 to 8 .* deleted, or merged into another"
    ):
        step(world, end, 2)


def test_merges_nest(world: MergingWorld) -> None:
    end = begun(world)
    world.append("u", b"x\n")
    source = world.merge("s", "t")
    middle = world.merge("t", "u")
    world.export()
    end, rows = step(world, end)
    assert (payloads(rows), end["waiting"]) == ([b"x"], {f"0/{source}": [8, "s", middle]})
    world.link(source)
    world.export()
    end, rows = step(world, end)
    assert (rows, list(end["waiting"])) == ([], [f"0/{source}"])
    world.link(middle)
    world.export()
    end, rows = step(world, end)
    assert payloads(rows) == [b"a", b"b", b"1", b"2", b"3", b"4"]
    assert "waiting" not in end


# --- whatever happens between ---------------------------------------------------------------------


class Life:
    """A limited stream of `raw`, and a store whose segments are deleted: what was shown and not
    read is known exactly.
    """

    def __init__(self, world: MergingWorld, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.offset = START
        self.written: dict[str, bytes] = {}
        self.rows: dict[str, bytes] = {}
        self.shown: dict[str, int] = {}
        """What the stream has seen of each segment, by key."""
        self.catalog: list[dict[str, int]] = [{}, {}]
        """What the newest snapshot of each container has."""
        self.losses = 0

    def key(self, name: str) -> str:
        container_id = int(name[1:]) % 2
        return f"{container_id}/{self.world.segment(name, container_id).segment_id}"

    def write(self) -> None:
        name = f"s{self.rng.randrange(4)}"
        data = self.rng.randbytes(self.rng.choice([1, 10, 100]))
        self.world.append(name, data, [self.rng.randrange(100)], int(name[1:]) % 2)
        self.written[self.key(name)] = self.written.get(self.key(name), b"") + data

    def export(self, container_id: int) -> None:
        self.world.export(container_id)
        names = self.world.names(container_id)
        self.catalog[container_id] = {
            self.key(name): self.world.segment(name, container_id).storage_length for name in names
        }

    def delete(self) -> None:
        container_id = self.rng.randrange(2)
        names = self.world.names(container_id)
        if names:
            # In one go: a snapshot that names what is not there any more is another story.
            self.world.delete(self.rng.choice(names), container_id)
            self.export(container_id)

    def batch(self, most: int | None = None) -> bool:
        there = {**self.catalog[0], **self.catalog[1]}
        lost = {
            key
            for key, shown in self.shown.items()
            if key not in there and len(self.rows.get(key, b"")) < shown
        }
        options: dict[str, Any] = {
            "format": "raw",
            "columns": "container,segment_id,payload",
            "pieceBytes": 8,
        }
        most = self.rng.choice([1, 20, 100]) if most is None else most
        if lost:
            self.losses += 1
            with pytest.raises(DataLossError) as raised:
                step(self.world, self.offset, most, **options)
            assert raised.value.end in {self.shown[key] for key in lost}
            end, rows = forgiving(self.world, self.offset, most, **options)
        else:
            end, rows = step(self.world, self.offset, most, **options)
        for row in rows:
            key = f"{row['container']}/{row['segment_id']}"
            assert isinstance(row["payload"], bytes)
            self.rows[key] = self.rows.get(key, b"") + row["payload"]
        self.shown = there
        moved = end != self.offset
        self.offset = end
        return moved


@pytest.mark.parametrize("seed", range(12))
def test_a_limited_stream_reports_exactly_what_is_lost(world: MergingWorld, seed: int) -> None:
    life = Life(world, random.Random(seed))
    for _ in range(50):
        match life.rng.randrange(7):
            case 0 | 1:
                life.write()
            case 2:
                life.export(life.rng.randrange(2))
            case 3:
                life.delete()
            case _:
                life.batch()
    while not life.losses:
        life.write()
        life.export(life.rng.randrange(2))
        life.batch(1)
        life.delete()
        life.batch(1)
    life.export(0)
    life.export(1)
    while life.batch(500):
        pass
    for key, data in life.written.items():
        found = life.rows.get(key, b"")
        assert found == data if key in life.shown else data.startswith(found)


# --- offsets alone --------------------------------------------------------------------------------

KEYS = st.builds(SegmentKey, st.integers(0, 3), st.integers(1, 5))
LEFT = st.builds(
    WaitingSegment, st.integers(0, 2**62), st.text(), st.none() | st.integers(1, 2**62)
)


@given(st.dictionaries(KEYS, LEFT))
def test_what_waits_comes_back_from_its_text(waiting: dict[SegmentKey, WaitingSegment]) -> None:
    offset = StreamOffset(dict.fromkeys(waiting, 3), {}, {}, waiting)
    assert parse_offset(json.loads(json.dumps(offset.to_json()))) == offset


@pytest.mark.parametrize(
    "waiting",
    [
        {"x": [1, "s"]},
        {"0/1": 1},
        {"0/1": [1]},
        {"0/1": ["s", 1]},
        {"0/1": [-1, "s"]},
        {"0/1": [1, "s", 2, 3]},
        [],
    ],
)
def test_what_waits_is_refused_if_it_is_no_such_thing(waiting: object) -> None:
    with pytest.raises(OffsetFormatError):
        parse_offset({**START, "waiting": waiting})


def test_an_offset_is_another_when_something_else_waits() -> None:
    one, two = SegmentKey(0, 1), SegmentKey(1, 2)
    before = StreamOffset({one: 5}, {}, {0: Position(1, 1)}, {one: WaitingSegment(9, "a")})
    waiting = {one: WaitingSegment(9, "a"), two: WaitingSegment(20, "b")}
    steps = {one: SegmentStep(5, 5), two: SegmentStep(10, 10)}
    now = {0: Position(1, 2), 1: Position(1, 3)}
    after = next_offset(before, steps, frozenset(), now, waiting)
    assert after == StreamOffset(
        {one: 5, two: 10}, {two: 10}, {0: Position(1, 1), 1: Position(1, 3)}, waiting
    )
    assert steps_between(before, after) == {}
    assert next_offset(after, steps, frozenset(), now, dict(waiting)) is after
    assert next_offset(after, steps, frozenset(), now, {one: waiting[one]}).waiting == {
        one: waiting[one]
    }
