"""A store that compresses: every way of reading it gives the bytes back, and its blocks say whose
they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from segmentstore.contracts.errors import ConfigError
from tests.store.harness import open_lazy, read_all, run
from tier2.block_object import CODEC_NONE, CODEC_ZSTD, BlockHeader, parse_block_header

LARGE: Mapping[str, Any] = {
    "piece_bytes": 1 << 16,
    "fetched_bytes_max": 1 << 20,
    "append_bytes_max": 1 << 20,
    "queue_bytes_max": 4 << 20,
    "flush_bytes": 1 << 20,
    "object_bytes": 1 << 20,
    "upload_bytes_max": 4 << 20,
    "unflushed_bytes_max": 16 << 20,
    "unflushed_target_bytes": 8 << 20,
    "tail_bytes_max": 4 << 20,
}
LINE = b'{"user": "somebody", "action": "view"}\n'


def headers(store: Path) -> list[BlockHeader]:
    found = []
    for path in sorted((store / "tier2").rglob("flush-*")):
        data = path.read_bytes()
        position = 0
        while position < len(data):
            found.append(parse_block_header(data[position:]))
            position += found[-1].block_length
    return found


@pytest.mark.parametrize("extent_bytes", [64, 64 * 1024])
def test_everything_comes_back_also_merged_truncated_and_opened_without_the_setting(
    tmp_path: Path, extent_bytes: int
) -> None:
    content = LINE * 5000

    async def write() -> None:
        async with open_lazy(
            tmp_path, compression="zstd", extent_bytes=extent_bytes, **LARGE
        ) as store:
            for name in ("a", "b", "ü" * 300):
                await store.create_segment(name)
                await store.append(name, content)
            await store.flush()
            assert await read_all(store, "a") == content
            await store.merge("a", "b")
            await store.append("a", b"behind")
            await store.flush()
            await store.truncate("a", 12_345)

    async def read() -> None:
        async with open_lazy(tmp_path, **LARGE) as store:
            whole = content * 2 + b"behind"
            assert await read_all(store, "a", 12_345) == whole[12_345:]
            assert await read_all(store, "ü" * 300) == content
            for offset in range(12_345, len(whole), 17_777):
                found = await store.read("a", offset, 100)
                assert found == whole[offset : offset + len(found)] != b""
            assert store.stats()["health"] == []

    run(write())
    run(read())
    blocks = headers(tmp_path)
    large = [block for block in blocks if block.payload_length == len(content)]
    assert sorted(block.segment_name for block in large) == ["a", "b", "ü" * 300]
    assert {block.codec for block in large} == {CODEC_ZSTD}
    assert sum(block.stored_length for block in large) < 3 * len(content) * (
        0.95 if extent_bytes == 64 else 0.05
    )


def test_nothing_is_compressed_unless_asked_for(tmp_path: Path) -> None:
    async def write() -> None:
        async with open_lazy(tmp_path, **LARGE) as store:
            await store.create_segment("a")
            await store.append("a", LINE * 100)
            await store.flush()

    run(write())
    assert [(block.segment_name, block.codec) for block in headers(tmp_path)] == [("a", CODEC_NONE)]


def test_an_unknown_compression_is_refused_before_a_store_is_created(tmp_path: Path) -> None:
    async def make() -> None:
        await open_lazy(tmp_path / "store", compression="lz4")

    with pytest.raises(ConfigError, match="'lz4' is not one of none, zstd"):
        run(make())
    assert not (tmp_path / "store").exists()
