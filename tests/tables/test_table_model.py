"""Tables against a plain dictionary, with crashes, lost and damaged indexes, and a compaction that
is nearly always at work.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from recovery.harness.simulation.disk_nodes import Inode
from recovery.harness.simulation.store_world import LOCATION
from segmentstore import AppendOutcomeUnknownError, ContainerStoppedError, SegmentError
from segmentstore.contracts.errors import BadOffsetError
from segmentstore.tables import stored_index
from segmentstore.tables.errors import BadKeyVersionError, KeyNotFoundError
from segmentstore.tables.index_files import index_directory
from segmentstore.tables.table_types import NO_VERSION, NOT_EXISTS, TableEntry
from tests.support.suites import size, sized
from tests.tables.harness import ON_DISK, TINY_LIMITS, TableWorld

EXAMPLES = size("TABLE_MODEL_EXAMPLES", 8, 120)

KEYS = [bytes((65 + number,)) * 4 for number in range(9)]
keys = st.sampled_from(KEYS)
values = st.binary(max_size=12) | st.integers(0, 90).map(lambda length: b"v" * length)
conditions = st.sampled_from(["none", "none", "right", "right", "absent", "wrong"])
puts = st.tuples(keys, conditions, values)
batches = st.lists(puts, min_size=1, max_size=5)
removals = st.lists(st.tuples(keys, conditions), min_size=1, max_size=4)


class PlainTable:
    """What a table must be."""

    def __init__(self) -> None:
        self.entries: dict[bytes, tuple[int, bytes]] = {}
        self.highest = -1
        """Of all versions that there ever were."""

    def expected(self, key: bytes, condition: str) -> int:
        there = self.entries.get(key)
        if condition == "none":
            return NO_VERSION
        if condition == "absent" or there is None:
            return NOT_EXISTS if condition != "wrong" else 77_777_777
        return there[0] if condition == "right" else there[0] + 1

    def refusal(self, changes: list[tuple[bytes, int]]) -> type[SegmentError] | None:
        for key, version in changes:
            there = self.entries.get(key)
            if version == NO_VERSION or (there is not None and version == there[0]):
                continue
            if there is not None:
                return BadKeyVersionError
            if version != NOT_EXISTS:
                return KeyNotFoundError
        return None

    def set(self, changes: list[tuple[bytes, int, bytes]], versions: list[int]) -> None:
        for (key, _, value), version in zip(changes, versions, strict=True):
            assert version > self.highest, "a version came back"
            self.highest = version
            self.entries[key] = version, value


class TableMachine(RuleBasedStateMachine):
    @initialize(
        on_disk=st.booleans(), key_length=st.sampled_from([0, 4]), number=st.integers(0, 99)
    )
    def begin(self, on_disk: bool, key_length: int, number: int) -> None:
        self.writes_before = stored_index.WRITE_KEYS
        stored_index.WRITE_KEYS = 3  # type: ignore[misc]
        self.tables = TableWorld(f"model/{number}", ON_DISK if on_disk else TINY_LIMITS)
        self.hash_table = key_length == 0
        self.model = PlainTable()
        self.tables.run(self.tables.tables.create("t", key_length))

    # --- changes ----------------------------------------------------------------------------------

    @rule(batch=batches)
    def update(self, batch: list[tuple[bytes, str, bytes]]) -> None:
        changes = [(key, self.model.expected(key, how), value) for key, how, value in batch]
        refusal = self.model.refusal([(key, version) for key, version, _ in changes])
        call = self.tables.tables.update("t", changes)
        if refusal is not None:
            with pytest.raises(refusal):
                self.tables.run(call)
            return
        self.model.set(changes, self.tables.run(call))

    @rule(batch=removals)
    def remove(self, batch: list[tuple[bytes, str]]) -> None:
        changes = [(key, self.model.expected(key, how)) for key, how in batch]
        refusal = self.model.refusal(changes)
        call = self.tables.tables.remove("t", changes)
        if refusal is not None:
            with pytest.raises(refusal):
                self.tables.run(call)
            return
        self.tables.run(call)
        for key, _ in changes:
            self.model.entries.pop(key, None)

    @rule(key=keys, right=st.booleans())
    def update_at_a_length(self, key: bytes, right: bool) -> None:
        length = self.tables.run(self.settled_length())
        call = self.tables.tables.update(
            "t", [(key, NO_VERSION, b"at")], length if right else length + 1
        )
        if right:
            self.model.set([(key, NO_VERSION, b"at")], self.tables.run(call))
        else:
            with pytest.raises(BadOffsetError):
                self.tables.run(call)

    async def settled_length(self) -> int:
        """When compaction has come to its end."""
        length = -1
        while length != (info := await self.tables.tables.info("t")).length:
            length = info.length
            await asyncio.sleep(1)
        return length

    @rule(callers=st.integers(2, 5), rounds=st.integers(1, 6), key=keys)
    def count_together(self, callers: int, rounds: int, key: bytes) -> None:
        """Each reads, adds one, and writes on the condition that no other caller did."""

        async def caller() -> None:
            done = 0
            while done < rounds:
                (there,) = await self.tables.tables.get("t", [key])
                version = NOT_EXISTS if there is None else there.version
                count = b"1" if there is None else b"%d" % (_number(there.value) + 1)
                try:
                    await self.tables.tables.update("t", [(key, version, count)])
                except (BadKeyVersionError, KeyNotFoundError):
                    continue
                done += 1

        async def main() -> TableEntry | None:
            await asyncio.gather(*(caller() for _ in range(callers)))
            return (await self.tables.tables.get("t", [key]))[0]

        before = self.model.entries.get(key)
        start = 0 if before is None else _number(before[1])
        after = self.tables.run(main())
        assert after is not None
        assert after.value == b"%d" % (start + callers * rounds)
        self.model.set([(key, NO_VERSION, after.value)], [after.version])

    # --- reads ------------------------------------------------------------------------------------

    @invariant()
    def all_is_there(self) -> None:
        found = self.tables.run(self.tables.tables.get("t", KEYS))
        there = {entry.key: (entry.version, entry.value) for entry in found if entry is not None}
        assert there == self.model.entries
        assert self.tables.run(self.tables.tables.info("t")).entry_count == len(there)

    @rule(limit=st.integers(1, 4), with_values=st.booleans())
    def iterate(self, limit: int, with_values: bool) -> None:
        service = self.tables.tables

        async def main() -> list[tuple[bytes, int]]:
            found: list[tuple[bytes, int]] = []
            token = begin = b""
            while True:
                pages = service.entries if with_values else service.keys
                page = await pages("t", limit, token=token, from_key=begin)
                items: list[tuple[bytes, int]] = [each[:2] for each in page[0]]
                if not items:
                    return found
                assert len(items) <= limit
                found += items
                if self.hash_table:
                    token = page.token
                else:
                    assert page.token == b""
                    begin = items[-1][0] + b"\0"

        entries = self.model.entries
        assert self.tables.run(main()) == [(key, entries[key][0]) for key in sorted(entries)]

    @rule(limit=st.integers(1, 5))
    def follow_from_the_beginning(self, limit: int) -> None:
        if not self.hash_table:
            return

        async def main() -> dict[bytes, tuple[int, bytes]]:
            found: dict[bytes, tuple[int, bytes]] = {}
            position, reached_end = 0, False
            while not reached_end:
                page = await self.tables.tables.delta("t", position, limit)
                assert len(page.entries) <= limit
                if page.should_clear:
                    found.clear()
                found.update((key, (version, value)) for key, version, value in page.entries)
                position, reached_end = page.position, page.reached_end
            return found

        # What was removed since its page is still in it.
        found = self.tables.run(main())
        assert {key: found[key] for key in self.model.entries} == self.model.entries

    # --- misfortunes ------------------------------------------------------------------------------

    @rule()
    def reopen(self) -> None:
        self.tables.reopen()

    @rule()
    def renew(self) -> None:
        self.tables.renew_tables()

    @rule()
    def flush(self) -> None:
        self.tables.run(self.tables.store.flush())

    @rule(how=st.sampled_from(["delete", "flip", "truncate"]), place=st.integers(0, 10_000))
    def damage_the_index(self, how: str, place: int) -> None:
        self.tables.run(self.tables._stop())
        self.tables.world.kill(self.tables.process)
        image = self.tables.world.image
        directory = index_directory(LOCATION)
        paths = [path for path in image.files() if path.startswith(directory)]
        for path in paths if how == "delete" else paths[place % max(1, len(paths)) :][:1]:
            if how == "delete":
                image.unlink(path)
                continue
            file = image.get(path)
            assert isinstance(file, Inode)
            content = bytearray(image.read(path))
            if not content:
                continue
            if how == "flip":
                content[place % len(content)] ^= 4
            else:
                del content[place % len(content) :]
            file.settle(content)
        self.tables._begin_process()

    @rule(
        burst=st.lists(values, min_size=1, max_size=9),
        effects=st.integers(0, 40),
        power=st.booleans(),
    )
    def crash(self, burst: list[bytes], effects: int, power: bool) -> None:
        """Each key has what was acknowledged, or what was on its way."""
        process = self.tables.process
        changes = [(key, NO_VERSION, value) for key, value in zip(KEYS, burst, strict=False)]
        tasks = [self.tables.begin(self.tables.tables.update("t", [change])) for change in changes]
        process.dies_at = process.effects + effects
        self.tables.world.run(lambda: process.dead or all(task.done() for task in tasks))
        acknowledged = [
            task.result()[0] if task.done() and task.exception() is None else None for task in tasks
        ]
        for task in tasks:
            if task.done() and (error := task.exception()) is not None:
                assert isinstance(error, AppendOutcomeUnknownError | ContainerStoppedError)
        process.dies_at = None
        self.tables.crash(power=power)
        found = self.tables.run(self.tables.tables.get("t", KEYS))
        there = {entry.key: (entry.version, entry.value) for entry in found if entry is not None}
        versions = []
        for (key, _, value), version in zip(changes, acknowledged, strict=True):
            if version is not None:
                assert there[key] == (version, value), "an acknowledged update is lost"
            if there.get(key) != self.model.entries.get(key):
                assert there[key][1] == value
                assert there[key][0] > self.model.highest
                self.model.entries[key] = there[key]
                versions.append(there[key][0])
        self.model.highest = max([self.model.highest, *versions])

    def teardown(self) -> None:
        stored_index.WRITE_KEYS = self.writes_before  # type: ignore[misc]
        with self.tables:
            self.tables.run(self.tables._stop())


def _number(value: bytes) -> int:
    return int(value) if value.isdigit() else 0


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestTableMachine.pytestmark = [  # type: ignore[attr-defined]
    pytest.mark.timeout(300 + 3 * EXAMPLES),
    sized(60),
]
