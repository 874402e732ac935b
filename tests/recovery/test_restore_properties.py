"""Lives of a store drawn at random, its log lost at the end: never a wrong byte, and all that was
flushed is there again.

Ids distinguish incarnations, and bytes of one id at one offset never change. A restored segment
must hold what that id was given there, whatever the bucket still shows. With the newest checkpoint
at hand nothing flushed may be absent.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recovery.restore import restore_store
from segmentstore import SegmentInfo, SegmentStore
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.findings import Severity
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import WorldDisk, open_tiny, read_all, until
from tests.support.suites import size, sized
from tier2.locations import PROCESS_MEMORY
from tier2.object_names import CHECKPOINT_PREFIX, parse_marker_name

EXAMPLES = size("RESTORE_EXAMPLES", 4, 10)
NAMES = ("a", "b", "a#transaction." + "0" * 32, "c")
OPTIONS: dict[str, Any] = {
    "flush_bytes": 1 << 20,
    "flush_age_s": 1000.0,
    "unflushed_target_bytes": 1 << 30,
    "checkpoint_operations": 10_000,
    "checkpoint_bytes": 1 << 20,
    "object_bytes": 1 << 20,
    "upload_bytes_max": 1 << 21,
    "tail_bytes_max": 1 << 20,
}
_numbers = itertools.count()

Key = tuple[int, int]
"""Container and segment id."""


def key_of(info: SegmentInfo) -> Key:
    return info.container_id, info.segment_id


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(NAMES), st.integers(1, 90)),
        st.tuples(st.just("flush"), st.sampled_from((None, *NAMES)), st.just(0)),
        st.tuples(st.just("merge"), st.sampled_from(NAMES), st.integers(0, 3)),
        st.tuples(st.just("truncate"), st.sampled_from(NAMES), st.integers(0, 90)),
        st.tuples(st.just("delete"), st.sampled_from(NAMES), st.just(0)),
        st.tuples(st.just("reopen"), st.none(), st.just(0)),
        st.tuples(st.just("checkpoint"), st.none(), st.just(0)),
    ),
    min_size=3,
    max_size=25,
)


class Life:
    """A store in a bucket in memory, and what each segment id was ever given."""

    def __init__(self, folder: str, containers: int, lag_s: float) -> None:
        self.folder = Path(folder)
        self.bucket = f"restore-property-{next(_numbers)}"
        self.options = {
            **OPTIONS,
            "containers": containers,
            "tier2": f"memory://{self.bucket}",
            "deletion_lag_s": lag_s,
        }
        self.runtime = Runtime(disk=WorldDisk())
        self.given: dict[Key, bytearray] = {}
        self.stored: dict[str, tuple[Key, int, int]] = {}
        self.store: SegmentStore | None = None

    async def run(self, drawn: list[tuple[str, str | None, int]]) -> None:
        self.store = await open_tiny(self.folder / "store", runtime=self.runtime, **self.options)
        try:
            for kind, name, number in drawn:
                try:
                    await self._step(kind, name, number)
                except SegmentStoreError:
                    continue  # Refused, as drawn steps often are.
            await self._note()
            # What a loss at this moment leaves: the bucket as it is now.
            objects = dict(PROCESS_MEMORY.bucket(self.bucket).objects)
        finally:
            await self.store.close()
        PROCESS_MEMORY.bucket(self.bucket).objects = objects

    async def _step(self, kind: str, name: str | None, number: int) -> None:
        assert self.store is not None
        if kind == "append" and name is not None:
            await self._append(name, number)
        elif kind == "flush":
            await self.store.flush(name)
        elif kind == "merge" and name is not None:
            source = key_of(await self.store.get_info(NAMES[number]))
            target = key_of(await self.store.get_info(name))
            await self.store.merge(name, NAMES[number])
            self.given[target] += self.given[source]
        elif kind == "truncate" and name is not None:
            info = await self.store.get_info(name)
            await self.store.truncate(name, min(info.length, info.start_offset + number))
        elif kind == "delete" and name is not None:
            await self.store.delete(name)
        elif kind == "reopen":
            await self.store.close()
            self.store = await open_tiny(
                self.folder / "store", runtime=self.runtime, **self.options
            )
        elif kind == "checkpoint":
            await self.checkpoint()

    async def _append(self, name: str, length: int) -> None:
        assert self.store is not None
        try:
            info = await self.store.get_info(name)
        except SegmentStoreError:
            info = await self.store.create_segment(name)
            self.given[key_of(info)] = bytearray()
        given = self.given[key_of(info)]
        data = bytes(
            (info.segment_id * 31 + len(given) * 7 + place) % 251 for place in range(length)
        )
        assert await self.store.append(name, data) == len(given)
        given += data

    async def checkpoint(self) -> None:
        """A checkpoint whose copies are in the bucket."""
        assert self.store is not None
        await self.store.checkpoint()
        backups = [container._checkpoints.backup for container in self.store._parts.containers]
        await until(lambda: not any(backup._wanted or backup._saving for backup in backups))

    async def _note(self) -> None:
        assert self.store is not None
        async for info in self.store.list_segments():
            self.stored[info.name] = (key_of(info), info.start_offset, info.storage_length)

    async def restored(self) -> dict[str, tuple[Key, int, bytes]]:
        """Segments of the new store: id, start offset, bytes.

        Made, checked, appended to, opened again.
        """
        url = f"memory://{self.bucket}"
        report = await restore_store(url, str(self.folder / "new"), self.runtime)
        assert [
            finding for finding in report.findings if finding.severity is Severity.HARMFUL
        ] == []
        options = {
            name: value
            for name, value in self.options.items()
            if name not in {"containers", "tier2"}
        }
        found = {}
        async with open_tiny(self.folder / "new", runtime=self.runtime, **options) as store:
            async for info in store.list_segments():
                data = await read_all(store, info.name, info.start_offset)
                assert info.start_offset + len(data) == info.length == info.storage_length
                found[info.name] = (key_of(info), info.start_offset, data)
                if not info.sealed:
                    await store.append(info.name, b"+")
            await store.flush()
        async with open_tiny(self.folder / "new", runtime=self.runtime, **options) as store:
            for name, (_, start, data) in found.items():
                info = await store.get_info(name)
                # Bytes that were given may end with one, too.
                assert await read_all(store, name, start) == data + (b"" if info.sealed else b"+")
        return found

    @property
    def is_anything_left(self) -> bool:
        """Whether the bucket holds more than the store's marker."""
        return any(
            parse_marker_name(name) is None for name in PROCESS_MEMORY.bucket(self.bucket).objects
        )

    def drop(self) -> None:
        PROCESS_MEMORY.drop(self.bucket)

    def forget_copies(self, count: int) -> None:
        """Lose the newest so many copies of the metadata of each container."""
        objects = PROCESS_MEMORY.bucket(self.bucket).objects
        copies = sorted(
            (name for name in objects if name.startswith(CHECKPOINT_PREFIX)), reverse=True
        )
        for _, names in itertools.groupby(copies, key=lambda name: name.split("/")[1]):
            for name in list(names)[:count]:
                del objects[name]


