"""Torn tails are cut, corruption is named and nothing is touched:
docs/decisions/0002-durable-through.md, rule by rule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from durablelog.data_frame import FRAME_HEADER_LENGTH, seal_header
from durablelog.durable_data_log import LogAddress
from durablelog.file.file_log import FileLog
from durablelog.file.frame_reports import read_only_frames
from durablelog.file.log_layout import FILE_HEADER_LENGTH, file_name
from segmentstore.contracts.disk import OsDisk
from segmentstore.contracts.errors import ConfigError, DataCorruptionError
from segmentstore.contracts.runtime import Runtime
from tests.contracts.durable_data_log_contract import append_all, payload, read_payloads
from tests.durablelog.test_data_frame import with_version
from tests.support.fake_kernel import syncs_by  # noqa: F401 - each test runs both ways

LENGTH = 120
FRAME = FRAME_HEADER_LENGTH + LENGTH


def make_log(folder: Path, file_bytes: int = 8192) -> FileLog:
    return FileLog(str(folder), 0, Runtime(), file_bytes=file_bytes, payload_bytes_max=400)


def fill(
    folder: Path, frames: int, *, one_by_one: bool = True, truncate_at: int | None = None
) -> list[LogAddress]:
    async def scenario() -> list[LogAddress]:
        log = make_log(folder)
        await log.open()
        if one_by_one:
            addresses = [await log.append([payload(number, LENGTH)]) for number in range(frames)]
        else:
            addresses = await append_all(log, range(frames))
        if truncate_at is not None:
            await log.truncate(addresses[truncate_at])
        await log.close()
        return addresses

    return asyncio.run(scenario())


def write_by_hand(folder: Path, groups: Sequence[tuple[int, int]]) -> Path:
    """Frames (sequence, durable_through) as an owner would have left them, in one file of a fresh
    log.
    """
    fill(folder, 0)
    (path,) = folder.glob("*.log")
    body = b"".join(
        seal_header(0, 1, sequence, through, [payload(sequence - 1, LENGTH)])
        + payload(sequence - 1, LENGTH)
        for sequence, through in groups
    )
    path.write_bytes(path.read_bytes()[:FILE_HEADER_LENGTH] + body + bytes(1000))
    return path


def flip(path: Path, position: int, length: int = 1) -> None:
    data = bytearray(path.read_bytes())
    for at in range(position, position + length):
        data[at] ^= 0x5A
    path.write_bytes(data)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "LOCK"}


def recovered(folder: Path) -> list[bytes]:
    """What the log gives now, and gives again after one more frame and one more opening."""

    async def scenario() -> list[bytes]:
        log = make_log(folder)
        await log.open()
        payloads = await read_payloads(log)
        await log.append([b"after"])
        await log.close()
        log = make_log(folder)
        await log.open()
        assert await read_payloads(log) == [*payloads, b"after"]
        await log.close()
        return payloads

    return asyncio.run(scenario())


def refused(folder: Path) -> DataCorruptionError:
    """The error of an opening that finds corruption; every file is as it was."""

    async def scenario() -> DataCorruptionError:
        log = make_log(folder)
        with pytest.raises(DataCorruptionError) as caught:
            await log.open()
        await log.close()
        return caught.value

    before = snapshot(folder)
    error = asyncio.run(scenario())
    assert snapshot(folder) == before
    assert [report.status for report in read_only_frames(str(folder), OsDisk())][-1] == "corrupt"
    return error


def expected(frames: int) -> list[bytes]:
    return [payload(number, LENGTH) for number in range(frames)]


def at(index: int) -> int:
    return FILE_HEADER_LENGTH + index * FRAME


def test_a_tail_torn_at_every_byte_is_cut(tmp_path: Path) -> None:
    for kept in range(0, FRAME, 3):
        folder = tmp_path / str(kept)
        path = write_by_hand(folder, [(1, 0), (2, 1), (3, 2)])
        data = path.read_bytes()
        path.write_bytes(data[: at(2) + kept] + bytes(len(data) - at(2) - kept))
        assert recovered(folder) == expected(2), kept
    folder = tmp_path / "short"
    path = write_by_hand(folder, [(1, 0), (2, 1), (3, 2)])
    path.write_bytes(path.read_bytes()[: at(2) + 70])
    assert recovered(folder) == expected(2)


def test_garbage_behind_the_tail_is_cut(tmp_path: Path) -> None:
    path = write_by_hand(tmp_path, [(1, 0), (2, 1)])
    data = bytearray(path.read_bytes())
    data[at(2) : at(2) + 300] = bytes(range(1, 101)) * 3
    path.write_bytes(data)
    reports = list(read_only_frames(str(tmp_path), OsDisk()))
    assert [report.status for report in reports] == ["ok", "ok", "torn"]
    assert recovered(tmp_path) == expected(2)


@pytest.mark.parametrize("place", [0, 5, 30, 47, 60, FRAME - 1])
def test_a_damaged_frame_that_was_durable_is_corruption(tmp_path: Path, place: int) -> None:
    path = write_by_hand(tmp_path, [(1, 0), (2, 1), (3, 2), (4, 3)])
    flip(path, at(1) + place)
    error = refused(tmp_path)
    assert error.where == f"{path} offset {at(1)} frame 2"


def test_a_frame_zeroed_away_is_corruption_when_a_later_one_proves_it(tmp_path: Path) -> None:
    path = write_by_hand(tmp_path, [(1, 0), (2, 1), (3, 2)])
    data = bytearray(path.read_bytes())
    data[at(1) : at(2)] = bytes(FRAME)
    path.write_bytes(data)
    assert refused(tmp_path).where == f"{path} offset {at(1)} frame 2"


@pytest.mark.parametrize("torn", [[1], [1, 2], [1, 3], [2], [3], [1, 2, 3]])
def test_a_group_torn_in_any_subset_is_cut_at_its_first_gap(
    tmp_path: Path, torn: list[int]
) -> None:
    path = write_by_hand(tmp_path, [(1, 0), (2, 1), (3, 1), (4, 1)])
    for index in torn:
        flip(path, at(index) + 80, 10)
    assert recovered(tmp_path) == expected(min(torn))


def test_a_frame_of_the_next_group_makes_the_same_tear_corruption(tmp_path: Path) -> None:
    path = write_by_hand(tmp_path, [(1, 0), (2, 1), (3, 1), (4, 3)])
    flip(path, at(1) + 80)
    assert "frame 4" in refused(tmp_path).detail


def test_a_copy_of_a_log_kept_as_data_proves_nothing(tmp_path: Path) -> None:
    path = write_by_hand(tmp_path, [(1, 0), (2, 1)])
    inner = seal_header(0, 1, 50, 49, [b"x"]) + b"x"
    torn = seal_header(0, 1, 3, 2, [inner.ljust(LENGTH, b".")]) + inner.ljust(LENGTH - 1, b".")
    path.write_bytes(path.read_bytes()[: at(2)] + torn + bytes(1000))
    assert recovered(tmp_path) == expected(2)


def test_a_frame_at_the_wrong_place_is_corruption_though_its_bytes_are_whole(
    tmp_path: Path,
) -> None:
    write_by_hand(tmp_path, [(1, 0), (3, 2)])
    assert "frame 3 lies there" in refused(tmp_path).detail


def test_a_frame_of_another_container_is_corruption(tmp_path: Path) -> None:
    path = write_by_hand(tmp_path, [(1, 0)])
    foreign = seal_header(9, 1, 2, 1, [payload(1, LENGTH)]) + payload(1, LENGTH)
    path.write_bytes(path.read_bytes()[: at(1)] + foreign + bytes(1000))
    assert "container 9" in refused(tmp_path).detail


def test_a_missing_middle_file_is_corruption(tmp_path: Path) -> None:
    fill(tmp_path, 120)
    files = sorted(tmp_path.glob("*.log"))
    assert len(files) >= 4
    files[1].unlink()
    assert "a later file begins with frame" in refused(tmp_path).detail
    files[0].unlink()
    assert "what was there is missing" in refused(tmp_path).detail


def test_the_file_of_the_truncation_point_must_be_there(tmp_path: Path) -> None:
    addresses = fill(tmp_path, 120, truncate_at=60)
    first = min(tmp_path.glob("*.log"))
    assert int(first.stem, 16) == addresses[60] >> 32
    first.unlink()
    assert "truncation point" in refused(tmp_path).detail


def test_damage_in_an_older_file_is_corruption_whatever_lies_behind_it_there(
    tmp_path: Path,
) -> None:
    addresses = fill(tmp_path, 120)
    files = sorted(tmp_path.glob("*.log"))
    number, position = max(address for address in addresses if address >> 32 == 2) >> 32, 0
    position = max(address & 0xFFFFFFFF for address in addresses if address >> 32 == number)
    flip(files[number - 1], position + 60)
    frame = addresses.index(LogAddress(number << 32 | position)) + 1
    assert refused(tmp_path).where == f"{files[number - 1]} offset {position} frame {frame}"


def test_a_bad_header_of_an_older_file_is_corruption(tmp_path: Path) -> None:
    fill(tmp_path, 120)
    path = sorted(tmp_path.glob("*.log"))[1]
    flip(path, 20)
    assert refused(tmp_path).where == f"{path} offset 0"


def test_a_bad_header_of_the_last_file_is_corruption_if_it_holds_frames(tmp_path: Path) -> None:
    fill(tmp_path, 30)
    path = max(
        path for path in tmp_path.glob("*.log") if any(path.read_bytes()[FILE_HEADER_LENGTH:])
    )
    flip(path, 20)
    assert refused(tmp_path).where == f"{path} offset 0"


@pytest.mark.parametrize("content", [b"", b"SSLF", bytes(8192)])
def test_a_last_file_that_was_never_finished_is_ignored_and_removed(
    tmp_path: Path, content: bytes
) -> None:
    fill(tmp_path, 3)
    unfinished = tmp_path / f"{9:016x}.log"
    unfinished.write_bytes(content)
    assert recovered(tmp_path) == expected(3)
    assert not unfinished.exists()


def test_a_damaged_truncation_point_is_corruption(tmp_path: Path) -> None:
    addresses = fill(tmp_path, 3, truncate_at=2)
    flip(min(tmp_path.glob("*.log")), (addresses[2] & 0xFFFFFFFF) + 60)
    assert "truncated" in refused(tmp_path).detail


def test_frames_an_owner_found_and_served_are_durable_for_the_next(tmp_path: Path) -> None:
    write_by_hand(tmp_path, [(1, 0), (2, 1), (3, 1)])

    async def open_once() -> None:
        log = make_log(tmp_path)
        await log.open()
        assert await read_payloads(log) == expected(3)
        await log.close()

    asyncio.run(open_once())
    youngest = max(tmp_path.glob("*.log"))
    flip(youngest, FILE_HEADER_LENGTH + 60)
    assert "durable when the file was begun" in refused(tmp_path).detail


def test_a_damaged_or_lost_state_record_is_corruption(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    (state,) = tmp_path.glob("state-*")
    whole = state.read_bytes()

    async def opening() -> None:
        log = make_log(tmp_path)
        with pytest.raises(DataCorruptionError, match="state"):
            await log.open()

    for position in range(len(whole)):
        flip(state, position)
        asyncio.run(opening())
        state.write_bytes(whole)
    state.unlink()
    asyncio.run(opening())
    state.write_bytes(whole)
    assert recovered(tmp_path) == expected(3)


def test_damage_under_a_running_log_is_named_by_the_reader(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = make_log(tmp_path)
        await log.open()
        addresses = await append_all(log, range(5))
        path = tmp_path / file_name(addresses[3] >> 32)
        position = addresses[3] & 0xFFFFFFFF
        with path.open("r+b") as file:
            file.seek(position + 60)
            file.write(b"\xff\xff")
        with pytest.raises(DataCorruptionError) as caught:
            await read_payloads(log)
        assert caught.value.where == f"{path} offset {position} frame 4"
        await log.close()

    asyncio.run(scenario())


def test_a_newer_frame_version_is_refused_and_not_called_damage(tmp_path: Path) -> None:
    path = write_by_hand(tmp_path, [(1, 0), (2, 1)])
    data = bytearray(path.read_bytes())
    data[at(1) : at(1) + FRAME_HEADER_LENGTH] = with_version(
        bytes(data[at(1) : at(1) + FRAME_HEADER_LENGTH]), 2
    )
    path.write_bytes(data)

    async def opening() -> None:
        with pytest.raises(ConfigError, match="version 2"):
            await make_log(tmp_path).open()

    before = snapshot(tmp_path)
    asyncio.run(opening())
    assert snapshot(tmp_path) == before
