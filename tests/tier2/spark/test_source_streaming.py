"""Streams of the data source without a Spark session: the calls Spark makes, with stops, restarts
and failures between them.
"""

from __future__ import annotations

import itertools
import json
import random
import uuid
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes

from segmentstore.contracts.events import frame_events
from tests.support.suites import share
from tests.tier2.spark.source_world import Row, SourceWorld, payloads, read_stream, stream_of
from tier2.locations import PROCESS_MEMORY
from tier2.spark.source.errors import DataLossError, SegmentFramingError, SourceCatalogError
from tier2.spark.source.offsets import (
    OffsetFormatError,
    OffsetStoreError,
    Position,
    SegmentKey,
    SegmentStep,
    StreamOffset,
    admit,
    fill,
    next_offset,
    parse_offset,
    steps_between,
)
from tier2.spark.source.stream import SegmentStreamReader

NUMBERS = itertools.count()
ALL = ReadAllAvailable()


def new_world(containers: int = 1) -> SourceWorld:
    return SourceWorld(f"memory://stream-{next(NUMBERS)}", containers)


@pytest.fixture
def world() -> Iterator[SourceWorld]:
    made = new_world()
    yield made
    PROCESS_MEMORY.drop(made.url.removeprefix("memory://"))


def step(
    reader: SegmentStreamReader, start: dict[str, Any], limit: ReadLimit = ALL
) -> tuple[dict[str, Any], list[Row]]:
    """One batch: where it ends, and its rows. What lies between is text in a checkpoint."""
    end = json.loads(json.dumps(reader.latestOffset(start, limit)))
    return end, read_stream(reader, start, end) if end != start else []


KEYS = st.builds(SegmentKey, st.integers(0, 3), st.integers(1, 5))


@given(st.dictionaries(KEYS, st.integers(0, 2**62)), st.dictionaries(KEYS, st.integers(0, 99)))
def test_offsets_come_back_from_their_text(
    ends: dict[SegmentKey, int], begun: dict[SegmentKey, int]
) -> None:
    offset = StreamOffset(
        ends, begun, {key.container_id: Position(5, place) for key, place in ends.items()}
    )
    assert parse_offset(json.loads(json.dumps(offset.to_json()))) == offset


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"version": 2},
        {"version": 1, "segments": {"x": 1}, "begun": {}, "snapshots": {}},
        {"version": 1},
    ],
)
def test_a_foreign_checkpoint_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(OffsetFormatError):
        parse_offset(document)


@given(
    st.dictionaries(KEYS, st.one_of(st.integers(0, 9), st.integers(0, 1000))), st.integers(1, 2000)
)
@example({SegmentKey(0, 1): 3, SegmentKey(0, 2): 3, SegmentKey(0, 3): 3}, 8)
def test_a_budget_is_shared_and_moves_on(backlogs: dict[SegmentKey, int], budget: int) -> None:
    shares = admit(backlogs, budget)
    assert sum(shares.values()) == min(budget, sum(backlogs.values()))
    assert all(0 < share <= backlogs[key] for key, share in shares.items())
    assert admit(backlogs, None) == {key: backlog for key, backlog in backlogs.items() if backlog}


@given(st.dictionaries(KEYS, st.integers(0, 100)), st.integers(0, 500))
def test_a_budget_is_filled_with_the_shortest(backlogs: dict[SegmentKey, int], budget: int) -> None:
    shares = fill(backlogs, budget)
    assert sum(shares.values()) == min(budget, sum(backlogs.values()))
    whole = sorted(size for key, size in backlogs.items() if size and shares.get(key) == size)
    assert whole == sorted(size for size in backlogs.values() if size)[: len(whole)]
    assert len(shares) - len(whole) <= 1


def test_a_short_backlog_does_not_wait_for_a_long_row_that_is_not_whole(world: SourceWorld) -> None:
    world.append("long", b"x" * 5000)
    world.append("short", b"a\n")
    world.append("other", b"b\nc")
    world.export()
    reader = stream_of(world, prefix="", format="lines", maxBytesPerTrigger=100)
    limit = reader.getDefaultReadLimit()
    offset, rows = step(reader, reader.initialOffset(), limit)
    assert len(rows) == 2
    assert {b"a", b"b"} == set(payloads(rows))
    assert step(reader, offset, limit) == (offset, [])
    world.append("long", b"\n")
    world.export()
    assert payloads(step(reader, offset, limit)[1]) == [b"x" * 5000]


