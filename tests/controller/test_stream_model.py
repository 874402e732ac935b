"""A stream as a state machine against a plain model, which knows eighths of the keys one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from recovery.harness.simulation.virtual_loop import VirtualLoop
from segmentstore.controller.controller import Controller
from segmentstore.controller.names import (
    make_segment_id,
    segment_name,
    transaction_segment_name,
)
from segmentstore.controller.refusals import Reason, RefusedRequestError
from segmentstore.controller.stream_cuts import precedes
from segmentstore.controller.stream_history import StreamHistory
from segmentstore.controller.stream_model import ScalingPolicy, StreamConfiguration
from segmentstore.controller.transaction_model import TransactionState
from tests.controller.controller_world import LEASE_MS, STREAM, make_controller
from tests.controller.fake_store import FakeDisk, FakeProcess
from tests.support.suites import examples, sized

T = TypeVar("T")
KEYS = 8
Cut = dict[int, int]


@dataclass
class ModelSegment:
    keys: range
    data: bytes = b""
    start: int = 0
    deleted: bool = False


@dataclass
class ModelStream:
    """For each key the row of its segments, by time."""

    segments: dict[int, ModelSegment] = field(default_factory=dict)
    rows: list[list[int]] = field(default_factory=lambda: [[] for _ in range(KEYS)])
    epochs: list[list[int]] = field(default_factory=list)
    head: Cut = field(default_factory=dict)
    sealed: bool = False
    open: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """Transactions: what they have written beside each segment."""
    ended: dict[int, TransactionState] = field(default_factory=dict)

    @property
    def active(self) -> list[int]:
        return self.epochs[-1]

    def add(self, keys: range) -> int:
        segment_id = make_segment_id(len(self.segments), len(self.epochs))
        self.segments[segment_id] = ModelSegment(keys)
        for key in keys:
            self.rows[key].append(segment_id)
        return segment_id

    def begin_epoch(self) -> None:
        self.epochs.append(list(dict.fromkeys(row[-1] for row in self.rows)))

    def place(self, cut: Cut, key: int) -> tuple[int, int]:
        """Of a cut at one key: which segment of the row, and the offset in it."""
        (segment_id,) = (each for each in cut if key in self.segments[each].keys)
        return self.rows[key].index(segment_id), cut[segment_id]

    def precedes(self, first: Cut, last: Cut) -> bool:
        return all(self.place(first, key) <= self.place(last, key) for key in range(KEYS))

    def between(self, first: Cut, last: Cut) -> set[int]:
        return {
            segment_id
            for key, row in enumerate(self.rows)
            for at, segment_id in enumerate(row)
            if self.place(first, key)[0] <= at <= self.place(last, key)[0]
        }

    def successors(self, segment_id: int) -> set[int]:
        rows = [self.rows[key] for key in self.segments[segment_id].keys]
        return {
            row[row.index(segment_id) + 1] for row in rows if row.index(segment_id) + 1 < len(row)
        }

    def predecessors(self, segment_id: int) -> set[int]:
        rows = [self.rows[key] for key in self.segments[segment_id].keys]
        return {row[row.index(segment_id) - 1] for row in rows if row.index(segment_id)}


class StreamMachine(RuleBasedStateMachine):
    """One stream; the Controller is started anew now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.disk = FakeDisk()
        self.model = ModelStream()
        self.starts = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @initialize(segments=st.sampled_from([1, 2, 4]))
    def begin(self, segments: int) -> None:
        self.controller: Controller = self.run(self._start())
        for number in range(segments):
            width = KEYS // segments
            self.model.add(range(number * width, (number + 1) * width))
        self.model.begin_epoch()
        self.model.head = dict.fromkeys(self.model.active, 0)
        configuration = StreamConfiguration(scaling=ScalingPolicy(segments=segments))
        self.run(self.controller.scopes.create("s"))
        self.run(self.controller.streams.create(STREAM, configuration))

    async def _start(self) -> Controller:
        self.starts += 1
        controller = make_controller(FakeProcess(self.disk), self.starts)
        await controller.start()
        return controller

    def teardown(self) -> None:
        if hasattr(self, "controller"):
            self.run(self.controller.stop())
        self.runner.close()

    # --- changes ----------------------------------------------------------------------------------

    @rule(data=st.data(), count=st.integers(1, 9))
    @precondition(lambda self: not self.model.sealed)
    def append(self, data: st.DataObject, count: int) -> None:
        segment_id = data.draw(st.sampled_from(self.model.active))
        self.disk.write(segment_name(STREAM, segment_id), b"e" * count)
        self.model.segments[segment_id].data += b"e" * count

    @rule(data=st.data())
    def scale(self, data: st.DataObject) -> None:
        model = self.model
        active = model.active
        first = data.draw(st.integers(0, len(active) - 1))
        sealed = active[first : data.draw(st.integers(first + 1, len(active)))]
        low, high = model.segments[sealed[0]].keys.start, model.segments[sealed[-1]].keys.stop
        bounds = sorted({low, high, *data.draw(st.sets(st.integers(low, high)))})
        ranges = [range(*pair) for pair in pairwise(bounds)]
        wanted = [(keys.start / KEYS, keys.stop / KEYS) for keys in ranges]
        scaling = self.controller.streams.scale(STREAM, sealed, wanted)
        if model.sealed or model.open:
            reason = Reason.PRECONDITION_FAILED if model.open else Reason.STREAM_SEALED
            assert self.refusal(scaling) is reason
            return
        epoch, created = self.run(scaling)
        assert epoch == len(model.epochs) - 1
        assert [each.segment_id for each in created] == [model.add(keys) for keys in ranges]
        model.begin_epoch()

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        model, cut = self.model, self.draw_cut(data)
        truncating = self.controller.streams.truncate(STREAM, cut)
        fits = all(offset <= len(model.segments[each].data) for each, offset in cut.items())
        if not fits or not model.precedes(model.head, cut):
            assert self.refusal(truncating) is Reason.BAD_CUT
            return
        self.run(truncating)
        model.head = cut
        for segment_id, segment in model.segments.items():
            rows = [(key, model.rows[key].index(segment_id)) for key in segment.keys]
            segment.deleted |= all(at < model.place(cut, key)[0] for key, at in rows)
            segment.start = max(segment.start, cut.get(segment_id, 0))

    @rule()
    def seal(self) -> None:
        self.run(self.controller.streams.seal(STREAM))
        self.model.sealed = True
        self.end_open()

    @rule(data=st.data())
    def begin_transaction(self, data: st.DataObject) -> None:
        model = self.model
        creating = self.controller.create_transaction(STREAM, LEASE_MS)
        if model.sealed:
            assert self.refusal(creating) is Reason.STREAM_SEALED
            return
        identity, segments = self.run(creating)
        assert [each.segment_id for each in segments] == model.active
        model.open[identity] = {}
        for segment_id in data.draw(st.sets(st.sampled_from(model.active))):
            written = b"%d;" % len(model.ended)
            name = transaction_segment_name(segment_name(STREAM, segment_id), identity)
            self.disk.write(name, written)
            model.open[identity][segment_id] = written

    @rule(data=st.data(), commit=st.booleans())
    @precondition(lambda self: self.model.open)
    def end_transaction(self, data: st.DataObject, commit: bool) -> None:
        model, transactions = self.model, self.controller.transactions
        identity = data.draw(st.sampled_from(sorted(model.open)))
        self.run((transactions.commit if commit else transactions.abort)(STREAM, identity))
        self.run(asyncio.sleep(1))
        written = model.open.pop(identity)
        model.ended[identity] = TransactionState.COMMITTED if commit else TransactionState.ABORTED
        for segment_id, data_of in written.items() if commit else ():
            model.segments[segment_id].data += data_of

    @rule()
    def pass_time(self) -> None:
        self.run(asyncio.sleep(LEASE_MS / 1000 + 1))
        self.end_open()

    @rule()
    def restart(self) -> None:
        self.run(self.controller.stop())
        self.controller = self.run(self._start())

    def end_open(self) -> None:
        self.model.ended |= dict.fromkeys(self.model.open, TransactionState.ABORTED)
        self.model.open.clear()

    # --- questions --------------------------------------------------------------------------------

    @rule(data=st.data())
    def check_cuts(self, data: st.DataObject) -> None:
        model, streams = self.model, self.controller.streams
        first, last = self.draw_cut(data), self.draw_cut(data)
        found = self.run(streams.between(STREAM, first, last))
        assert {each.segment_id for each in found} == model.between(first, last)
        assert self.run(streams.is_cut_valid(STREAM, first))
        history: StreamHistory = self.run(streams._rows.history(STREAM))
        assert precedes(history, first, last) == model.precedes(first, last)
        some = {each: 0 for each in first if data.draw(st.booleans())}
        assert self.run(streams.is_cut_valid(STREAM, some)) == (some.keys() == first.keys())

    @rule()
    def check_all(self) -> None:
        model, streams = self.model, self.controller.streams
        current = [each.segment_id for each in self.run(streams.current(STREAM))]
        assert current == ([] if model.sealed else model.active)
        for epoch, segments in enumerate(model.epochs):
            found = self.run(streams.epoch(STREAM, epoch))
            assert [each.segment_id for each in found] == segments
        for segment_id, segment in model.segments.items():
            following = self.run(streams.successors(STREAM, segment_id))
            assert {each.segment_id for each, _ in following} == model.successors(segment_id)
            for each, before in following:
                assert set(before) == model.predecessors(each.segment_id)
            stored = self.disk.segments.get(segment_name(STREAM, segment_id))
            assert (stored is None) == segment.deleted
            if stored is not None:
                assert (stored.data, stored.start) == (segment.data, segment.start)
                assert stored.sealed == (segment_id not in current)
        assert self.run(streams.head(STREAM)) == model.head
        for identity, state in model.ended.items():
            assert self.run(self.controller.transactions.state(STREAM, identity)) is state
        left = [name for name in self.disk.segments if "#transaction" in name]
        assert len(left) == len(model.open) * len(model.active)

    # --- helpers ----------------------------------------------------------------------------------

    def draw_cut(self, data: st.DataObject) -> Cut:
        """Any segments that tile the keys."""
        cut: Cut = {}
        key = 0
        while key < KEYS:
            fitting = [each for each, of in self.model.segments.items() if of.keys.start == key]
            segment_id = data.draw(st.sampled_from(fitting))
            length = len(self.model.segments[segment_id].data)
            cut[segment_id] = data.draw(st.integers(0, length + 1))
            key = self.model.segments[segment_id].keys.stop
        return cut

    def refusal(self, work: Coroutine[Any, Any, object]) -> Reason | None:
        try:
            self.run(work)
        except RefusedRequestError as error:
            return error.reason
        return None


@sized(20)
def test_a_stream_is_as_the_model_says() -> None:
    run_state_machine_as_test(
        StreamMachine, settings=settings(max_examples=examples(180), stateful_step_count=25)
    )
