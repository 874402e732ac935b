"""What the environment says to the S3 adapter: botocore's own variables, as docs/tier2.md has them,
on a real server.
"""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import segmentstore
from recovery.harness.services.s3_servers import ACCESS_KEY, SECRET_KEY, Moto
from recovery.harness.services.shared import shared_server
from segmentstore.contracts.runtime import Runtime
from tests.contracts.object_storage_contract import unique_id
from tier2.locations import open_object_storage
from tier2.object_storage import StorageRefusedError, StorageUnavailableError
from tier2.s3 import s3_requests
from tier2.s3.s3_client import make_client
from tier2.s3.s3_location import parse_s3_url

BUCKET = "environment"
BARE = f"s3://{BUCKET}/some?region=us-east-1"
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def _nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    shared_server(Moto).make_bucket(BUCKET)
    for name in os.environ:
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)


def put_and_read(url: str) -> None:
    async def body() -> None:
        storage = open_object_storage(url, Runtime())
        try:
            await storage.put("x", [b"there"], unique_id(1))
            assert await storage.get_range("x", 0, 5) == b"there"
            await storage.delete("x")
        finally:
            await storage.close()

    asyncio.run(body())


@pytest.mark.usefixtures("_keys")
def test_the_endpoint_is_the_environment_s_where_the_url_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", shared_server(Moto).url)
    put_and_read(f"{BARE}&addressing=path")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", NOWHERE)
    with pytest.raises(StorageUnavailableError):
        put_and_read(f"{BARE}&addressing=path")
    put_and_read(f"{BARE}&endpoint_url={shared_server(Moto).url}")


@pytest.mark.usefixtures("_keys")
@pytest.mark.parametrize(("endpoint", "signed"), [("http://host", True), ("https://host", False)])
def test_bodies_are_signed_over_plain_http_wherever_the_endpoint_is_said(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, *, signed: bool
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    client = make_client(parse_s3_url(BARE))
    assert client.meta.endpoint_url == endpoint
    assert client.meta.config.s3["payload_signing_enabled"] is signed  # type: ignore[attr-defined]
    client.close()


def test_a_profile_has_keys_and_an_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(
        "[profile lab]\nservices = lab\n[services lab]\ns3 =\n  endpoint_url = "
        f"{shared_server(Moto).url}\n"
    )
    (tmp_path / "credentials").write_text(
        f"[lab]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    put_and_read(f"{BARE}&addressing=path")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StorageRefusedError, match=r"profile \(nobody\) could not be found"):
        put_and_read(f"{BARE}&addressing=path")


@pytest.fixture
def proxied() -> Iterator[tuple[str, list[str]]]:
    """A proxy that tunnels nowhere: its URL, and where it was asked for."""
    asked: list[str] = []

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            asked.append(self.path)
            self.send_error(502)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("_keys")
def test_a_proxy_is_for_https_but_for_the_hosts_it_is_not(
    monkeypatch: pytest.MonkeyPatch, proxied: tuple[str, list[str]]
) -> None:
    url, asked = proxied
    monkeypatch.setenv("HTTPS_PROXY", url)
    put_and_read(f"{BARE}&endpoint_url={shared_server(Moto).url}")
    assert asked == []
    with pytest.raises(StorageUnavailableError):
        put_and_read(f"{BARE}&endpoint_url=https://s3.nowhere.invalid")
    assert set(asked) == {"s3.nowhere.invalid:443"}
    asked.clear()
    monkeypatch.setenv("NO_PROXY", "s3.nowhere.invalid")
    with pytest.raises(StorageUnavailableError):
        put_and_read(f"{BARE}&endpoint_url=https://s3.nowhere.invalid")
    assert asked == []


def test_a_program_that_gives_expired_credentials_is_named_and_asked_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given, config = tmp_path / "given.json", tmp_path / "config"

    def give(expiration: str) -> None:
        keys = {"AccessKeyId": ACCESS_KEY, "SecretAccessKey": SECRET_KEY}
        given.write_text(json.dumps({"Version": 1, **keys, "Expiration": expiration}))

    config.write_text(f"[default]\ncredential_process = cat {given}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))

    async def body() -> None:
        storage = open_object_storage(f"{BARE}&endpoint_url={shared_server(Moto).url}", Runtime())
        try:
            give("2001-01-01T00:00:00Z")
            with pytest.raises(StorageRefusedError, match=r"still expired.*renew") as caught:
                await storage.put("x", [b"there"], unique_id(1))
            assert caught.value.kind == "credentials"
            give("2999-01-01T00:00:00Z")
            await storage.put("x", [b"there"], unique_id(1))
            await storage.delete("x")
        finally:
            await storage.close()

    asyncio.run(body())


def test_a_program_that_hangs_is_said_until_it_gives_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config, program, hangs = tmp_path / "config", tmp_path / "program", tmp_path / "hangs"
    keys = {"Version": 1, "AccessKeyId": ACCESS_KEY, "SecretAccessKey": SECRET_KEY}
    program.write_text(
        f"#!/bin/sh\nwhile [ -e {hangs} ]; do sleep 0.05; done\necho '{json.dumps(keys)}'\n"
    )
    program.chmod(0o700)
    config.write_text(f"[default]\ncredential_process = {program}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setattr(s3_requests, "CREDENTIALS_S", 0.2)
    url = f"{BARE}&endpoint_url={shared_server(Moto).url}"

    async def body() -> None:
        async with segmentstore.open(tmp_path / "store", tier2=url):
            pass
        hangs.touch()
        async with segmentstore.open(tmp_path / "store") as store, asyncio.timeout(60):
            try:
                while not (found := store.stats()["health"]):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                (node,) = store.health()["hosts"]
                (tier2,) = [part for part in node["parts"] if part["name"] == "tier2"]
            finally:
                hangs.unlink()
            assert len(found) == 1
            assert found[0].startswith("tier2 s3://environment/some")
            assert "requests have had no credentials for" in found[0]
            assert tier2["state"] == "impaired"
            while store.stats()["health"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    asyncio.run(body())
