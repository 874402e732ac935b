"""What a user writes: mypy and pyright, both strict, have nothing to say about it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Unpack

import segmentstore
import segmentstore.blocking
from segmentstore import (
    AttributeUpdate,
    BadOffsetError,
    InvalidArgumentError,
    SegmentInfo,
    SegmentStore,
    StoreOptions,
    StoreStats,
    UpdateType,
    blocking,
)


@asynccontextmanager
async def opened(folder: Path, **options: Unpack[StoreOptions]) -> AsyncGenerator[SegmentStore]:
    """A wrapper that hands settings on."""
    async with segmentstore.open(folder, **options) as store:
        yield store


async def coroutines() -> None:
    """The calls of the README, and what they give."""
    settings: StoreOptions = {"tier2": Path("objects"), "flush_age_s": 5}
    settings["consolidation"] = False
    async with opened(Path("store"), **settings) as store:
        info: SegmentInfo = await store.create_segment("logs/web-1")
        future: asyncio.Future[int] = store.append(info.name, b"bytes")
        offsets: list[int] = [await future]
        offsets.append(await store.append(info.name, bytearray(b"x"), expected_offset=info.length))
        offsets.append(await store.append(info.name, memoryview(b"y")))
        await store.append_batch(info.name, [b"a", bytearray(b"b"), memoryview(b"c")])
        got: bytes = await store.read(info.name, offsets[0], 100, wait=1.0)
        async for chunk in store.reader(info.name, follow=True):
            got += chunk
        async with store.writer(info.name, uuid.UUID(int=1)) as writer:
            offset: int | None = await writer.append(bytearray(b"event"))
        update = AttributeUpdate(uuid.UUID(int=2), UpdateType.REPLACE, offset or 0)
        await store.update_attributes(info.name, [update])
        names: list[str] = [each.name async for each in store.list_segments("logs/")]
        stats: StoreStats = store.stats()
        waiting: int = stats["containers"][0]["storage_writer"]["unflushed_bytes"]
        sentence: str = ", ".join(stats["health"]) + stats["tier2"]["url"]
        print(names, waiting, sentence, stats["cache"]["hits"], got)
    store = await segmentstore.open("store", containers=2, compression="zstd")
    try:
        await store.flush()
    except BadOffsetError as error:
        print(error.expected, error.actual)
    except InvalidArgumentError as error:
        print(error.argument, error.reason)
    finally:
        await store.close()


def threads() -> None:
    """The blocking calls, by both ways in."""
    with segmentstore.blocking.open("store", tier2="s3://bucket/prefix") as store:
        offset: int = store.append("logs/web-1", bytearray(b"hello"))
        pending: concurrent.futures.Future[int] = store.append_nowait(
            "logs/web-1", memoryview(b"hello")
        )
        requests: int = store.stats()["tier2"]["requests"]
        print(offset, pending.result(), requests, [info.length for info in store.list_segments()])
    with blocking.open(Path("store")) as again:
        for chunk in again.reader("logs/web-1"):
            print(len(chunk))
