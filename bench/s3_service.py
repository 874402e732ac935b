"""The S3 server the benches measure against, and the raw client that is their floor.

VersityGW where Go built it (the least CPU of all, so that more of two cores is left to what is
measured), else S3Proxy. The notes of a case say which. The floor is plain boto3 with the settings
our own client has (a CRC32C of ours for each body, payload signing off, no second check of what
comes back). It has the same bytes, the same concurrency, nothing else.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import boto3
import botocore.config

from bench.workspace import BenchError
from recovery.harness.services.fault_proxy import FaultProxy
from recovery.harness.services.fault_rules import Delay
from recovery.harness.services.installing import ServiceMissingError
from recovery.harness.services.s3_servers import (
    REGION,
    S3Proxy,
    S3Server,
    VersityGateway,
    credentials,
)
from recovery.harness.services.server import HOST, ServerFailedError
from segmentstore.contracts.checksum import crc32c

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client

MIB = 1 << 20
BUCKET = "bench"
CONNECTIONS = 16


@contextmanager
def s3_service(folder: Path, *, latency_s: float = 0.0) -> Iterator[tuple[str, str]]:
    """A server with its bucket: its endpoint, behind `latency_s` a request if asked for, and its
    name. Raises BenchError.
    """
    server: S3Server
    if VersityGateway.available():
        server = VersityGateway(folder / "server", integrity_tags=True)
    else:
        server = S3Proxy(folder / "server")
    before = dict(os.environ)
    os.environ.update(credentials())
    try:
        with server:
            server.make_bucket(BUCKET)
            if not latency_s:
                yield server.url, server.name
                return
            with FaultProxy(HOST, server.port) as proxy:
                proxy.fault(Delay(latency_s), times=None)
                yield proxy.endpoint_url, f"{server.name} behind {latency_s * 1e3:.0f} ms"
    except (ServiceMissingError, ServerFailedError) as error:
        raise BenchError(str(error)) from error
    finally:
        os.environ.clear()
        os.environ.update(before)


def tier2_url(endpoint: str, prefix: str) -> str:
    """Where a store keeps its objects on that server."""
    query = {
        "endpoint_url": endpoint,
        "region": REGION,
        "payload_signing": "off",
        "connections": CONNECTIONS,
    }
    return f"s3://{BUCKET}/{prefix}?{urlencode(query)}"


def raw_client(endpoint: str) -> S3Client:
    """Plain boto3, as lean as it gets."""
    config = botocore.config.Config(
        max_pool_connections=CONNECTIONS,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "path", "payload_signing_enabled": False},
    )
    return boto3.session.Session().client(
        "s3", endpoint_url=endpoint, region_name=REGION, config=config
    )


def checksum_of(data: bytes) -> str:
    """The CRC32C of a body as the provider wants it."""
    return base64.b64encode(crc32c(data).to_bytes(4, "big")).decode()


def raw_upload(
    client: S3Client, key: str, data: bytes, parts: int, pool: ThreadPoolExecutor
) -> None:
    """One object in `parts` equal parts, sent in parallel."""
    begun = client.create_multipart_upload(Bucket=BUCKET, Key=key, ChecksumAlgorithm="CRC32C")
    size = len(data) // parts

    def send(number: int) -> dict[str, Any]:
        body = data[number * size : (number + 1) * size]
        answer = client.upload_part(
            Bucket=BUCKET,
            Key=key,
            UploadId=begun["UploadId"],
            PartNumber=number + 1,
            Body=body,
            ChecksumCRC32C=checksum_of(body),
        )
        return {
            "PartNumber": number + 1,
            "ETag": answer["ETag"],
            "ChecksumCRC32C": answer["ChecksumCRC32C"],
        }

    done: Any = list(pool.map(send, range(parts)))
    client.complete_multipart_upload(
        Bucket=BUCKET, Key=key, UploadId=begun["UploadId"], MultipartUpload={"Parts": done}
    )


def keys_of(client: S3Client, prefix: str, size_min: int = 0) -> list[tuple[str, int]]:
    """Key and size of every object under a prefix."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    return [
        (found["Key"], found["Size"])
        for page in pages
        for found in page.get("Contents", [])
        if found["Size"] >= size_min
    ]


def raw_download(
    endpoint: str, prefix: str, range_bytes: int, threads: int, *, size_min: int = 0
) -> tuple[int, float]:
    """Ranged GETs of everything under a prefix, `threads` at a time: bytes and seconds."""
    client = raw_client(endpoint)
    ranges = [
        (key, start, min(start + range_bytes, size))
        for key, size in keys_of(client, prefix, size_min)
        for start in range(0, size, range_bytes)
    ]

    def fetch(piece: tuple[str, int, int]) -> int:
        key, start, end = piece
        data = client.get_object(Bucket=BUCKET, Key=key, Range=f"bytes={start}-{end - 1}")[
            "Body"
        ].read()
        crc32c(data)
        return len(data)

    begun = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(fetch, ranges))
    return total, time.perf_counter() - begun


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def distinct(base: bytes, number: int) -> bytes:
    """`base` with its beginning replaced by a number: equal bytes at two places would hide a
    mix-up.
    """
    return number.to_bytes(8, "big") + base[8:]


def median(values: Sequence[float]) -> float:
    """The middle one."""
    return sorted(values)[len(values) // 2]
