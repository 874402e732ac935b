"""Object names, the packing of blocks into objects, and where a URL leads."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from tier2.block_object import parse_block_header
from tier2.file_object_storage import FileObjectStorage
from tier2.locations import MemoryStorages, check_object_storage_url, open_object_storage
from tier2.object_builder import ObjectBuilder
from tier2.object_names import (
    ObjectKind,
    ObjectName,
    check_object_name,
    object_name,
    parse_object_name,
)
from tier2.unique_ids import new_job_id, new_unique_id

KINDS: tuple[ObjectKind, ...] = ("flush", "consolidation", "compaction")
EXAMPLE = "be/00000003/0000000000000005/flush-000102030405060708090a0b0c0d0e0f"
OF_A_JOB = (
    "be/00000003/0000000000000005/compaction-00000000feedbeef-000102030405060708090a0b0c0d0e0f"
)


def test_the_name_of_the_format_page() -> None:
    assert object_name(3, 5, "flush", bytes(range(16))) == EXAMPLE
    assert object_name(3, 5, "compaction", bytes(range(16)), job_id="00000000feedbeef") == OF_A_JOB


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.sampled_from(KINDS),
    st.binary(min_size=16, max_size=16),
)
def test_names_round_trip(
    container_id: int, epoch: int, kind: ObjectKind, unique_id: bytes
) -> None:
    job_id = unique_id[:8].hex() if kind == "compaction" else None
    name = object_name(container_id, epoch, kind, unique_id, job_id=job_id)
    assert parse_object_name(check_object_name(name)) == ObjectName(
        container_id, epoch, kind, unique_id, job_id
    )


def test_foreign_names_are_not_parsed() -> None:
    assert parse_object_name(EXAMPLE) is not None
    spoiled = [
        EXAMPLE.upper(),
        EXAMPLE[1:],
        EXAMPLE + "0",
        "bf" + EXAMPLE[2:],
        EXAMPLE.replace("flush", "other"),
        "",
    ]
    for name in [*spoiled, EXAMPLE + "\n", EXAMPLE.replace("/", "-")]:
        assert parse_object_name(name) is None
    # The job is part of what a compaction is called, and of nothing else.
    for name in (
        EXAMPLE.replace("flush", "compaction"),
        OF_A_JOB.replace("compaction", "flush"),
        OF_A_JOB.upper(),
    ):
        assert parse_object_name(name) is None


def test_names_out_of_range_are_refused() -> None:
    unique_id = new_unique_id(random.Random(1))
    assert len(unique_id) == 16
    for container_id, epoch, id_ in (
        (-1, 0, unique_id),
        (2**32, 0, unique_id),
        (0, 2**64, unique_id),
        (0, 0, b""),
    ):
        with pytest.raises(ValueError):
            object_name(container_id, epoch, "flush", id_)
    for kind, job_id in (
        ("flush", new_job_id(random.Random(1))),
        ("compaction", None),
        ("compaction", "feed"),
    ):
        with pytest.raises(ValueError):
            object_name(0, 0, cast("ObjectKind", kind), unique_id, job_id=job_id)


def test_a_builder_places_blocks_one_behind_another() -> None:
    builder = ObjectBuilder(3, 5, extent_bytes=4)
    with pytest.raises(ValueError):
        builder.finish("n", 0)
    builder.add(1, 100, [b"first", b" bytes"])
    with pytest.raises(ValueError):
        builder.add(2, 0, [b""])
    builder.add(2, 7, [b"second"])
    data = b"".join(builder.parts)
    assert builder.size == len(data)
    record, chunks = builder.finish("n", 42)
    assert (record.name, record.size, record.created_ms) == ("n", len(data), 42)
    assert [(segment_id, chunk.start_offset, chunk.length) for segment_id, chunk in chunks] == [
        (1, 100, 11),
        (2, 7, 6),
    ]
    for (segment_id, chunk), placement in zip(chunks, builder.placements, strict=True):
        header = parse_block_header(data[chunk.block_offset :])
        assert (header.container_id, header.epoch, header.segment_id) == (3, 5, segment_id)
        assert chunk[3:] == (placement.block_offset, header.segment_id, header.start_offset)
        assert (header.start_offset, header.payload_length) == (chunk.start_offset, chunk.length)


def test_file_urls(tmp_path: Path) -> None:
    for url in (f"file://{tmp_path}/a%20b", f"file://localhost{tmp_path}/a%20b"):
        storage = open_object_storage(url, Runtime())
        assert isinstance(storage, FileObjectStorage)
        assert storage.url == f"file://{tmp_path}/a b"
        asyncio.run(storage.close())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "memory",
        "memory:x",
        "file:/a",
        "file://a/b",
        "file://",
        "file:///",
        "s3://",
        "s3://bucket?colour=red",
        "nobody-knows-this://x",
        "file:///a?b",
        "file://[",
    ],
)
def test_urls_that_name_no_storage(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_object_storage(url, Runtime())
    assert caught.value.setting == "tier2"


def test_a_checked_url_opens_and_touches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # No credentials are needed to check, or to open: they are searched for by the first call.
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for url in (
        "s3://bucket/a/b?endpoint_url=http://127.0.0.1:1&connections=2",
        "S3://bucket",
        "memory://x",
    ):
        check_object_storage_url(url)
        storage = open_object_storage(url, Runtime(), memory=MemoryStorages())
        assert (
            storage.url.partition("&")[0] == "s3" + url[2:].partition("&")[0] or storage.url == url
        )
        asyncio.run(storage.close())


def test_adapters_are_loaded_when_a_url_asks_for_them() -> None:
    program = (
        "import sys\n"
        "from tier2.locations import check_object_storage_url\n"
        "for url in ('file:///data', 'memory://', 's3://bucket'):\n"
        "    check_object_storage_url(url)\n"
        "print(sorted(set(sys.modules) & {'boto3', 'botocore', 'fsspec', 'paramiko', "
        "'tier2.fsspec_object_storage'}))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"


def test_memory_is_shared_by_name_and_private_without() -> None:
    async def case() -> None:
        memory = MemoryStorages()

        async def sees(url: str) -> bool:
            return await open_object_storage(url, Runtime(), memory=memory).head("x") is not None

        for url in ("memory://one", "memory://"):
            storage = open_object_storage(url, Runtime(), memory=memory)
            assert storage.url == url
            await storage.put("x", [b"1"], bytes(16))
            await storage.close()
        assert [await sees(url) for url in ("memory://one", "memory://two", "memory://")] == [
            True,
            False,
            False,
        ]
        memory.drop("one")
        assert not await sees("memory://one")

    asyncio.run(case())