def test_steps_are_distinguished_from_two_offsets_alone() -> None:
    one, two, three = SegmentKey(0, 1), SegmentKey(0, 2), SegmentKey(0, 3)
    before = StreamOffset({one: 5, three: 7})
    after = next_offset(
        before,
        {one: SegmentStep(5, 9), two: SegmentStep(100, 200)},
        frozenset({three}),
        {0: Position(1, 2)},
    )
    assert after == StreamOffset({one: 9, two: 200}, {two: 100}, {0: Position(1, 2)})
    assert steps_between(before, after) == {one: SegmentStep(5, 9), two: SegmentStep(100, 200)}
    assert (
        next_offset(after, {one: SegmentStep(9, 9)}, frozenset({three}), {0: Position(1, 3)})
        is after
    )


class Life:
    """A query and the store it reads, each going its way: what was written, and what the query has
    given so far.
    """

    def __init__(self, form: str, rng: random.Random) -> None:
        self.world = new_world(containers=2)
        self.rng = rng
        self.form = form
        self.options: dict[str, Any] = {"prefix": "", "format": form, "pieceBytes": 16}
        self.options["partitionBytes"] = rng.choice([10, 100, 10**6])
        if rng.random() < 0.7:
            self.options["maxBytesPerTrigger"] = rng.choice([5, 50, 300])
        self.written: dict[str, bytes] = {}
        self.rows: list[Row] = []
        self.restart()
        self.offset: dict[str, Any] = self.reader.initialOffset()

    def restart(self) -> None:
        """Another process; the checkpoint is the same."""
        self.reader = stream_of(self.world, **self.options)

    def write(self) -> None:
        name = f"s{self.rng.randrange(4)}"
        sizes = [self.rng.choice([0, 1, 5, 40]) for _ in range(self.rng.randrange(1, 9))]
        records = [bytes(self.rng.choices(b"abc", k=size)) for size in sizes]
        framed = (
            frame_events(records)
            if self.form == "events"
            else b"".join(record + b"\n" for record in records)
        )
        before = self.written.get(name, b"")
        self.written[name] = before + framed
        # A flush cuts anywhere: the last record may lack its end until the next one.
        self.flush(name, len(before) + self.rng.choice([len(framed), max(0, len(framed) - 3)]))

    def flush(self, name: str, end: int) -> None:
        container_id = int(name[1:]) % 2
        start = self.world.segment(name, container_id).storage_length
        cuts = [self.rng.randrange(60) for _ in range(3)]
        self.world.append(name, self.written[name][start:end], cuts, container_id)

    def batch(self) -> bool:
        """One trigger, which may fail behind its planning or its reading; whether there was
        something to do.
        """
        end = json.loads(
            json.dumps(self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit()))
        )
        if end == self.offset:
            return False
        if self.rng.random() < 0.3:
            read_stream(self.reader, self.offset, end)
            self.restart()
            if self.rng.random() < 0.5:
                self.world.export(self.rng.randrange(2))
        self.rows += read_stream(self.reader, self.offset, end)
        self.offset = end
        return True

    def compact(self) -> None:
        """One segment's chunks become one, and the owner says so in a snapshot before the old
        objects are missed.
        """
        name = self.rng.choice(sorted(self.written) or ["s0"])
        container_id = int(name[1:]) % 2
        stored = self.world.segment(name, container_id).storage_length
        if stored:
            self.world.rewrite(name, self.written[name][:stored], container_id)
            self.world.export(container_id)

    def finish(self) -> None:
        """Everything comes to Tier 2, and is read."""
        for name, data in self.written.items():
            self.flush(name, len(data))
        self.world.export(0)
        self.world.export(1)
        while self.batch():
            pass

    def check(self) -> None:
        for name, data in self.written.items():
            found = sorted(
                cast("tuple[int, bytes]", (row["offset"], row["payload"]))
                for row in self.rows
                if row["segment"] == name
            )
            records = [payload for _, payload in found]
            assert len({place for place, _ in found}) == len(found)
            if self.form == "events":
                assert frame_events(records) == data
            else:
                assert (
                    b"".join(
                        records if self.form == "raw" else [record + b"\n" for record in records]
                    )
                    == data
                )


@pytest.mark.parametrize("form", ["raw", "lines", "events"])
@pytest.mark.parametrize("seed", share(range(12), 4, 1))
def test_each_row_once_whatever_happens_between(form: str, seed: int) -> None:
    rng = random.Random(f"{form} {seed}")
    life = Life(form, rng)
    for _ in range(25):
        match rng.randrange(7):
            case 0 | 1:
                life.write()
            case 2:
                life.world.export(rng.randrange(2))
            case 3:
                life.restart()
            case 4:
                life.compact()
            case _:
                life.batch()
    life.finish()
    life.check()
    PROCESS_MEMORY.drop(life.world.url.removeprefix("memory://"))


