"""Listings as a server answers them: in bounded parts, bounded in number, ended with what asked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from segmentstore import SegmentStore
from segmentstore.contracts.runtime import Runtime
from segmentstore.server import store_listings
from segmentstore.server.authorization import TokenAuthorization
from segmentstore.server.server_context import ServerContext
from segmentstore.server.store_listings import LISTINGS_MAX
from segmentstore.tables.table_service import TableService
from segmentstore.wire.store_commands import (
    BeginListing,
    CloseListing,
    ContinueListing,
    RowsGiven,
)
from segmentstore.wire.tokens import TokenKey
from tests.server.test_store_commands import refusal, spoken
from tests.server.wire_client import WireClient
from tests.store.harness import UNFLUSHED, open_tiny, run, until

LISTINGS = ("frames", "operations", "blocks", "garbage", "collected-garbage")


async def fill(store: SegmentStore, count: int) -> None:
    for number in range(count):
        await store.create_segment(f"s{number}")
        await store.append(f"s{number}", bytes(50))
        await store.flush()


async def part(client: WireClient, request: Any) -> tuple[list[Any], bool]:
    reply = await client.ask(request, RowsGiven)
    assert reply.request_id == request.request_id
    return json.loads(bytes(reply.rows)), reply.more


def test_a_part_is_bounded_in_rows_and_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with spoken(tmp_path, **UNFLUSHED) as (store, client):
            await fill(store, 10)
            monkeypatch.setattr(store_listings, "ROWS_OF_A_PART", 4)
            first, more = await part(client, BeginListing(1, "blocks", ""))
            assert (len(first), more) == (4, True)
            monkeypatch.setattr(store_listings, "PART_BYTES", 1)
            second, more = await part(client, ContinueListing(2, 1))
            assert (len(second), more) == (1, True)
            monkeypatch.undo()
            rest, more = await part(client, ContinueListing(3, 1))
            assert (len(rest), more) == (5, False)
            names = [row[3] for row in first + second + rest]
            assert names == sorted(f"s{number}" for number in range(10))

    run(main())


def test_one_that_has_ended_or_never_was_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with spoken(tmp_path) as (store, client):
            await fill(store, 1)
            assert (await part(client, BeginListing(1, "operations", "")))[1] is False
            requests = (
                ContinueListing(2, 1),
                ContinueListing(3, 99),
                BeginListing(4, "secrets", ""),
            )
            for request in requests:
                client.put(request)
                refused = refusal(await client.take())
                assert refused == (request.request_id, "InvalidArgumentError")
            client.put(BeginListing(5, "blocks", "absent"))
            assert refusal(await client.take()) == (5, "SegmentNotFoundError")
            # A refused one counts as ended.
            for number in range(6, 8 + LISTINGS_MAX):
                client.put(BeginListing(number, "blocks", "absent"))
                assert refusal(await client.take()) == (number, "SegmentNotFoundError")

    run(main())


def test_a_connection_has_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_listings, "ROWS_OF_A_PART", 1)

    async def main() -> None:
        async with spoken(tmp_path, **UNFLUSHED) as (store, client):
            await fill(store, 5)
            for number in range(LISTINGS_MAX):
                assert (await part(client, BeginListing(number, "blocks", "")))[1]
            client.put(BeginListing(90, "blocks", ""))
            assert refusal(await client.take()) == (90, "InvalidArgumentError")
            client.put(CloseListing(0), CloseListing(0), CloseListing(99))
            assert (await part(client, BeginListing(91, "blocks", "")))[1]
            client.put(ContinueListing(92, 0))
            assert refusal(await client.take()) == (92, "InvalidArgumentError")

    run(main())


def test_one_is_ended_by_a_close_in_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_listings, "ROWS_OF_A_PART", 1)

    async def main() -> None:
        async with spoken(tmp_path, **UNFLUSHED) as (store, client):
            await fill(store, 3)
            for number in range(LISTINGS_MAX + 1):
                client.put(BeginListing(number, "blocks", ""), CloseListing(number))
                # No call waits for it: the answer says that nothing was begun.
                assert refusal(await client.take()) == (number, "InvalidArgumentError")
            many = [BeginListing(number, "blocks", "") for number in range(50, 51 + LISTINGS_MAX)]
            client.put(*many, CloseListing(50), BeginListing(90, "blocks", ""))
            replies = [await client.take() for _ in range(len(many) + 1)]
            begun = {each.request_id for each in replies if isinstance(each, RowsGiven)}
            assert begun == {51, 52, 53, 90}

    run(main())


@pytest.mark.parametrize("listing", LISTINGS)
def test_a_connection_that_ends_ends_its_listings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listing: str
) -> None:
    monkeypatch.setattr(store_listings, "ROWS_OF_A_PART", 1)
    ended: list[str] = []

    class Watched(store_listings._Listing):
        async def close(self) -> None:
            await super().close()
            ended.append(listing)

    monkeypatch.setattr(store_listings, "_Listing", Watched)

    async def main() -> None:
        async with spoken(tmp_path, **{**UNFLUSHED, "deletion_lag_s": 1000.0}) as (store, client):
            await fill(store, 3)
            for number in range(3):
                await store.delete(f"s{number}")
            await fill(store, 3)
            await part(client, BeginListing(1, listing, ""))
            client.put(ContinueListing(2, 1))
            await client.close()
            await until(lambda: bool(ended))
            await store.append("s0", b"the store goes on")

    run(main())


def test_a_port_with_tokens_refuses_them(tmp_path: Path) -> None:
    async def main() -> None:
        authorization = TokenAuthorization(TokenKey(b"k" * 64), Runtime().clock)
        async with spoken(tmp_path, authorization=authorization) as (_, client):
            client.put(BeginListing(1, "frames", ""), CloseListing(1), ContinueListing(2, 1))
            refused = [refusal(await client.take()) for _ in range(2)]
            assert refused == [(1, "AccessRefusedError"), (2, "AccessRefusedError")]

    run(main())


def test_others_on_the_loop_have_turns_during_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_listings, "ROWS_OF_A_TURN", 2)

    async def main() -> None:
        async with open_tiny(tmp_path / "s", **UNFLUSHED) as store:
            await fill(store, 20)
            context = ServerContext(store, TableService(store), Runtime())
            listings = store_listings.StoreListings(context)
            turns = 0
            listing = asyncio.ensure_future(listings.begin(BeginListing(1, "blocks", "")))
            while not listing.done():
                turns += 1
                await asyncio.sleep(0)
            assert turns >= 10

    run(main())
