"""Answers to a listing of a bucket that are no listing: an error, or the whole listing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa
import pytest

from recovery.harness.services.fault_proxy import FaultProxy
from recovery.harness.services.fault_rules import Status
from recovery.harness.services.s3_servers import REGION, Moto, credentials
from recovery.harness.services.server import HOST
from tests.support.trickling import LISTING_HEADS, Trickling
from tier2.object_storage import StorageUnavailableError
from tier2.s3 import s3_client
from tier2.spark.reconcile import s3_listing
from tier2.spark.reconcile.listing import list_rest, list_shard

BUCKET = "listed"
KEYS = [f"ab/{number:05}" for number in range(5)]
NO_LISTING = Status(200, "PleaseLogIn")
"""A page with another content than a listing has."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moto]:
    """With pages of three keys."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")
        server: Moto = Moto(Path(tmp_path_factory.mktemp("moto")))
        server.start()
    try:
        server.make_bucket(BUCKET)
        client = server.client()
        for key in (*KEYS, "cd/x", "top/x"):
            client.put_object(Bucket=BUCKET, Key=key, Body=b"123")
        client.close()
        yield server
    finally:
        server.stop()


@pytest.fixture
def proxy(server: Moto, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(s3_listing, "RETRIES", 1)
    with FaultProxy(HOST, server.port) as proxy:
        yield proxy


def url_of(proxy: FaultProxy) -> str:
    return url_at(proxy.endpoint_url)


def url_at(endpoint_url: str) -> str:
    return f"s3://{BUCKET}?" + urlencode({"endpoint_url": endpoint_url, "region": REGION})


def keys_of(tables: Iterable[pa.Table]) -> list[str]:
    return [str(key) for table in tables for key in table["key"].to_pylist()]


def shard(proxy: FaultProxy) -> list[str]:
    return keys_of(list_shard(url_of(proxy), 0xAB))


def rest(proxy: FaultProxy) -> list[str]:
    return keys_of(list_rest(url_of(proxy)))


def test_an_answer_that_is_no_listing_is_no_empty_one(proxy: FaultProxy) -> None:
    for skip in range(3):
        proxy.fault(NO_LISTING, "list", skip=skip)
        assert shard(proxy) == KEYS
        proxy.heal()
        proxy.fault(NO_LISTING, "list", skip=skip)
        assert rest(proxy) == ["top/x"]
        proxy.heal()
    proxy.fault(NO_LISTING, "list", times=None)
    for listed in (shard, rest):
        with pytest.raises(StorageUnavailableError, match="PleaseLogIn"):
            listed(proxy)


@pytest.mark.usefixtures("proxy")
def test_a_listing_that_trickles_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_client, "PAGE_S", 0.2)

    async def scenario() -> None:
        trickling = Trickling(LISTING_HEADS["body"], 500)
        url = url_at(await trickling.start())
        with pytest.raises(StorageUnavailableError) as caught:
            await asyncio.to_thread(lambda: keys_of(list_rest(url)))
        assert caught.value.kind == "timeout"
        await trickling.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("keys", [["ab/1"], ["ab/0"], ["ab/3", "ab/2"], ["ab/2", "ab/2"]])
def test_keys_that_are_not_behind_those_before_are_no_listing(keys: list[str]) -> None:
    s3_listing.check_order("ab/", "ab/1", pa.chunked_array([["ab/2"], ["ab/3"]], pa.string()))
    s3_listing.check_order("ab/", "ab/1", pa.chunked_array([], pa.string()))
    with pytest.raises(StorageUnavailableError, match="not behind"):
        s3_listing.check_order("ab/", "ab/1", pa.chunked_array([keys], pa.string()))