def check(life: Life, found: dict[str, tuple[Key, int, bytes]]) -> None:
    """No byte but what the id was given at that place."""
    for name, (key, start, data) in found.items():
        if key in life.given:
            assert data == life.given[key][start : start + len(data)], name


@sized(35)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps, st.integers(1, 3), st.sampled_from([0.0, 1000.0]))
def test_with_the_newest_checkpoint_all_that_was_flushed_is_there(
    drawn: list[tuple[str, str | None, int]], containers: int, lag_s: float
) -> None:
    async def whole(life: Life) -> None:
        # Appends and flushes may follow the checkpoint; what it cannot know of must not.
        tail = [step for step in drawn if step[0] in {"append", "flush"}][:6]
        await life.run([*drawn, ("checkpoint", None, 0), *tail])
        found = await life.restored()
        check(life, found)
        for name, (key, start, storage_length) in life.stored.items():
            assert name in found or storage_length == 0, name
            if name in found:
                found_key, found_start, data = found[name]
                assert (found_key, found_start) == (key, start) or storage_length == 0
                assert found_start + len(data) >= storage_length, name

    with tempfile.TemporaryDirectory() as folder:
        life = Life(folder, containers, lag_s)
        try:
            asyncio.run(whole(life))
        finally:
            life.drop()


@sized(35)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps, st.integers(1, 3), st.integers(0, 5), st.sampled_from([0.0, 1000.0]))
def test_with_an_older_checkpoint_or_none_there_is_never_a_wrong_byte(
    drawn: list[tuple[str, str | None, int]], containers: int, lost: int, lag_s: float
) -> None:
    async def whole(life: Life) -> None:
        await life.run([("append", "a", 5), ("flush", None, 0), *drawn])
        life.forget_copies(lost)
        if life.is_anything_left:
            check(life, await life.restored())

    with tempfile.TemporaryDirectory() as folder:
        life = Life(folder, containers, lag_s)
        try:
            asyncio.run(whole(life))
        finally:
            life.drop()