def test_a_budget_bounds_batches_at_borders_of_rows(world: SourceWorld) -> None:
    world.append("s", b"".join(b"%04d\n" % number for number in range(100)), [100, 200])
    world.append("t", b"x" * 60 + b"\n", [10])
    world.export()
    reader = stream_of(world, prefix="", format="lines", maxBytesPerTrigger=50)
    assert reader.getDefaultReadLimit() == ReadMaxBytes(50)
    start, sizes = reader.initialOffset(), []
    while True:
        end, rows = step(reader, start, ReadMaxBytes(50))
        if end == start:
            break
        sizes.append(len(rows))
        start = end
    assert sum(sizes) == 101
    assert max(sizes) <= 12
    assert len(step(stream_of(world, prefix="", format="lines"), reader.initialOffset())[1]) == 101


@pytest.mark.parametrize("form", ["raw", "lines"])
def test_available_now_ends_where_it_began(world: SourceWorld, form: str) -> None:
    world.append("s", b"one\n")
    world.export()
    reader = stream_of(world, segment="s", format=form)
    reader.prepareForTriggerAvailableNow()
    world.append("s", b"two\n")
    world.export()
    end, rows = step(reader, reader.initialOffset())
    assert b"".join(payloads(rows)).strip() == b"one"  # type: ignore[arg-type]
    assert step(reader, end) == (end, [])
    again = stream_of(world, segment="s", format=form)
    again.prepareForTriggerAvailableNow()
    assert b"".join(payloads(step(again, end)[1])).strip() == b"two"  # type: ignore[arg-type]


def test_latest_begins_behind_what_is_there_but_not_behind_what_is_new(world: SourceWorld) -> None:
    world.append("s", b"old\nhal")
    world.export()
    reader = stream_of(world, prefix="", format="lines", startingOffsets="latest")
    start = reader.initialOffset()
    assert step(reader, start) == (start, [])
    world.append("s", b"f\nnew\n")
    world.append("t", b"first\n")
    world.export()
    assert payloads(step(reader, start)[1]) == [b"half", b"new", b"first"]


def test_the_end_of_a_sealed_segment_is_a_row(world: SourceWorld) -> None:
    world.append("s", b"one\ntwo")
    world.export()
    reader = stream_of(world, segment="s", format="lines")
    end, rows = step(reader, reader.initialOffset())
    assert payloads(rows) == [b"one"]
    world.seal("s")
    world.export()
    end, rows = step(reader, end)
    assert payloads(rows) == [b"two"]
    assert step(reader, end) == (end, [])


def test_a_sealed_segment_that_ends_inside_of_an_event_is_reported(world: SourceWorld) -> None:
    world.append("s", frame_events([b"one", b"two"])[:-1])
    world.export()
    reader = stream_of(world, segment="s", format="events")
    end, rows = step(reader, reader.initialOffset())
    assert payloads(rows) == [b"one"]
    world.seal("s")
    world.export()
    with pytest.raises(
        SegmentFramingError, match="segment 's' at offset 7: the segment ends 6 bytes into an event"
    ):
        step(reader, end)


def test_events_by_chunks_end_where_chunks_do(world: SourceWorld) -> None:
    events = [b"%03d" % number for number in range(20)]
    world.append("s", frame_events(events), [7 * number for number in range(1, 20, 3)])
    world.export()
    reader = stream_of(
        world, segment="s", format="events", eventBorders="chunks", maxBytesPerTrigger=30
    )
    start, rows, batches = reader.initialOffset(), list[Row](), 0
    while True:
        end, more = step(reader, start, ReadMaxBytes(30))
        if end == start:
            break
        rows, start, batches = rows + more, end, batches + 1
    assert payloads(rows) == events
    assert batches > 3


def test_truncation_that_overtakes_is_reported_or_passed_over(world: SourceWorld) -> None:
    world.append("s", b"1\n2\n3\n4\n", [2, 4, 6])
    world.export()
    reader = stream_of(world, segment="s", format="lines", maxBytesPerTrigger=2)
    end, rows = step(reader, reader.initialOffset(), ReadMaxBytes(2))
    assert payloads(rows) == [b"1"]
    planned = reader.latestOffset(end, ALL)
    world.truncate("s", 6, delete=True)
    world.export()
    with pytest.raises(
        DataLossError, match="segment 's': bytes 2 to 6 are not there any more: truncated"
    ):
        reader.latestOffset(end, ALL)
    with pytest.raises(DataLossError, match="bytes 2 to 6"):
        reader.partitions(end, planned)
    forgiving = stream_of(world, segment="s", format="lines", failOnDataLoss="false")
    assert payloads(read_stream(forgiving, end, planned)) == [b"4"]
    after, rows = step(forgiving, end)
    assert payloads(rows) == [b"4"]
    world.append("s", b"5\n")
    world.truncate("s", 10)
    world.export()
    passed, rows = step(forgiving, after)
    assert rows == []
    assert passed != after
    assert step(forgiving, passed) == (passed, [])


