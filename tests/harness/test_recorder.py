"""The recorder and the observer on a real store: what is written down of calls and of what is there
afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from recovery.harness.history import Call, CallKind, CallOutcome, History, Update
from recovery.harness.observer import observe
from recovery.harness.recorder import RecordedStore, classify
from recovery.harness.records import HEADER_BYTES, Origin, append_record, parse_records
from segmentstore import (
    AppendOutcomeUnknownError,
    BadAttributeUpdateError,
    BadOffsetError,
    ConfigError,
    ContainerStoppedError,
    NotPrimaryError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStore,
    StoreClosedError,
    TierUnavailableError,
)
from tests.store.harness import attribute, open_lazy, open_tiny, run

COUNTER = attribute(1)
ADD_ONE = Update(COUNTER, "ACCUMULATE", 1)


def on_store(
    folder: Path, work: Callable[[RecordedStore], Awaitable[None]], **options: int
) -> History:
    """Let one client work on a new store; gives the history."""
    history = History()

    async def main() -> None:
        async with open_lazy(folder, runtime=None, **options) as store:
            await work(RecordedStore(store, history, 0, "client"))

    run(main())
    return history


def shown(history: History) -> list[tuple[str, str, str]]:
    return [(call.kind.value, call.outcome.value, call.error) for call in history.calls]


def test_every_kind_of_call_is_written_down_with_its_answer(tmp_path: Path) -> None:
    async def work(store: RecordedStore) -> None:
        await store.create("a", (Update(COUNTER, "REPLACE", 4),))
        assert await store.append("a", (10,)) == 0
        assert (
            await store.append("a", (1, 0, 2), expected=HEADER_BYTES + 10, updates=(ADD_ONE,))
            == HEADER_BYTES + 10
        )
        assert await (await store.writer("a", 9)).append(0, 5) == 4 * HEADER_BYTES + 13
        assert await (await store.writer("a", 9)).append(0, 5) is None
        await store.update_attributes("a", (ADD_ONE,))
        assert await store.attributes("a") == {COUNTER: 6, UUID(int=9): 0}
        assert (await store.info("a")).length == 5 * HEADER_BYTES + 18
        assert await store.read("a", 0, 38) == append_record(1, 0, 10)
        await store.create("a#transaction." + "0" * 32)
        assert await store.merge("a", "a#transaction." + "0" * 32) == 5 * HEADER_BYTES + 18
        await store.truncate("a", 38)
        await store.flush()
        await store.flush("a")
        await store.checkpoint()
        await store.seal("a")
        assert await store.segment_names() == ["a"]
        await store.delete("a")

    history = on_store(tmp_path, work)
    assert {call.outcome for call in history.calls} == {CallOutcome.OK}
    # The others are noted by clients of a wire server: they ask by other means.
    by_wire = {CallKind.SET_UP, CallKind.TABLE_UPDATE, CallKind.TABLE_REMOVE, CallKind.TABLE_READ}
    assert {call.kind for call in history.calls} == set(CallKind) - by_wire
    stamps = [stamp for call in history.calls for stamp in (call.begun, call.ended)]
    assert stamps == list(range(1, history.stamp + 1))
    results = {call.number: call.result for call in history.calls}
    assert (results[1], results[2], results[3], results[4]) == (0, 38, 4 * HEADER_BYTES + 13, None)
    batch = history.calls[2]
    assert (batch.lengths, batch.size, batch.expected, batch.updates) == (
        (1, 0, 2),
        87,
        38,
        (ADD_ONE,),
    )
    event = history.calls[3]
    assert (event.writer, event.event, event.lengths, event.size) == (9, 0, (5,), HEADER_BYTES + 5)
    assert history.calls[8].data == append_record(1, 0, 10)


def test_the_merges_of_one_call_are_written_down_one_by_one(tmp_path: Path) -> None:
    first, second = (f"a#transaction.{number:032x}" for number in range(2))

    async def work(store: RecordedStore) -> None:
        await store.create("a")
        lengths = {}
        for source, length in ((first, 4), (second, 9)):
            await store.create(source)
            await store.append(source, (length,))
            lengths[source] = await store.seal(source)
        await store.merge_batch("a", lengths)
        with pytest.raises(SegmentNotFoundError):
            await store.merge_batch("b", {first: 0, second: 0})

    merges = [call for call in on_store(tmp_path, work).calls if call.kind is CallKind.MERGE]
    assert [(call.source, call.result, call.outcome) for call in merges] == [
        (first, 0, CallOutcome.OK),
        (second, HEADER_BYTES + 4, CallOutcome.OK),
        # Those in front of one that is refused are done.
        (first, None, CallOutcome.UNKNOWN),
        (second, None, CallOutcome.UNKNOWN),
    ]
    numbers = [call.number for call in merges]
    assert [call.behind for call in merges] == [None, numbers[0], None, numbers[2]]


def test_definite_refusals_are_distinguished_from_doubt(tmp_path: Path) -> None:
    async def work(store: RecordedStore) -> None:
        async def refused(asked: Awaitable[object], error: type[Exception]) -> None:
            with pytest.raises(error):
                await asked

        await store.create("a")
        await refused(store.create("a"), SegmentExistsError)
        await refused(store.append("a", (1,), expected=7), BadOffsetError)
        await refused(
            store.append("a", (1,), updates=(Update(COUNTER, "REPLACE_IF_EQUALS", 1, 5),)),
            BadAttributeUpdateError,
        )
        await refused(store.append("b", (1,)), SegmentNotFoundError)
        await store.seal("a")
        await refused(store.append("a", (1,)), SegmentSealedError)
        await refused(store.truncate("a", 4), BadOffsetError)
        await store.store.close()
        await refused(store.append("a", (1,)), ContainerStoppedError)
        await refused(store.seal("a"), ContainerStoppedError)
        await refused(store.info("a"), ContainerStoppedError)

    assert [entry[1:] for entry in shown(on_store(tmp_path, work)) if entry[1] != "ok"] == [
        ("refused", "SegmentExistsError"),
        ("refused", "BadOffsetError"),
        ("refused", "BadAttributeUpdateError"),
        ("refused", "SegmentNotFoundError"),
        ("refused", "SegmentSealedError"),
        ("refused", "BadOffsetError"),
        ("unknown", "ContainerStoppedError"),
        ("unknown", "ContainerStoppedError"),
        ("refused", "ContainerStoppedError"),
    ]


def test_an_append_that_finds_the_queue_full_is_refused_and_whatever_else_a_tier_says_is_in_doubt(
    tmp_path: Path,
) -> None:
    async def work(store: RecordedStore) -> None:
        await store.create("a")
        asked = [store.append("a", (900,)) for _ in range(20)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert any(isinstance(outcome, TierUnavailableError) for outcome in outcomes)
        await store.settle()

    history = on_store(tmp_path, work, append_bytes_max=1000, queue_bytes_max=4000)
    refused = [call for call in history.calls if call.error == "TierUnavailableError"]
    assert {call.outcome for call in refused} == {CallOutcome.REFUSED}
    assert classify(CallKind.SEAL, TierUnavailableError("tier1", "")) is CallOutcome.UNKNOWN
    assert classify(CallKind.READ, TierUnavailableError("tier2", "")) is CallOutcome.REFUSED


@pytest.mark.parametrize(
    "error",
    [
        AppendOutcomeUnknownError(0),
        NotPrimaryError(0),
        StoreClosedError(),
        asyncio.CancelledError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_change_that_a_stop_cuts_off_is_in_doubt(error: BaseException) -> None:
    assert classify(CallKind.APPEND, error) is CallOutcome.UNKNOWN
    assert classify(CallKind.MERGE, error, at_once=True) is CallOutcome.UNKNOWN


def test_a_creation_whose_segment_is_missing_before_its_maker_checked_is_in_doubt() -> None:
    assert (
        classify(CallKind.CREATE, SegmentNotFoundError("a", "it was deleted at once"))
        is CallOutcome.UNKNOWN
    )
    assert classify(CallKind.SEAL, SegmentNotFoundError("a")) is CallOutcome.REFUSED


def test_cancelled_calls_are_in_doubt_and_end(tmp_path: Path) -> None:
    async def work(store: RecordedStore) -> None:
        await store.create("a")
        await store.create("b")
        store.append("b", (5,)).cancel()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await store.read("a", 0, 10, wait=30.0)
        await store.settle()

    assert shown(on_store(tmp_path, work))[2:] == [
        ("append", "unknown", "CancelledError"),
        ("read", "unknown", "CancelledError"),
    ]


def test_a_following_reader_is_written_down_piece_by_piece(tmp_path: Path) -> None:
    async def work(store: RecordedStore) -> None:
        await store.create("a")
        await store.append("a", (5,))
        reader = store.follow("a", 0)
        pieces = [await reader.next_piece()]
        assert reader.offset == HEADER_BYTES + 5
        await store.seal("a")
        pieces.append(await reader.next_piece())
        assert pieces == [append_record(1, 0, 5), None]

    reads = [call for call in on_store(tmp_path, work).calls if call.kind is CallKind.READ]
    assert [(call.offset, call.data, call.error) for call in reads] == [
        (0, append_record(1, 0, 5), ""),
        (HEADER_BYTES + 5, b"", "EndOfSegmentError"),
    ]


def test_a_listener_learns_of_a_call_before_the_store_does_and_after_its_answer(
    tmp_path: Path,
) -> None:
    heard: list[tuple[str, CallKind, bool]] = []

    def listen(event: str, call: Call) -> None:
        heard.append((event, call.kind, call.ended is not None))

    async def main() -> None:
        async with open_lazy(tmp_path) as store:
            recorded = RecordedStore(store, History(), 0, "client", listen)
            await recorded.create("a")
            await recorded.append("a", (1,))
            await (await recorded.writer("a", 1)).append(0, 1)

    run(main())
    kinds = (CallKind.CREATE, CallKind.APPEND, CallKind.EVENT)
    assert heard == [
        entry for kind in kinds for entry in (("begun", kind, False), ("ended", kind, True))
    ]


class OddStore:
    """Answers in unforeseen ways."""

    def append(self, name: str, data: bytes, *_: object) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, AssertionError("broken inside"))
        return future

    async def seal(self, name: str) -> int:
        raise ConfigError("seal", "no such thing")


def test_an_unforeseen_error_reaches_the_client_and_is_kept_for_those_who_do_not_check() -> None:
    history = History()

    async def main() -> None:
        odd: Any = OddStore()
        store = RecordedStore(odd, history, 0, "client")
        with pytest.raises(AssertionError):
            await store.append("a", (1,))
        unwatched = store.append("a", (1,))
        with pytest.raises(ConfigError):
            await store.seal("a")
        await store.settle()
        assert unwatched.done()
        assert [type(error) for error in store.unforeseen] == [
            AssertionError,
            ConfigError,
            AssertionError,
        ]

    run(main())
    assert {call.outcome for call in history.calls} == {CallOutcome.UNKNOWN}
    assert all(call.ended is not None for call in history.calls)


def test_an_observation_holds_everything_that_is_there(tmp_path: Path) -> None:
    history = History()

    async def write(store: SegmentStore) -> None:
        recorded = RecordedStore(store, history, 0, "client")
        for name in ("b", "a"):
            await recorded.create(name)
            for length in (0, 700, 30, 1):
                await recorded.append(name, (length,))
        await recorded.flush("a")
        await recorded.append("a", (3,), updates=(ADD_ONE,))
        await recorded.truncate("b", HEADER_BYTES + 4)
        await recorded.seal("b")

    async def main() -> None:
        async with open_lazy(tmp_path) as store:
            await write(store)
            first = await observe(store, history, 0)
        async with open_tiny(tmp_path) as store:
            second = await observe(store, history, 1, again=True, findings=["one"])
        assert history.observations == [first, second]
        assert (second.again, second.findings, second.process_run, list(second.segments)) == (
            True,
            ("one",),
            1,
            ["a", "b"],
        )
        for observation in (first, second):
            a, b = observation.segments["a"], observation.segments["b"]
            assert [piece.origin for piece in parse_records(a.content)] == [
                Origin(False, n, 0) for n in (6, 7, 8, 9, 11)
            ]
            assert (a.attributes, a.sealed, a.start_offset, a.length) == (
                {COUNTER: 1},
                False,
                0,
                len(a.content),
            )
            assert (b.attributes, b.sealed, b.start_offset) == ({}, True, HEADER_BYTES + 4)
            assert len(b.content) == b.length - b.start_offset
        assert first.ended < second.begun < second.ended

    run(main())


class AwayStore:
    """One segment, whose bytes are away for the first reads."""

    def __init__(self, store: SegmentStore, refusals: int) -> None:
        self._store = store
        self.refusals = refusals

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def read(self, name: str, offset: int, length: int) -> bytes:
        if self.refusals:
            self.refusals -= 1
            raise TierUnavailableError("tier2", "away")
        return await self._store.read(name, offset, length)


def test_an_observation_waits_for_a_tier_that_is_away_but_not_for_ever(tmp_path: Path) -> None:
    async def main() -> None:
        history = History()
        async with open_lazy(tmp_path) as store:
            recorded = RecordedStore(store, history, 0, "client")
            await recorded.create("a")
            await recorded.append("a", (5,))
            away: Any = AwayStore(store, refusals=2)
            assert len((await observe(away, history, 0)).segments["a"].content) == HEADER_BYTES + 5
            away.refusals = 1000
            with pytest.raises(TierUnavailableError):
                await observe(away, history, 0, timeout_s=0.1)
        assert len(history.observations) == 1

    run(main())
