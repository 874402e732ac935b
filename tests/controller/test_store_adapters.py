"""The store's tables and segments behind the Controller's interfaces: the fakes do the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.errors import (
    BadOffsetError,
    SegmentNotFoundError,
    SegmentSealedError,
)
from segmentstore.contracts.runtime import Runtime
from segmentstore.controller.controller import Controller
from segmentstore.controller.host_map import HostsByContainer
from segmentstore.controller.key_value_tables import KeyValueTableConfiguration
from segmentstore.controller.metadata_tables import (
    ANY_VERSION,
    NO_ROW,
    MetadataRow,
    MetadataTables,
    RowConflictError,
)
from segmentstore.controller.names import ScopedName, segment_name, transaction_segment_name
from segmentstore.controller.remote_actions import RemoteActions
from segmentstore.controller.segment_actions import SegmentActions, SegmentState
from segmentstore.controller.store_actions import StoreActions
from segmentstore.controller.store_tables import StoreTables
from segmentstore.controller.stream_model import FIXED_ONE, ScalingPolicy
from segmentstore.controller.transaction_model import TransactionState
from segmentstore.published_hosts import PublishedAddress
from segmentstore.service import SegmentStore
from segmentstore.tables.table_service import TableService
from tests.controller.controller_world import ADDRESS, LEASE_MS, STREAM, TWO
from tests.controller.fake_store import FakeActions, FakeDisk, FakeProcess, FakeTables
from tests.server.wire_client import served
from tests.store.harness import run as run_on_real_loop
from tests.support.loop_clock import LoopClock
from tests.tables.harness import with_tables

Write = Callable[[str, bytes], Awaitable[object]]
Work = Callable[[MetadataTables, SegmentActions, Write], Awaitable[None]]


def on_fakes(work: Work) -> None:
    disk = FakeDisk()
    process = FakeProcess(disk)

    async def write(name: str, data: bytes) -> None:
        disk.write(name, data)

    async def main() -> None:
        await work(FakeTables(process), FakeActions(process), write)

    run_virtual(main())


def on_store(work: Work) -> None:
    async def main(tables: TableService, store: SegmentStore) -> None:
        async def write(name: str, data: bytes) -> None:
            await store.append(name, data)

        await work(StoreTables(store, tables), StoreActions(store, tables, LoopClock()), write)

    with_tables(main)


def over_wire(work: Work) -> None:
    """Segments that another process serves; rows are here."""

    async def main(folder: Path) -> None:
        async with served(folder) as (store, server):

            async def write(name: str, data: bytes) -> None:
                await store.append(name, data)

            actions = RemoteActions(PublishedAddress("127.0.0.1", server.port), str)
            try:
                await work(StoreTables(store, server.context.tables), actions, write)
            finally:
                await actions.close()

    with TemporaryDirectory() as folder:
        run_on_real_loop(main(Path(folder)))


on_all = pytest.mark.parametrize("run", [on_fakes, on_store, over_wire])


@on_all
def test_rows_are_written_all_or_none_and_by_version(run: Callable[[Work], None]) -> None:
    async def work(tables: MetadataTables, _: SegmentActions, __: Write) -> None:
        await tables.create("t")
        await tables.create("t")
        row = MetadataRow(b"a", NO_ROW, b"1")
        other = MetadataRow(b"b", ANY_VERSION, b"2")
        first, second = await tables.update("t", [row, other])
        assert await tables.get("t", [b"b", b"c", b"a"]) == [
            MetadataRow(b"b", second, b"2"),
            None,
            MetadataRow(b"a", first, b"1"),
        ]
        for version in (NO_ROW, second, first + second):
            with pytest.raises(RowConflictError):
                await tables.update("t", [other, MetadataRow(b"a", version, b"3")])
        with pytest.raises(RowConflictError):
            await tables.update("t", [MetadataRow(b"c", first, b"3")])
        (third,) = await tables.update("t", [MetadataRow(b"a", first, b"3")])
        assert third > first
        await tables.remove("t", [b"a", b"c"])
        assert await tables.get("t", [b"a", b"b"]) == [None, MetadataRow(b"b", second, b"2")]

    run(work)


@on_all
def test_rows_are_scanned_by_key(run: Callable[[Work], None]) -> None:
    async def work(tables: MetadataTables, _: SegmentActions, __: Write) -> None:
        await tables.create("t")
        keys = [b"a/1", b"a/10", b"a/2", b"b", b"a", b"a0"]
        await tables.update("t", [MetadataRow(key, ANY_VERSION, b"x") for key in keys])

        async def scan(after: bytes, limit: int) -> list[bytes]:
            return [row.key for row in await tables.scan("t", after, limit)]

        assert await scan(b"", 10) == sorted(keys)
        assert await scan(b"a/", 2) == [b"a/1", b"a/10"]
        assert await scan(b"a/10", 2) == [b"a/2", b"a0"]
        assert await scan(b"b", 2) == []

    run(work)


@on_all
def test_actions_may_be_repeated(run: Callable[[Work], None]) -> None:
    async def work(tables: MetadataTables, actions: SegmentActions, write: Write) -> None:
        for _ in range(2):
            await actions.create("s/a/0.#epoch.0", FIXED_ONE, 0)
        await write("s/a/0.#epoch.0", b"0123")
        await actions.create("s/a/0.#epoch.0", FIXED_ONE, 0)
        for _ in range(2):
            await actions.truncate("s/a/0.#epoch.0", 3)
        await actions.truncate("s/a/0.#epoch.0", 1)
        with pytest.raises(BadOffsetError):
            await actions.truncate("s/a/0.#epoch.0", 5)
        await actions.update_policy("s/a/0.#epoch.0", ScalingPolicy(1, 2, 3, 4))
        assert await actions.info("s/a/0.#epoch.0") == SegmentState(3, 4, sealed=False)
        for _ in range(2):
            await actions.seal("s/a/0.#epoch.0")
        assert await actions.info("s/a/0.#epoch.0") == SegmentState(3, 4, sealed=True)
        for _ in range(2):
            await actions.delete("s/a/0.#epoch.0")
        assert await actions.info("s/a/0.#epoch.0") is None
        await actions.seal("s/a/0.#epoch.0")
        await actions.truncate("s/a/0.#epoch.0", 5)
        await actions.update_policy("s/a/0.#epoch.0", FIXED_ONE)
        for _ in range(2):
            await actions.create_table("s/t_kvtable/0.#epoch.0", 5)
        for _ in range(2):
            await actions.delete_table("s/t_kvtable/0.#epoch.0")

    run(work)


@on_all
def test_merges_take_missing_sources_as_merged(run: Callable[[Work], None]) -> None:
    async def work(tables: MetadataTables, actions: SegmentActions, write: Write) -> None:
        target = segment_name(STREAM, 0)
        sources = [transaction_segment_name(target, number) for number in range(3)]
        with pytest.raises(SegmentNotFoundError):
            await actions.merge_batch(target, sources)
        await actions.create(target, FIXED_ONE, 0)
        for number in (0, 2):
            await actions.create(sources[number], FIXED_ONE, 0)
            await write(sources[number], b"%d" % number)
        for _ in range(2):
            await actions.merge_batch(target, sources)
        assert await actions.info(target) == SegmentState(0, 2, sealed=False)
        assert await actions.info(sources[0]) is None
        await actions.seal(target)
        await actions.create(sources[1], FIXED_ONE, 0)
        with pytest.raises(SegmentSealedError):
            await actions.merge_batch(target, sources)

    run(work)


def test_a_controller_on_the_store_itself() -> None:
    async def main(tables: TableService, store: SegmentStore) -> None:
        clock = LoopClock()
        controller = Controller(
            StoreTables(store, tables),
            StoreActions(store, tables, clock),
            HostsByContainer({0: ADDRESS}),
            Runtime(clock=clock),
        )
        await controller.start()
        await controller.scopes.create("s")
        streams, table = controller.streams, ScopedName("s", "t")
        await streams.create(STREAM, TWO)
        identity, segments = await controller.create_transaction(STREAM, LEASE_MS)
        for segment in segments:
            name = segment_name(STREAM, segment.segment_id)
            await store.append(transaction_segment_name(name, identity), b"in a transaction")
        await controller.transactions.commit(STREAM, identity)
        await asyncio.sleep(1)
        state = await controller.transactions.state(STREAM, identity)
        assert state is TransactionState.COMMITTED
        assert await store.read(segment_name(STREAM, 1), 0, 100) == b"in a transaction"
        await streams.truncate(STREAM, {0: 3, 1: 0})
        await streams.scale(STREAM, [0], [(0.0, 0.25), (0.25, 0.5)])
        assert await streams.head(STREAM) == {0: 3, 1: 0}
        configuration = KeyValueTableConfiguration(1, 4, 0, 0)
        await controller.key_value_tables.create(table, configuration)
        assert (await tables.info("s/t_kvtable/0.#epoch.0")).key_length == 4
        await controller.scopes.delete_recursively("s")
        left = [info.name async for info in store.list_segments()]
        assert left == ["_system/_tables/controller"]
        await controller.stop()

    with_tables(main)
