"""A bucket on a real S3 server with the fault proxy in front: what the engine talks to, and a check
around it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from recovery.harness.services.fault_proxy import FaultProxy
from recovery.harness.services.fault_rules import (
    INTERNAL_ERROR,
    INTERNAL_ERROR_AFTER_EFFECT,
    SLOW_DOWN,
    CutUpload,
    DropReply,
    DropRequest,
    Fault,
    Late,
    Status,
    Truncate,
    Twice,
)
from recovery.harness.services.s3_servers import REGION, S3Server, credentials
from recovery.harness.services.server import HOST
from segmentstore.contracts.runtime import Runtime
from tests.support.eager_loop import run_eagerly
from tier2.object_storage import StorageUnavailableError
from tier2.s3.s3_location import parse_s3_url
from tier2.s3.s3_object_storage import S3ObjectStorage

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client

BUCKET = "faults"
PART_BYTES = 5 * 1024 * 1024
"""The least that servers take for a part that is not the last."""
MULTIPART_BYTES = 2048
WHOLE = bytes(range(256)) * 4
"""Put in one request."""
IN_PARTS = random.Random(1).randbytes(3000)
"""Put in one part."""
LARGE = random.Random(2).randbytes(PART_BYTES) + b"and the rest in a second part"
PAUSE_MAX_S = 10.0
TRIES_MAX = 2000
"""Beyond what the eager loop's bound leaves time for: a server may take long to come back."""

FAULTS: dict[str, Fault] = {
    "cut before": DropRequest(),
    "cut during": CutUpload(),
    "reply lost": DropReply(),
    "applied twice, first reply": Twice("first"),
    "applied twice, second reply": Twice("second"),
    "applied late": Late(),
    "503": SLOW_DOWN,
    "503 after effect": Status(503, "SlowDown", after_effect=True),
    "500": INTERNAL_ERROR,
    "500 after effect": INTERNAL_ERROR_AFTER_EFFECT,
    "reply truncated": Truncate(),
}


_BOOKKEEPING = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


@dataclass(slots=True)
class FaultyS3:
    """`prefix` is the test's own; `client` goes to the server past the proxy."""

    server: S3Server
    proxy: FaultProxy
    client: S3Client
    prefix: str = ""
    was_killed: bool = False
    """S3Proxy, killed in the middle of an upload, leaves files of its own in the bucket. For an
    upload in parts it is an empty one, for a whole object the file that it would have renamed.
    Their names end with an id of its making, which none of ours does.
    """

    @property
    def url(self) -> str:
        """Tier 2 through the proxy."""
        query = urlencode(
            {"endpoint_url": self.proxy.endpoint_url, "region": REGION, "payload_signing": "off"}
        )
        return f"s3://{BUCKET}/{self.prefix}?{query}"

    def objects(self) -> dict[str, bytes]:
        """What is there, by name."""
        found = {}
        for name in self.names():
            body = self.client.get_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}")["Body"]
            found[name] = body.read()
            body.close()
        return found

    def names(self) -> list[str]:
        """Names of what is there."""
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=BUCKET, Prefix=f"{self.prefix}/"
        )
        return [
            each["Key"].removeprefix(f"{self.prefix}/")
            for page in pages
            for each in page.get("Contents", ())
            if not (self.was_killed and _BOOKKEEPING.search(each["Key"]))
        ]

    def uploads(self) -> list[str]:
        """Names of the unfinished uploads in parts."""
        reply = self.client.list_multipart_uploads(Bucket=BUCKET)
        keys = [each["Key"] for each in reply.get("Uploads", ())]
        return [
            key.removeprefix(f"{self.prefix}/") for key in keys if key.startswith(f"{self.prefix}/")
        ]


@contextmanager
def faulty_s3(server: S3Server) -> Iterator[FaultyS3]:
    """The running server behind a proxy, with boto3's credentials in the environment."""
    with pytest.MonkeyPatch.context() as environment, FaultProxy(HOST, server.port) as proxy:
        for name, value in credentials().items():
            environment.setenv(name, value)
        server.make_bucket(BUCKET)
        client = server.client()
        try:
            yield FaultyS3(server, proxy, client)
        finally:
            client.close()


@contextmanager
def own_part(world: FaultyS3) -> Iterator[FaultyS3]:
    """A place in the bucket that belongs to one test alone; a fault that was queued and never
    happened fails the test.
    """
    mine = FaultyS3(
        world.server, world.proxy, world.client, f"{random.SystemRandom().getrandbits(64):016x}"
    )
    try:
        yield mine
        unused = world.proxy.unused()
        assert unused == [], "these faults never happened"
    finally:
        world.proxy.heal()
        world.proxy.accept()


def new_storage(world: FaultyS3) -> S3ObjectStorage:
    location = dataclasses.replace(
        parse_s3_url(world.url), part_bytes=PART_BYTES, multipart_bytes=MULTIPART_BYTES
    )
    return S3ObjectStorage(location, Runtime())


def run(world: FaultyS3, case: Callable[[S3ObjectStorage], Awaitable[None]]) -> None:
    async def body() -> None:
        storage = new_storage(world)
        try:
            await case(storage)
        finally:
            await storage.close()

    run_eagerly(body())


async def settled(call: Callable[[], Awaitable[Any]]) -> tuple[Any, list[StorageUnavailableError]]:
    """What the engine does: again and again with a pause, until it succeeds; with the failures
    before that.
    """
    failures: list[StorageUnavailableError] = []
    pause = 0.5
    while True:
        try:
            return await call(), failures
        except StorageUnavailableError as error:
            failures.append(error)
            if len(failures) == TRIES_MAX:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, PAUSE_MAX_S)


def unique_id(number: int) -> bytes:
    return number.to_bytes(16, "big")