def test_a_name_created_again_is_another_segment(world: SourceWorld) -> None:
    world.append("s", b"first\n")
    world.export()
    reader = stream_of(world, segment="s", format="lines")
    end, rows = step(reader, reader.initialOffset())
    planned_from = reader.initialOffset()
    world.delete("s")
    world.append("s", b"second life\n")
    world.export()
    after, more = step(reader, end)
    assert payloads([*rows, *more]) == [b"first", b"second life"]
    assert list(after["segments"]) == [f"0/{world.segment('s').segment_id}"]
    with pytest.raises(DataLossError, match=r"segment '1 of container 0': bytes 0 to 6 .* deleted"):
        reader.partitions(planned_from, end)


def test_an_older_catalog_that_turns_up_repeats_nothing(world: SourceWorld) -> None:
    objects = PROCESS_MEMORY.bucket(world.url.removeprefix("memory://")).objects
    world.append("s", b"one\n")
    world.export()
    old = set(objects)
    reader = stream_of(world, prefix="", format="lines")
    world.append("s", b"two\n")
    world.append("t", b"three\n")
    world.export()
    end, rows = step(reader, reader.initialOffset())
    assert len(rows) == 3
    for name in [name for name in objects if name not in old and name.startswith("catalog/")]:
        del objects[name]
    assert step(reader, end) == (end, [])
    with pytest.raises(SourceCatalogError, match="an older catalog has taken a newer one's place"):
        reader.partitions(step(reader, reader.initialOffset())[0], end)
    for name in [name for name in objects if name.startswith("catalog/")]:
        del objects[name]
    with pytest.raises(
        SourceCatalogError, match="the catalog of container 0 is not there any more"
    ):
        reader.partitions(reader.initialOffset(), end)


def test_a_checkpoint_of_another_store_is_refused(world: SourceWorld) -> None:
    """Both stores have a segment of the same id, as two that were begun alike do."""
    world.append("logs", b"one\ntwo\n")
    world.export()
    reader = stream_of(world, prefix="", format="lines")
    start = reader.initialOffset()
    offset, _ = step(reader, start)
    other = SourceWorld(f"memory://stream-{next(NUMBERS)}", 1, store_id=str(uuid.UUID(int=7)))
    other.append("logs", b"of another store, and longer\n")
    other.export()
    with pytest.raises(OffsetStoreError, match=r"over store 7c8c2b7e.*of store 00000000"):
        stream_of(other, prefix="", format="lines").latestOffset(offset, ALL)
    with pytest.raises(OffsetStoreError):
        # A batch that was planned before, and is run again.
        stream_of(other, prefix="", format="lines").partitions(start, offset)
    latest = stream_of(world, prefix="", startingOffsets="latest").initialOffset()
    some = stream_of(world, prefix="", startingOffsets='{"logs": 4}').initialOffset()
    assert {latest["store"], some["store"]} == {world.store_id}
    PROCESS_MEMORY.drop(other.url.removeprefix("memory://"))


def test_an_offset_that_names_no_store_is_read_and_names_it_with_the_next_change(
    world: SourceWorld,
) -> None:
    world.append("logs", b"one\n")
    world.export()
    reader = stream_of(world, prefix="", format="lines")
    offset, _ = step(reader, reader.initialOffset())
    assert offset.pop("store") == world.store_id
    assert step(reader, offset) == (offset, [])
    world.append("logs", b"two\n")
    world.export()
    later, rows = step(reader, offset)
    assert (later["store"], payloads(rows)) == (world.store_id, [b"two"])


def test_a_container_without_a_snapshot_has_nothing_yet() -> None:
    world = new_world(containers=2)
    world.append("s", b"one\n", (), 0)
    world.append("t", b"two\n", (), 1)
    reader = stream_of(world, prefix="", format="lines")
    start = reader.initialOffset()
    assert step(reader, start) == (start, [])
    world.export(1)
    end, rows = step(reader, start)
    assert payloads(rows) == [b"two"]
    world.export(0)
    assert payloads(step(reader, end)[1]) == [b"one"]
    PROCESS_MEMORY.drop(world.url.removeprefix("memory://"))
