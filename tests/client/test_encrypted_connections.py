"""`segmentstore.connect` to a port with TLS: certificates, tokens, what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import segmentstore
import segmentstore.blocking
from segmentstore import AccessRefusedError, InvalidArgumentError, StoreUnreachableError
from segmentstore.contracts.runtime import Runtime
from segmentstore.server.authorization import TokenAuthorization
from segmentstore.wire.tokens import TokenKey
from tests.server.test_tls import files_of, trusting
from tests.server.wire_client import served
from tests.store.certificates import make_certificates
from tests.store.harness import run


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_certificates(tmp_path / "keys")
    return tmp_path / "keys"


def test_a_port_with_tokens_refuses(keys: Path, tmp_path: Path) -> None:
    async def main() -> None:
        runtime = Runtime()
        authorization = TokenAuthorization(TokenKey(b"k" * 64), runtime.clock)
        async with served(tmp_path, certificates=files_of(keys), authorization=authorization) as (
            _,
            server,
        ):
            with pytest.raises(AccessRefusedError, match="no token"):
                await segmentstore.connect(f"127.0.0.1:{server.port}", tls=trusting(keys))

    run(main())


def test_a_port_with_a_certificate_that_is_not_trusted_or_not_asked_for(
    keys: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with served(tmp_path, certificates=files_of(keys)) as (_, server):
            place = f"127.0.0.1:{server.port}"
            with pytest.raises(StoreUnreachableError, match="certificate verify failed"):
                await segmentstore.connect(place, tls=trusting(keys, "other"))
            with pytest.raises(StoreUnreachableError, match="has closed it"):
                await segmentstore.connect(place)
            async with segmentstore.connect(place, tls=trusting(keys)) as store:
                await store.create_segment("x")

    run(main())


def test_a_port_without_tls_cannot_be_encrypted(keys: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as (_, server):
            tls = trusting(keys)
            with pytest.raises(StoreUnreachableError):
                await segmentstore.connect(f"127.0.0.1:{server.port}", tls=tls)
            with pytest.raises(InvalidArgumentError, match="not encrypted"):
                _ = segmentstore.connect(tmp_path / "s", tls=tls)

    run(main())


def test_a_blocking_store_over_tls(keys: Path, tmp_path: Path) -> None:
    def use(place: str) -> None:
        with segmentstore.blocking.connect(place, tls=trusting(keys)) as store:
            store.create_segment("x")
            assert store.append("x", b"abc") == 0
            assert b"".join(store.reader("x")) == b"abc"
            assert [each.what for each in store.list_operations() if each.kind == "create"]

    async def main() -> None:
        async with served(tmp_path, certificates=files_of(keys)) as (_, server):
            await asyncio.to_thread(use, f"127.0.0.1:{server.port}")

    run(main())
