"""The skeleton is honest: what it acknowledges is in its file, in order, with the right
checksum.
"""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from bench.loads import concurrent_callers, one_at_a_time, pipelined
from bench.skeleton import BATCH_BYTES_MAX, HEADER, Skeleton, scan

FILE_BYTES = 1 << 16


def test_acknowledged_records_are_in_the_file_in_order(tmp_path: Path) -> None:
    payloads = [bytes([index]) * (index * 7 % 50) for index in range(100)]

    async def work() -> list[int]:
        skeleton = Skeleton(tmp_path / "log", FILE_BYTES)
        offsets = await asyncio.gather(*map(skeleton.append, payloads))
        await skeleton.close()
        return offsets

    offsets = asyncio.run(work())
    content = (tmp_path / "log").read_bytes()
    found = scan(content)
    assert found == [(offset, len(data)) for offset, data in zip(offsets, payloads, strict=True)]
    position = 0
    for data in payloads:
        position += HEADER.size
        assert content[position : position + len(data)] == data
        position += len(data)


def test_small_and_large_payloads_mix(tmp_path: Path) -> None:
    payloads = [b"a" * 10, b"b" * 5000, b"c" * 10, b"d" * 4096, b"e" * 4095]

    async def work() -> None:
        skeleton = Skeleton(tmp_path / "log", FILE_BYTES)
        await asyncio.gather(*map(skeleton.append, payloads))
        await skeleton.close()

    asyncio.run(work())
    content = (tmp_path / "log").read_bytes()
    assert [length for _, length in scan(content)] == [len(data) for data in payloads]
    assert b"".join(payloads) == b"".join(
        content.replace(bytes(100), b"").partition(data)[1] for data in payloads
    )


def test_many_appends_share_a_sync(tmp_path: Path) -> None:
    async def work() -> int:
        skeleton = Skeleton(tmp_path / "log", FILE_BYTES)
        await asyncio.gather(*(skeleton.append(b"x" * 10) for _ in range(500)))
        await skeleton.close()
        return skeleton.syncs

    assert asyncio.run(work()) == 1


def test_one_at_a_time_syncs_each(tmp_path: Path) -> None:
    async def work() -> tuple[int, list[float]]:
        skeleton = Skeleton(tmp_path / "log", FILE_BYTES)
        seconds = await one_at_a_time(lambda _: skeleton.append(b"x"), 20)
        await skeleton.close()
        return skeleton.syncs, seconds

    syncs, seconds = asyncio.run(work())
    assert syncs == len(seconds) == 20


def test_a_full_file_is_recycled_and_never_grows(tmp_path: Path) -> None:
    async def work() -> None:
        skeleton = Skeleton(tmp_path / "log", 1000)
        await pipelined(lambda _: skeleton.append(b"y" * 100), 200, 8)
        await skeleton.close()

    asyncio.run(work())
    assert (tmp_path / "log").stat().st_size == 1000


def test_a_batch_is_bounded(tmp_path: Path) -> None:
    async def work() -> int:
        skeleton = Skeleton(tmp_path / "log", 4 * BATCH_BYTES_MAX)
        await asyncio.gather(*(skeleton.append(bytes(BATCH_BYTES_MAX // 2)) for _ in range(6)))
        await skeleton.close()
        return skeleton.syncs

    assert asyncio.run(work()) == 3


def test_append_batch_puts_a_length_before_each_record(tmp_path: Path) -> None:
    async def work() -> None:
        skeleton = Skeleton(tmp_path / "log", FILE_BYTES)
        await skeleton.append_batch([b"one", b"three"])
        await skeleton.close()

    asyncio.run(work())
    content = (tmp_path / "log").read_bytes()
    assert content[HEADER.size : HEADER.size + 16] == struct.pack(">I3sI5s", 3, b"one", 5, b"three")


def test_a_failed_write_fails_its_appends(tmp_path: Path) -> None:
    async def work() -> None:
        skeleton = Skeleton(tmp_path / "log", FILE_BYTES)
        skeleton._file.close()
        with pytest.raises(OSError, match="descriptor"):
            await skeleton.append(b"x")

    asyncio.run(work())


def test_scan_stops_at_a_flipped_bit(tmp_path: Path) -> None:
    async def work() -> None:
        skeleton = Skeleton(tmp_path / "log", FILE_BYTES)
        await asyncio.gather(*(skeleton.append(b"z" * 10) for _ in range(5)))
        await skeleton.close()

    asyncio.run(work())
    content = bytearray((tmp_path / "log").read_bytes())
    content[3 * (HEADER.size + 10) + HEADER.size] ^= 1
    assert len(scan(bytes(content))) == 3


def test_callers_make_exactly_their_appends() -> None:
    async def work() -> None:
        numbers: list[int] = []
        loop = asyncio.get_running_loop()

        def append(number: int) -> asyncio.Future[None]:
            numbers.append(number)
            future = loop.create_future()
            loop.call_soon(future.set_result, None)
            return future

        result = await concurrent_callers(append, 20, 5)
        assert sorted(numbers) == list(range(100))
        assert result.appends == 100
        assert len(result.latencies) == 16 * 5
        assert result.rate > 0

    asyncio.run(work())


def test_the_window_of_a_pipeline_is_kept() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        open_now, most = 0, 0

        def append(_: int) -> asyncio.Future[None]:
            nonlocal open_now, most
            open_now += 1
            most = max(most, open_now)
            future = loop.create_future()

            def done() -> None:
                nonlocal open_now
                open_now -= 1
                future.set_result(None)

            loop.call_soon(done)
            return future

        result = await pipelined(append, 1000, 10)
        assert (result.appends, most, open_now) == (1000, 10, 0)
        assert result.latencies == sorted(result.latencies)

    asyncio.run(work())
