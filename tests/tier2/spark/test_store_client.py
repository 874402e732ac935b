"""StoreClient: what a store is asked over its socket is done, once, whatever breaks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest

from segmentstore import (
    AppendOutcomeUnknownError,
    AppendTooLargeError,
    ContainerStoppedError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStore,
    StoreClosedError,
    StoreDisconnectedError,
    StoreUnreachableError,
    TierUnavailableError,
)
from segmentstore.client.remote_store import RemoteStore
from segmentstore.server import wire_server
from tests.store.harness import open_tiny, read_all, run
from tier2.spark.common import store_client
from tier2.spark.common.resend_rules import RetrySchedule, is_away
from tier2.spark.common.store_client import StoreClient, StoreNotServedError

WRITER = UUID(int=1)
OTHER = UUID(int=2)


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[SegmentStore, StoreClient]]:
    async with open_tiny(folder) as store, StoreClient(str(folder)) as client:
        yield store, client


def tries_for(client: StoreClient, seconds: float) -> None:
    """How long an open client tries again; for an answer it waits as long as before.

    So a busy machine changes nothing about what comes to be said.
    """
    client._schedule = RetrySchedule(random.Random(1), seconds)


class TestRules:
    def test_what_is_away_and_what_is_a_refusal(self) -> None:
        away: list[BaseException] = [
            AppendOutcomeUnknownError(0),
            ContainerStoppedError(0),
            StoreClosedError(),
            StoreDisconnectedError("cut"),
            StoreUnreachableError("folder", "nobody"),
            TierUnavailableError("tier1", "full"),
        ]
        assert all(map(is_away, away))
        refusals = [SegmentNotFoundError("x"), AppendTooLargeError(2, 1), OSError(5, "broken")]
        assert not any(map(is_away, refusals))

    def test_tries_end_a_time_after_the_first_failure(self) -> None:
        schedule = RetrySchedule(random.Random(1), 10.0)
        now_s, waits = 100.0, []
        while (wait_s := schedule.wait_s(now_s)) is not None:
            waits.append(wait_s)
            now_s += wait_s
        assert 109.5 < now_s <= 110.0
        assert 0.01 <= waits[0] <= 0.02
        assert max(waits) <= 0.25
        # A later call is given up at once, until there was an answer.
        assert schedule.wait_s(200.0) is None
        schedule.answered()
        first_s = schedule.wait_s(200.0)
        assert first_s is not None
        assert first_s <= 0.02


class TestRequests:
    def test_do_what_the_store_does(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path / "s") as (store, client):
                assert (client.store_id, client.append_bytes_max) == (store.store_id, 4096)
                assert await client.last_event("x", WRITER) is None
                assert await client.create("x")
                assert not await client.create("x")
                assert await client.last_event("x", WRITER) == -1
                assert await client.append("x", WRITER, 5, b"five") == 0
                assert await client.append("x", WRITER, 5, b"five") is None
                assert await client.append("x", WRITER, 4, b"four") is None
                assert await client.append("x", OTHER, 0, b"zero") == 4
                assert await client.append("x", OTHER, 1, b"") == 8
                assert await client.last_event("x", WRITER) == 5
                described = await client.describe("x")
                assert described is not None
                assert (described.length, described.sealed) == (8, False)
                assert await client.names("") == ["x"]
                assert await client.names("y") == []
                assert await read_all(store, "x") == b"fivezero"
                assert await client.delete("x")
                assert not await client.delete("x")
                assert await client.describe("x") is None

        run(main())

    def test_refusals_are_the_stores_own_errors(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path / "s") as (store, client):
                with pytest.raises(SegmentNotFoundError, match="segment 'x' does not exist"):
                    await client.append("x", WRITER, 0, b"data")
                await store.create_segment("x")
                await store.seal("x")
                with pytest.raises(SegmentSealedError):
                    await client.append("x", WRITER, 0, b"data")
                with pytest.raises(AppendTooLargeError):
                    await client.append("x", OTHER, 0, bytes(4097))

        run(main())

    def test_a_merge_is_an_event_of_its_writer(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path / "s") as (store, client):
                await client.create("x")
                for name, data in (("a", b"first"), ("b", b"second"), ("c", b"third")):
                    await client.create(name)
                    await client.append(name, WRITER, 0, data)
                assert await client.merge("x", "a", WRITER, 0) == 0
                # Sent again after it was carried out, and another source under the same number.
                assert await client.merge("x", "a", WRITER, 0) is None
                assert await client.merge("x", "b", WRITER, 0) is None
                assert await client.merge("x", "b", WRITER, 1) == 5
                assert await client.merge_once("x", "c") == 11
                for missing in (
                    client.merge("x", "nothing", WRITER, 9),
                    client.merge("nothing", "x", WRITER, 9),
                    client.merge_once("x", "c"),
                ):
                    with pytest.raises(SegmentNotFoundError):
                        await missing
                assert await read_all(store, "x") == b"firstsecondthird"

        run(main())

    def test_a_merge_sent_twice_at_once_is_committed_once_and_both_get_durable_answers(
        self, tmp_path: Path
    ) -> None:
        async def main() -> None:
            async with (
                served(tmp_path / "s") as (store, one),
                StoreClient(str(tmp_path / "s")) as two,
            ):
                await one.create("x")
                for number in range(20):
                    part = f"part-{number}"
                    await one.create(part)
                    await one.append(part, WRITER, 0, b"<%d>" % number)
                    outcomes = await asyncio.gather(
                        one.merge("x", part, WRITER, number),
                        two.merge("x", part, WRITER, number),
                    )
                    assert outcomes.count(None) == 1
                    assert await one.last_event("x", WRITER) == number
                expected = b"".join(b"<%d>" % number for number in range(20))
                assert await read_all(store, "x") == expected

        run(main())

    @pytest.mark.parametrize("is_event", [True, False])
    def test_a_merge_whose_answer_was_lost_is_not_repeated(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_event: bool
    ) -> None:
        merge, calls = RemoteStore.merge, 0

        async def merge_and_cut(store: RemoteStore, *arguments: object) -> object:
            nonlocal calls
            calls += 1
            merged = await merge(store, *arguments)  # type: ignore[arg-type]
            store._connection.abort()
            raise AppendOutcomeUnknownError(None, StoreDisconnectedError(f"{merged} is lost"))

        async def main() -> None:
            async with served(tmp_path / "s") as (store, client):
                for name in ("x", "part"):
                    await client.create(name)
                await client.append("part", WRITER, 0, b"once")
                monkeypatch.setattr(RemoteStore, "merge", merge_and_cut)
                if is_event:
                    assert await client.merge("x", "part", WRITER, 0) is None
                else:
                    assert await client.merge_once("x", "part") is None
                assert calls == 2
                assert await read_all(store, "x") == b"once"

        run(main())


class TestPipelines:
    def test_of_several_clients_are_committed_in_their_orders(self, tmp_path: Path) -> None:
        async def main() -> None:
            folder = tmp_path / "s"
            async with open_tiny(folder) as store:
                await store.create_segment("x")

                async def write(client_number: int) -> None:
                    async with StoreClient(str(folder)) as client:
                        for number in range(500):
                            data = b"%d:%d\n" % (client_number, number)
                            await client.send("x", UUID(int=client_number), number, data)
                        await client.settle()

                await asyncio.gather(*map(write, range(4)))
                check_lines(await read_all(store, "x"), 4, 500)

        run(main())

    def test_of_one_writer_on_two_connections_are_committed_once(self, tmp_path: Path) -> None:
        async def main() -> None:
            folder = tmp_path / "s"
            async with open_tiny(folder) as store:
                await store.create_segment("x")

                async def write() -> None:
                    async with StoreClient(str(folder)) as client:
                        for number in range(300):
                            await client.send("x", WRITER, number, b"%d," % number)
                        await client.settle()

                await asyncio.gather(write(), write())
                expected = b"".join(b"%d," % number for number in range(300))
                assert await read_all(store, "x") == expected

        run(main())

    def test_are_committed_once_while_the_store_is_closed_and_opened_again(
        self, tmp_path: Path
    ) -> None:
        async def main() -> None:
            folder = tmp_path / "s"
            store = await open_tiny(folder)
            await store.create_segment("x")

            async def write(client_number: int) -> None:
                async with StoreClient(str(folder)) as client:
                    for number in range(400):
                        data = b"%d:%d\n" % (client_number, number)
                        await client.send("x", UUID(int=client_number), number, data)
                        if not number % 40:
                            await asyncio.sleep(0.01)
                    await client.settle()

            writers = [asyncio.ensure_future(write(number)) for number in range(3)]
            rng = random.Random(5)
            try:
                for _ in range(6):
                    await asyncio.sleep(rng.uniform(0.01, 0.05))
                    await store.close()
                    store = await open_tiny(folder)
                await asyncio.gather(*writers)
                check_lines(await read_all(store, "x"), 3, 400)
            finally:
                await store.close()

        run(main())

    def test_are_committed_once_while_connections_are_cut(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path / "s") as (store, client):
                await store.create_segment("x")
                rng = random.Random(7)
                cuts = 0
                for number in range(600):
                    await client.send("x", WRITER, number, b"%d," % number)
                    if not rng.randrange(60) and client._store is not None:
                        client._store._connection.abort()
                        cuts += 1
                await client.settle()
                expected = b"".join(b"%d," % number for number in range(600))
                assert await read_all(store, "x") == expected
                assert cuts > 3

        run(main())

    def test_end_with_their_first_refusal(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path / "s") as (store, client):
                await store.create_segment("x")
                await client.send("x", WRITER, 0, b"zero")
                await client.settle()
                await store.seal("x")
                for number in range(1, 3):
                    await client.send("x", WRITER, number, b"more")
                with pytest.raises(SegmentSealedError):
                    await client.settle()
                # Nothing of it is on its way any more, and the client can be used again.
                await client.settle()
                assert await client.last_event("x", WRITER) == 0
                with pytest.raises(SegmentNotFoundError):
                    await client.send("y", WRITER, 0, b"data")

        run(main())

    def test_of_more_writers_than_are_kept_open_are_committed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store_client, "WINDOW_EVENTS", 2)
        monkeypatch.setattr(store_client, "WRITERS_MAX", 3)

        async def main() -> None:
            async with served(tmp_path / "s") as (store, client):
                await store.create_segment("x")
                for event in range(2):
                    for number in range(20):
                        await client.send("x", UUID(int=number), event, b"!")
                        assert len(client._sent) <= 2
                        assert len(client._writers) <= 3
                await client.settle()
                assert await read_all(store, "x") == b"!" * 40

        run(main())

    def test_come_before_what_is_asked_next(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with served(tmp_path / "s") as (store, client):
                await store.create_segment("x")
                for number in range(100):
                    await client.send("x", WRITER, number, b"!")
                described = await client.describe("x")
                assert described is not None
                assert described.length == 100
                assert not client._sent

        run(main())

    def test_hold_so_many_bytes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store_client, "WINDOW_BYTES", 1000)

        async def main() -> None:
            async with served(tmp_path / "s") as (store, client):
                await store.create_segment("x")
                for number, size in enumerate([400, 400, 400, 4000, 1, 999, 1]):
                    await client.send("x", WRITER, number, bytes(size))
                    assert client._bytes <= max(1000, size)
                await client.settle()
                assert (await store.get_info("x")).length == 6201

        run(main())


class TestAway:
    def test_a_missing_server_is_reported_after_the_timeout(self, tmp_path: Path) -> None:
        async def main() -> None:
            with pytest.raises(StoreNotServedError, match="does not answer"):
                await StoreClient(str(tmp_path), timeout_s=0.1).open()

        run(main())

    def test_another_store_in_the_same_folder_is_noticed(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "one"), open_tiny(tmp_path / "two"):
                folder = tmp_path / "link"
                folder.symlink_to(tmp_path / "one")
                async with StoreClient(str(folder)) as client:
                    await client.create("x")
                    folder.unlink()
                    folder.symlink_to(tmp_path / "two")
                    client._hang_up()
                    with pytest.raises(StoreNotServedError, match="another store"):
                        await client.create("y")

        run(main())

    def test_where_there_is_no_room_it_waits_for_its_turn(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(wire_server, "LOCAL_CONNECTIONS_MAX", 1)

        async def main() -> None:
            async with served(tmp_path / "s") as (_, first):
                with pytest.raises(StoreNotServedError):
                    await StoreClient(str(tmp_path / "s"), timeout_s=0.1).open()
                waiting = StoreClient(str(tmp_path / "s"))
                opening = asyncio.ensure_future(waiting.open())
                await asyncio.sleep(0.05)
                assert not opening.done()
                first.close()
                await opening
                assert await waiting.create("x")
                waiting.close()

        run(main())

    def test_a_container_that_stopped_is_away_and_not_refusing(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s") as store:
                await store.create_segment("x")
                store._containers[0]._failed(OSError(5, "the log's disk is gone"))
                for is_append in (True, False):
                    async with StoreClient(str(tmp_path / "s")) as client:
                        tries_for(client, 0.1)
                        call = (
                            client.append("x", WRITER, 0, b"data")
                            if is_append
                            else client.last_event("x", WRITER)
                        )
                        with pytest.raises(StoreNotServedError, match="disk is gone"):
                            await call

        run(main())

    def test_a_store_that_never_answers_is_given_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def never(store: RemoteStore, name: str) -> None:
            await asyncio.Event().wait()

        async def main() -> None:
            async with served(tmp_path / "s") as (_, client):
                # From here on: a busy machine may take longer to connect.
                client._timeout_s = 0.2
                monkeypatch.setattr(RemoteStore, "get_info", never)
                with pytest.raises(StoreNotServedError, match=r"nothing came for 0\.2 s"):
                    await client.describe("x")

        run(main())


def check_lines(data: bytes, clients: int, events: int) -> None:
    """Each client's lines are there once, in its order."""
    lines = data.split(b"\n")
    for client in range(clients):
        mine = [line for line in lines if line.startswith(b"%d:" % client)]
        assert mine == [b"%d:%d" % (client, number) for number in range(events)]
