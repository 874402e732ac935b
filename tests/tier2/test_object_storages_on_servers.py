"""The S3 adapter on real servers: the contract of every object storage on S3Proxy, moto and, where
Go is, VersityGW.

The other implementations run the same contract beside their own tests: memory, file, fsspec in
memory and on SFTP, the simulated one. What a server does otherwise than S3 stands in QUIRKS, and
nowhere else.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pytest

from recovery.harness.services.fault_proxy import FaultProxy
from recovery.harness.services.fault_rules import DropReply, FlipBit
from recovery.harness.services.s3_servers import (
    Moto,
    S3Proxy,
    S3Server,
    VersityGateway,
    credentials,
)
from recovery.harness.services.server import HOST
from recovery.harness.services.shared import shared_server
from segmentstore.contracts.runtime import Runtime
from tests.contracts.object_storage_contract import PAGE_OBJECTS, ObjectStorageContract, unique_id
from tests.support.suites import slow
from tier2.object_storage import ObjectStorage, StorageRefusedError, StorageUnavailableError
from tier2.s3.s3_errors import S3RefusedError
from tier2.s3.s3_location import parse_s3_url
from tier2.s3.s3_object_storage import S3ObjectStorage

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client

MIB: Final = 1024 * 1024
BUCKET: Final = "conformance"
PREFIXES: Final = itertools.count()


QUIRKS: Final[Mapping[type[S3Server], Mapping[str, Any]]] = {
    # Its file system answers "not a directory" below an object, and that becomes a 500. No name of
    # ours lies there.
    S3Proxy: {"absent_names": ("gone", "there/gone", "there")},
    # It computes no checksum of what it is sent, and takes any secret. It checks the condition of a
    # put, and puts, in two steps with no lock: two racing puts succeed now and then.
    Moto: {
        "checks_checksums": False,
        "checks_secrets": False,
        "one_of_racing_puts_wins": False,
    },
    VersityGateway: {
        # It does not know the marker that it gives.
        "uploads_of_one_name_have_pages": False,
    },
}


@cache
def raw_client(kind: type[S3Server]) -> S3Client:
    """The bucket of this process, checked around the engine."""
    server = shared_server(kind)
    server.make_bucket(BUCKET)
    return server.client()


class S3Contract(ObjectStorageContract):
    # Three parts of the least size that S3 takes.
    large_bytes = 11 * MIB + 1
    settles_doubt = True
    checks_checksums: ClassVar[bool] = True
    checks_secrets: ClassVar[bool] = True
    kind: ClassVar[type[S3Server]]
    proxy: FaultProxy | None

    def __init_subclass__(cls, kind: type[S3Server]) -> None:
        cls.kind = kind
        for variable, value in QUIRKS[kind].items():
            setattr(cls, variable, value)

    @pytest.fixture(autouse=True)
    def _credentials(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        for name, value in credentials().items():
            monkeypatch.setenv(name, value)
        self.proxy = None
        self.prefix = f"test-{next(PREFIXES)}"
        self.client = raw_client(self.kind)
        with ExitStack() as self.closing:
            yield

    def make(self, folder: Path) -> ObjectStorage:
        location = parse_s3_url(shared_server(self.kind).location(BUCKET, self.prefix))
        location = dataclasses.replace(location, part_bytes=5 * MIB, multipart_bytes=5 * MIB)
        if self.proxy is not None:
            location = dataclasses.replace(location, endpoint_url=self.proxy.endpoint_url)
        return S3ObjectStorage(location, Runtime(), page_objects=PAGE_OBJECTS)

    def raw(self, storage: ObjectStorage) -> dict[str, bytes]:
        below = f"{self.prefix}/"
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=below)
        keys = [found["Key"] for page in pages for found in page.get("Contents", ())]
        return {
            key.removeprefix(below): self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
            for key in keys
        }

    def expect_losses(self) -> None:
        self.proxy = self.closing.enter_context(FaultProxy(HOST, shared_server(self.kind).port))

    def lose_next_put_reply(self, storage: ObjectStorage) -> None:
        assert self.proxy is not None
        self.proxy.fault(DropReply(), "put")

    def put_empty(self, storage: ObjectStorage, name: str) -> bool:
        self.client.put_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}", Body=b"")
        return True

    def begin_upload(self, storage: ObjectStorage, name: str) -> bool:
        key = f"{self.prefix}/{name}"
        upload = self.client.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
        self.client.upload_part(Bucket=BUCKET, Key=key, UploadId=upload, PartNumber=1, Body=b"1")
        return True

    def test_bytes_that_change_on_their_way_are_refused(self, tmp_path: Path) -> None:
        async def case(storage: ObjectStorage) -> None:
            assert self.proxy is not None
            self.proxy.fault(FlipBit("request"), "put")
            if self.checks_checksums:
                with pytest.raises(StorageUnavailableError):
                    await storage.put("x", [bytes(1000)], unique_id(1))
                assert self.raw(storage) == {}
            else:
                await storage.put("x", [bytes(1000)], unique_id(1))
                assert self.raw(storage) != {"x": bytes(1000)}

        self.expect_losses()
        self.run(tmp_path, case)

    def test_a_wrong_secret_is_a_refusal(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def case(storage: ObjectStorage) -> None:
            if self.checks_secrets:
                with pytest.raises(StorageRefusedError):
                    await storage.check()
            else:
                await storage.check()
            assert self.raw(storage) == {}

        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
        self.run(tmp_path, case)

    def test_an_access_key_that_is_not_known_is_a_matter_of_credentials(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def case(storage: ObjectStorage) -> None:
            if self.checks_secrets:
                with pytest.raises(S3RefusedError) as caught:
                    await storage.put("x", [b"1"], unique_id(1))
                assert caught.value.credentials, caught.value
            assert self.raw(storage) == {}

        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        self.run(tmp_path, case)

    def test_a_bucket_that_is_not_there_is_a_refusal(self, tmp_path: Path) -> None:
        async def case() -> None:
            location = parse_s3_url(shared_server(self.kind).location("not-there"))
            storage = S3ObjectStorage(location, Runtime())
            with pytest.raises(StorageRefusedError, match="not-there"):
                await storage.check()
            await storage.close()

        asyncio.run(case())


class TestS3OnS3Proxy(S3Contract, kind=S3Proxy):
    pass


@slow(1)
class TestS3OnMoto(S3Contract, kind=Moto):
    pass


if shutil.which("go"):

    @slow(1)
    class TestS3OnVersityGateway(S3Contract, kind=VersityGateway):
        pass
