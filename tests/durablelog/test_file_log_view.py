"""A file log that is viewed and not owned: what an opening would find, nothing changed, an owner
elsewhere noticed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from durablelog.file.file_log_view import FileLogView
from segmentstore.contracts.errors import DataCorruptionError, TierUnavailableError
from segmentstore.contracts.runtime import Runtime
from tests.contracts.durable_data_log_contract import append_all, payload, read_payloads
from tests.durablelog.test_file_log_damage import (
    FRAME,
    LENGTH,
    fill,
    flip,
    make_log,
    snapshot,
    write_by_hand,
)


def payloads(count: int) -> list[bytes]:
    return [payload(number, LENGTH) for number in range(count)]


async def opened_view(folder: Path) -> FileLogView:
    view = FileLogView(str(folder), 0, Runtime())
    await view.open()
    return view


def viewed(folder: Path) -> list[bytes]:
    async def scenario() -> list[bytes]:
        view = await opened_view(folder)
        try:
            return await read_payloads(view)
        finally:
            await view.close()

    return asyncio.run(scenario())


def test_it_shows_the_log_and_changes_nothing(tmp_path: Path) -> None:
    addresses = fill(tmp_path, 100, truncate_at=30)
    before = snapshot(tmp_path)

    async def scenario() -> None:
        view = await opened_view(tmp_path)
        assert view.epoch == 1
        assert await read_payloads(view) == payloads(100)[30:]
        assert [
            frame.sequence async for batch in view.read(addresses[90]) for frame in batch
        ] == list(range(91, 101))
        with pytest.raises(TierUnavailableError, match="not owned"):
            await view.append([b"more"])
        with pytest.raises(TierUnavailableError, match="not owned"):
            await view.truncate(addresses[50])
        await view.check_primary()
        await view.close()

    asyncio.run(scenario())
    assert snapshot(tmp_path) == before


def test_a_log_that_was_never_opened_is_empty_and_is_not_created(tmp_path: Path) -> None:
    assert viewed(tmp_path / "log") == []
    assert not (tmp_path / "log").exists()


def test_a_torn_tail_is_cut_and_corruption_is_reported_as_by_an_owner(tmp_path: Path) -> None:
    path = write_by_hand(tmp_path, [(1, 0), (2, 0), (3, 0)])
    assert viewed(tmp_path) == payloads(3)
    flip(path, path.read_bytes().index(payload(2, LENGTH)), 4)
    assert viewed(tmp_path) == payloads(2)
    path = write_by_hand(tmp_path / "other", [(1, 0), (2, 1), (3, 2)])
    flip(path, path.read_bytes().index(payload(1, LENGTH)), 4)
    before = snapshot(tmp_path / "other")
    with pytest.raises(DataCorruptionError, match="frame 2"):
        viewed(tmp_path / "other")
    assert snapshot(tmp_path / "other") == before


def test_an_owner_elsewhere_goes_on_and_the_view_is_as_of_its_opening(tmp_path: Path) -> None:
    async def scenario() -> None:
        owner = make_log(tmp_path)
        await owner.open()
        addresses = await append_all(owner, range(5))
        view = await opened_view(tmp_path)
        await append_all(owner, range(5, 10))
        assert await read_payloads(view) == payloads(5)
        await owner.truncate(addresses[3])
        with pytest.raises(TierUnavailableError, match="try again"):
            await read_payloads(view)
        with pytest.raises(TierUnavailableError, match="try again"):
            await view.check_primary()
        await view.close()
        await owner.append([b"not fenced"])
        await owner.close()

    asyncio.run(scenario())


def test_files_that_an_owner_elsewhere_removed_are_no_corruption(tmp_path: Path) -> None:
    async def scenario() -> None:
        owner = make_log(tmp_path)
        await owner.open()
        addresses = [
            await owner.append([payload(number, LENGTH)]) for number in range(3 * 8192 // FRAME)
        ]
        view = await opened_view(tmp_path)
        reading = view.read()
        await owner.truncate(addresses[-1])
        with pytest.raises(TierUnavailableError, match="try again"):
            async for _ in reading:
                pass
        await view.close()
        await owner.close()

    asyncio.run(scenario())
