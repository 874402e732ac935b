"""Consolidator: makes one large object of many small or mostly dead ones, and has the log say so.

One consolidation at a time, in turns with everything else on the loop. Choose a group, gather its
chunks, have the store copy their blocks or download and write them anew, commit. Rules:

- flushing goes first: nothing begins while more than the flush target waits for it;
- what is read is pinned (`in_use`): the garbage collector leaves it alone until the consolidation
  has ended;
- every byte that passes through here was checked (BlockReader), and gets checksums of its own
  again;
- an object that is lost or corrupt is ignored from then on, counted and reported in `health`; it
  delays nothing;
- a group that must be downloaded waits for the `RateLimiter`; what can be copied goes on
  meanwhile;
- only the committed operation changes where bytes are read from. The old objects become garbage by
  it, and go after the deletion lag; cut off anywhere, a consolidation leaves at most an object
  without a reference;
- idle segments are consolidated as active ones. A group may have tens of thousands of them: they
  are held in batches, while an operation on them is committed. Their names do not bring them back;
- so a group may have tens of thousands of chunks, too. What is pure and passes over all of them is
  done in the writer's thread, the rest in slices. What is done with leaves memory as it goes: to
  free all of it at once would hold the event loop, too.

Memory: the living bytes of a group (at most twice `consolidation_bytes`), at most as much again of
what lies dead between them, and one run of a source. Beside them, the segments of one operation.
What a store's containers in one process hold of that is bounded by the gate that they share.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from itertools import islice
from operator import attrgetter
from typing import Any, Final, TypeVar

from durablelog.metadata_needs import ChunkNeed
from durablelog.operations import ChunkReplacement, ReplaceChunksOperation
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.errors import DataCorruptionError, TierUnavailableError
from segmentstore.contracts.health import HealthNote
from segmentstore.contracts.metadata import SegmentMetadata
from segmentstore.contracts.object_states import LiveObject
from segmentstore.contracts.rate_limiter import RateLimiter
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.sliced_sort import sorted_in_slices
from segmentstore.contracts.weighted_gate import WeightedGate
from storagewriter.config import StorageWriterConfig
from storagewriter.consolidation_plan import (
    choose_group,
    is_candidate,
    is_mostly_dead,
    is_worth_joining,
    next_batch,
    replaced_by_copy,
    replaced_by_rewrite,
    runs_of,
)
from storagewriter.data_source import WriterDataSource
from storagewriter.object_uploader import INLINE_BYTES, OPERATION_CHUNKS, ObjectUploader
from tier2.block_reader import BlockReader
from tier2.block_runs import BlockRun
from tier2.copy_plan import CopyPlan, PlacedBlock, Run, blocks_to_write, chunks_by_source, plan_copy
from tier2.extent_codec import CODECS_BY_NAME
from tier2.object_builder import ObjectBuilder
from tier2.object_storage import (
    InvalidRangeError,
    ObjectNotFoundError,
    ObjectStorage,
    StorageUnavailableError,
)

PASS_INTERVAL_S = 1.0
"""Searches for a group are at least this far apart, and come only after something changed."""
PASS_SPACINGS = 50
"""And at least so many times as far as a pass through all objects took: some hundred thousand take
a while.
"""
GATHER_SPACINGS = 10
"""And so many times as far as it took to find that a group is not worth joining: after an opening
nothing is known of any.
"""
OBJECTS_PER_TURN = 1024
CHUNKS_PER_TURN = 256
IDS_PER_TURN: Final = 4096
BLOCKS_PER_TURN = 64
"""Objects or chunks checked, ids sorted, small blocks written, before the event loop gets a turn: a
millisecond or two.
"""
LOCAL_RUN_BYTES: Final = 1024 * 1024
"""Fetched at once where a request costs nothing: the syncs of the log wait behind larger reads."""
FREED_BYTES_PER_TURN: Final = 4 * 1024 * 1024
"""At least one buffer: 0.1 ms for each MiB."""
SEGMENTS_HELD: Final = 256
"""Whose names are looked up at once."""
LEFT_ALONE_MAX = 1024
"""Objects remembered as lost or corrupt; the first is tried again when there are more."""
REWRITTEN_AT_ONCE: Final = 4
"""What may be in memory of all groups that are written anew, in `consolidation_bytes`."""

_ChunkKey = tuple[str, int, int]
P = TypeVar("P")
T = TypeVar("T")


def rewrite_gate(consolidation_bytes: int) -> WeightedGate:
    """For the consolidators of a store in one process: bounds the bytes that they hold."""
    return WeightedGate(REWRITTEN_AT_ONCE * consolidation_bytes)


class Consolidator:
    """The consolidating half of a storage writer, which owns the task that runs it.

    `rewrites` is the gate that the store's containers in this process share. `may_run()` says
    whether flushing leaves room; `on_garbage()` is called when objects may have become garbage.
    """

    def __init__(
        self,
        source: WriterDataSource,
        storage: ObjectStorage,
        config: StorageWriterConfig,
        runtime: Runtime,
        uploader: ObjectUploader,
        executor: Executor,
        rewrites: WeightedGate,
        may_run: Callable[[], bool],
        on_garbage: Callable[[], None],
    ) -> None:
        self._source = source
        self._storage = storage
        self._config = config
        self._clock = runtime.clock
        self._uploader = uploader
        self._executor = executor
        self._rewrites = rewrites
        self._may_run = may_run
        self._on_garbage = on_garbage
        self._reader = BlockReader(
            storage,
            source.metadata.container_id,
            runtime,
            header_cache_blocks=64,
            extent_bytes=config.extent_bytes,
        )
        self._backoff = Backoff(runtime.random, min_s=config.retry_min_s, max_s=config.retry_max_s)
        self._wake = asyncio.Event()
        self._wake.set()
        self._pinned: dict[str, ObjectRecord] = {}
        self._left_alone: dict[str, str] = {}
        self._limiter = RateLimiter(config.consolidation_download_bytes_per_s)
        self._deferred: set[str] = set()
        """Objects of groups that wait for the budget; they are tried again when it has room."""
        self._unjoined: set[str] = set()
        """Objects of groups that were not worth joining: no group is, of their like."""
        self.health = HealthNote(f"consolidation in tier2 {storage.url}", runtime.clock)
        self.draining = False
        """Nothing new may begin."""
        self.uploading = False
        """An object is on its way that is worth waiting for."""
        self.consolidations = self.sources = self.failures = self.refused = 0
        self.bytes_copied = self.bytes_rewritten = 0

    # --- the writer's side ------------------------------------------------------------------------

    def notice(self) -> None:
        """Tier 2 has more than before, or less of it is wanted. Cheap."""
        self._wake.set()

    def in_use(self, name: str) -> bool:
        """Whether an object is being read or copied from."""
        return name in self._pinned

    def describe(self) -> str | None:
        """None while healthy, else one sentence."""
        if self._left_alone:
            name, reason = next(iter(self._left_alone.items()))
            return (
                f"consolidation leaves {len(self._left_alone)} objects alone, the first: "
                f"{name}: {reason}"
            )
        return self.health.describe()

    async def run(self) -> None:
        """Consolidate until cancelled. Raises what a commit raises."""
        loop = asyncio.get_running_loop()
        while True:
            paid_off = (
                loop.call_later(self._limiter.wait_s(loop.time()), self._wake.set)
                if self._deferred
                else None
            )
            try:
                await self._wake.wait()
            finally:
                if paid_off is not None:
                    paid_off.cancel()
            self._wake.clear()
            begun = loop.time()
            candidates = await self._candidates()
            delay = max(PASS_INTERVAL_S, PASS_SPACINGS * (loop.time() - begun))
            try:
                spacing = await self._consolidate_what_is_worth_it(candidates)
                delay = max(delay, spacing)
                self._backoff.reset()
            except (StorageUnavailableError, TierUnavailableError) as error:
                self.health.failed(error)
                delay = max(delay, self._backoff.next_s())
                self._wake.set()
            await asyncio.sleep(delay)

    async def close(self) -> None:
        """Release what reading holds. After `run` has ended. Idempotent."""
        await self._reader.close()

    # --- one after the other ----------------------------------------------------------------------

    async def _consolidate_what_is_worth_it(self, candidates: dict[str, LiveObject]) -> float:
        """Seconds to wait before the next pass, at least."""
        loop = asyncio.get_running_loop()
        while self._may_run() and not self.draining:
            group = choose_group(candidates.values(), self._config.consolidation_bytes)
            if not group:
                # What failed before is not wanted any more.
                self.health.succeeded()
                break
            for live in group:
                del candidates[live.record.name]
            begun = loop.time()
            if not await self._consolidate(group):
                self._wake.set()
                return GATHER_SPACINGS * (loop.time() - begun)
        return 0.0

    async def _candidates(self) -> dict[str, LiveObject]:
        metadata, consolidation_bytes = self._source.metadata, self._config.consolidation_bytes
        for name in [name for name in self._left_alone if name not in metadata.objects]:
            del self._left_alone[name]
        if self._limiter.wait_s(asyncio.get_running_loop().time()) <= 0:
            self._deferred.clear()
        found: dict[str, LiveObject] = {}
        known, self._unjoined = self._unjoined, set()
        for number, (name, live) in enumerate(list(metadata.objects.items())):
            if name in known and not is_mostly_dead(live):
                self._unjoined.add(name)
            elif (
                is_candidate(live, consolidation_bytes)
                # Else what is not linked yet looks dead.
                and name not in self._uploader.in_flight
                and name not in self._left_alone
                and name not in self._deferred
            ):
                found[name] = live
            if number % OBJECTS_PER_TURN == OBJECTS_PER_TURN - 1:
                await asyncio.sleep(0)
        return found

    async def _consolidate(self, group: Sequence[LiveObject]) -> bool:
        """False: the group is not worth joining, and was only gathered."""
        known = self._source.metadata.objects
        self._pinned = {
            live.record.name: live.record for live in group if live.record.name in known
        }
        try:
            runs = await self._gather()
            if runs and not is_worth_joining(group, len(runs), self._config.consolidation_bytes):
                self._unjoined.update(self._pinned)
                await _release(runs)
                return False
            plan = await self._copy_plan(runs) if runs else None
            wait_s = self._limiter.wait_s(asyncio.get_running_loop().time())
            if runs and plan is None and wait_s > 0:
                self._deferred.update(self._pinned)
            elif runs:
                await (self._copy(plan, runs) if plan is not None else self._rewrite(runs))
                self.health.succeeded()
                self.consolidations += 1
                self.sources += len(self._pinned)
        except DataCorruptionError as error:
            self._leave_alone([name for name in self._pinned if name in str(error)], error)
        except (ObjectNotFoundError, InvalidRangeError) as error:
            self._leave_alone([error.name], error)
        finally:
            self.uploading = False
            self._pinned = {}
        return True

    def _leave_alone(self, names: Sequence[str], error: Exception) -> None:
        # What the metadata no longer refer to may be missing: nothing is wrong then.
        wanted = [name for name in names or self._pinned if name in self._source.metadata.objects]
        self.failures += bool(wanted)
        self._left_alone.update(dict.fromkeys(wanted, str(error)))
        while len(self._left_alone) > LEFT_ALONE_MAX:
            del self._left_alone[next(iter(self._left_alone))]

    async def _gather(self) -> deque[Run]:
        """Everything that is alive in the pinned objects, by segment."""
        found = await self._source.chunks_in(self._pinned)
        await self._leave_out_moved(found)
        runs: deque[Run] = deque()
        passed = 0
        for segment_id in await sorted_in_slices(_slices(found)):
            chunks = found.pop(segment_id)
            runs += runs_of(segment_id, chunks)
            passed += len(chunks)
            if passed >= CHUNKS_PER_TURN:
                passed = 0
                await asyncio.sleep(0)
        return runs

    async def _leave_out_moved(self, found: dict[int, list[ChunkRecord]]) -> None:
        """Leave out chunks where they are no more, of those that were met twice. A merge linked
        while they were searched for shows them in the source and in its target.
        """
        owners: dict[_ChunkKey, int] = {}
        doubtful: set[int] = set()
        looked = 0
        for segment_id, chunks in found.items():
            for chunk in chunks:
                other = owners.setdefault(_key(chunk), segment_id)
                if other != segment_id:
                    doubtful |= {other, segment_id}
            looked += len(chunks)
            if looked >= CHUNKS_PER_TURN:
                looked = 0
                await asyncio.sleep(0)
        segments = self._source.metadata.segments
        async with self._source.held(doubtful):
            for each in doubtful:
                if each in segments:
                    # A source that is linked in part begins behind them.
                    start, chunks = segments[each].start_offset, found[each]
                    del chunks[: bisect_right(chunks, start, key=_end_of)]
                else:
                    del found[each]

    # --- the two ways -----------------------------------------------------------------------------

    async def _copy_plan(self, runs: Sequence[Run]) -> CopyPlan | None:
        bytes_min = self._storage.compose_bytes_min
        if bytes_min is None:
            return None
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, plan_copy, runs, self._pinned, bytes_min, self._config.extent_bytes
        )

    async def _copy(self, plan: CopyPlan, runs: deque[Run]) -> None:
        self.uploading = True
        name = await self._uploader.store(
            "consolidation",
            lambda name, unique_id: self._storage.compose(name, plan.ranges, unique_id),
            self.health,
        )
        self.bytes_copied += plan.size
        record = ObjectRecord(name, plan.size, self._clock.time_ms())
        await self._commit(record, ((run, plan) for run in _taken(runs)), replaced_by_copy)

    async def _rewrite(self, runs: deque[Run]) -> None:
        loop = asyncio.get_running_loop()
        planned, held = await loop.run_in_executor(
            self._executor, self._plan_fetches, runs, self._pinned
        )
        await self._rewrites.enter(held)
        try:
            await self._write_anew(runs, planned)
        finally:
            self._rewrites.leave(held)

    async def _write_anew(self, runs: deque[Run], planned: deque[tuple[BlockRun, bool]]) -> None:
        payloads = await self._download(planned)
        if self.draining:
            return
        builder = ObjectBuilder(
            self._source.metadata.container_id,
            self._source.epoch,
            self._config.extent_bytes,
            codec=CODECS_BY_NAME[self._config.compression],
        )
        written = await self._build(builder, runs, payloads)
        payloads.clear()
        if not builder.placements:
            return
        self.uploading = True
        name = await self._uploader.store(
            "consolidation",
            lambda name, unique_id: self._storage.put(name, builder.parts, unique_id),
            self.health,
        )
        self.bytes_rewritten += builder.size
        record = builder.record(name, self._clock.time_ms())
        await _release(builder.parts, len)
        for done in (builder.placements, builder.beginnings):
            await _release(done)
        await self._commit(record, _taken(written), replaced_by_rewrite)

    async def _download(
        self, planned: deque[tuple[BlockRun, bool]]
    ) -> dict[_ChunkKey, list[Buffer]]:
        """The bytes of every chunk, in pieces: few large GETs, one after the other."""
        loop = asyncio.get_running_loop()
        payloads: dict[_ChunkKey, list[Buffer]] = {}
        for fetch, is_sparse in _taken(planned):
            if self.draining:
                return {}
            # As it is asked for, whatever becomes of it: it may be billed though it fails a check.
            self._limiter.reserve(loop.time(), fetch.fetched_bytes)
            found = await self._reader.read_run(fetch)
            for number, (chunk, _, data) in enumerate(found, start=1):
                piece = bytes(data) if is_sparse else data
                payloads.setdefault(_key(chunk), []).append(piece)
                if number % CHUNKS_PER_TURN == 0:
                    await asyncio.sleep(0)
        return payloads

    def _plan_fetches(
        self, runs: Sequence[Run], pinned: Mapping[str, ObjectRecord]
    ) -> tuple[deque[tuple[BlockRun, bool]], int]:
        """In the thread: what is fetched together, and whether little of it is wanted. Views hold
        all that was fetched; so they do not pay then. And how many bytes are held for it, about.
        """
        # A full object and the headers in it are one GET, where each is paid for.
        run_bytes = (
            LOCAL_RUN_BYTES
            if self._storage.is_local
            else self._config.object_bytes + self._config.object_bytes // 4
        )
        planned: deque[tuple[BlockRun, bool]] = deque()
        for name, chunks in chunks_by_source(runs).items():
            for fetch in self._reader.plan(name, pinned[name].size, chunks, run_bytes):
                planned.append((fetch, 2 * fetch.wanted_bytes < fetch.fetched_bytes))
        fetched = sum(fetch.fetched_bytes for fetch, _ in planned)
        return planned, max(fetched, sum(chunk.length for run in runs for chunk in run.chunks))

    async def _build(
        self, builder: ObjectBuilder, runs: deque[Run], payloads: dict[_ChunkKey, list[Buffer]]
    ) -> deque[tuple[Run, list[PlacedBlock]]]:
        """Write the runs into the builder, each in as few blocks as may be; return where they came
        to lie. Takes what it has written from `runs` and `payloads`.
        """
        written: deque[tuple[Run, list[PlacedBlock]]] = deque()
        while runs:
            some = list(islice(_taken(runs), SEGMENTS_HELD))
            names = await self._source.names_of({run.segment_id for run in some})
            for run in some:
                name = names.get(run.segment_id)
                if name is not None:
                    written.append((run, await self._write_run(builder, run, name, payloads)))
        return written

    async def _write_run(
        self,
        builder: ObjectBuilder,
        run: Run,
        name: str,
        payloads: dict[_ChunkKey, list[Buffer]],
    ) -> list[PlacedBlock]:
        loop = asyncio.get_running_loop()
        blocks: list[PlacedBlock] = []
        for chunks in blocks_to_write(run, self._config.object_bytes):
            parts = [part for chunk in chunks for part in payloads.pop(_key(chunk))]
            length = chunks[-1].end_offset - chunks[0].start_offset
            assert sum(map(len, parts)) == length, (run.segment_id, chunks[0], length)
            add = _added(builder, run.segment_id, chunks[0].start_offset, parts, name)
            if length <= INLINE_BYTES and self._config.compression == "none":
                add()
            else:
                await loop.run_in_executor(self._executor, add)
                # With a codec these are the last references.
                await _release(parts, len)
            blocks.append(
                PlacedBlock(chunks[0].start_offset, length, builder.placements[-1].block_offset)
            )
            if len(builder.placements) % BLOCKS_PER_TURN == 0:
                await asyncio.sleep(0)
        return blocks

    # --- the log ----------------------------------------------------------------------------------

    async def _commit(
        self,
        record: ObjectRecord,
        placed: Iterator[tuple[Run, P]],
        replaced: Callable[[SegmentMetadata, Run, P, str], Iterator[ChunkReplacement]],
    ) -> None:
        """Put through the log what becomes of the runs, many in an operation; at least one
        operation, so that the log knows the object. `replaced` says it by where a run was placed.
        """
        segments, committed = self._source.metadata.segments, False
        failure: Exception | None = None
        try:
            while some := next_batch(placed, OPERATION_CHUNKS):
                chunks = [
                    ChunkNeed(run.segment_id, run.chunks[0].start_offset, run.chunks[-1].end_offset)
                    for run, _ in some
                ]
                async with self._source.held({each.segment_id for each in chunks}, chunks):
                    batch = [
                        replacement
                        for run, place in some
                        if (segment := segments.get(run.segment_id)) is not None
                        for replacement in replaced(segment, run, place, record.name)
                    ]
                    if batch:
                        await self._commit_batch(record, batch)
                        committed = True
        except (TierUnavailableError, DataCorruptionError) as error:
            # What is to be replaced cannot be known: the log knows the object all the same.
            failure = error
        if not committed:
            await self._commit_batch(record, ())
        self._uploader.settled(record.name)
        if failure is not None:
            raise failure

    async def _commit_batch(self, record: ObjectRecord, batch: Sequence[ChunkReplacement]) -> None:
        await self._source.commit(ReplaceChunksOperation((record,), batch))
        self._on_garbage()
        for segment_id, _, new in batch:
            segment = self._source.metadata.segments.get(segment_id)
            found = segment.find_chunk(new[-1].start_offset) if segment is not None else None
            self.refused += found is None or found.object_name != record.name


def _added(
    builder: ObjectBuilder, segment_id: int, start_offset: int, parts: Sequence[Buffer], name: str
) -> Callable[[], None]:
    return lambda: builder.add(segment_id, start_offset, parts, segment_name=name)


def _taken(items: deque[T]) -> Iterator[T]:
    """The items, which are taken off as they are given out."""
    while items:
        yield items.popleft()


def _slices(ids: Iterable[int]) -> Iterator[list[int]]:
    """To sort 65,536 at once takes 10 ms."""
    rest = iter(ids)
    while some := list(islice(rest, IDS_PER_TURN)):
        yield some


def _no_size(_: object) -> int:
    return 0


async def _release(items: list[Any] | deque[Any], size_of: Callable[[Any], int] = _no_size) -> None:
    """Free the items, in slices; `size_of` gives the bytes of one, where they are many."""
    while items:
        freed = 0
        for _ in range(min(len(items), CHUNKS_PER_TURN)):
            freed += size_of(items.pop())
            if freed >= FREED_BYTES_PER_TURN:
                break
        await asyncio.sleep(0)


_end_of = attrgetter("end_offset")


def _key(chunk: ChunkRecord) -> _ChunkKey:
    return chunk.object_name, chunk.block_offset, chunk.block_start_offset
