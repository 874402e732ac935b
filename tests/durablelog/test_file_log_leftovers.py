"""What lay in a file before it was written over is never taken for the log, and never hides that it
is damaged.

The rules are those of docs/formats/file-log.md ("Recycled files").
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durablelog.data_frame import FRAME_HEADER_LENGTH, seal_header
from durablelog.file.file_log import FileLog
from durablelog.file.frame_reports import read_only_frames
from durablelog.file.log_layout import (
    FILE_HEADER_LENGTH,
    FileHeader,
    LogState,
    file_name,
    make_address,
    pack_file_header,
    pack_state,
    state_name,
)
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.disk import OsDisk
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.runtime import Runtime
from tests.contracts.durable_data_log_contract import read_payloads
from tests.durablelog.faulty_disk import FaultyDisk
from tests.support.fake_kernel import syncs_by  # noqa: F401 - each test runs both ways
from tests.support.suites import examples, share

FILE_BYTES = FILE_HEADER_LENGTH + 1000
FIRST = 100
"""Number of the first frame in the files made by hand; what lies there below it is left over."""


def make_log(folder: Path, disk: OsDisk | None = None, file_bytes: int = FILE_BYTES) -> FileLog:
    runtime = Runtime(disk=disk or FaultyDisk(quick=True), executor=inline_executor)
    return FileLog(str(folder), 0, runtime, file_bytes=file_bytes, payload_bytes_max=400)


def frame(sequence: int, length: int, through: int | None = None, *, fill: bytes = b"n") -> bytes:
    data = fill * length
    return seal_header(0, 1, sequence, sequence - 1 if through is None else through, [data]) + data


def old_frames(length: int, room: int) -> bytes:
    """What the file held before: as many frames as fit, the last one FIRST - 1."""
    count = room // (length + FRAME_HEADER_LENGTH)
    return b"".join(frame(FIRST - count + index, length, fill=b"o") for index in range(count))


def by_hand(folder: Path, content: bytes, *, epoch: int = 1) -> Path:
    """A log truncated at the one frame of its first file; the second one has this behind its
    header.
    """
    folder.mkdir(parents=True)
    state = LogState(0, epoch, make_address(1, FILE_HEADER_LENGTH), FIRST - 1)
    (folder / state_name(1)).write_bytes(pack_state(state))
    begin(folder, 1, 1, FIRST - 1, frame(FIRST - 1, 9))
    return begin(folder, 2, 1, FIRST, content)


def begin(folder: Path, number: int, epoch: int, first: int, content: bytes) -> Path:
    path = folder / file_name(number)
    path.write_bytes(pack_file_header(FileHeader(0, number, epoch, first, first - 1)) + content)
    return path


def over(new: bytes, old: bytes) -> bytes:
    return new + old[len(new) :]


def recovered(folder: Path) -> list[int]:
    """Lengths of the frames from FIRST on that the log gives now, gives again after one more frame,
    and again after a second opening.
    """

    async def scenario() -> list[int]:
        log = make_log(folder)
        await log.open()
        payloads = await read_payloads(log)
        await log.append([b"after"])
        await log.close()
        for _ in range(2):
            log = make_log(folder)
            await log.open()
            assert await read_payloads(log) == [*payloads, b"after"]
            await log.close()
        assert all(set(data) == {ord("n")} for data in payloads)
        assert payloads[0] == b"n" * 9
        return [len(data) for data in payloads[1:]]

    return run_virtual(scenario())


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "LOCK"}


def refused(folder: Path) -> DataCorruptionError:
    async def scenario() -> DataCorruptionError:
        log = make_log(folder)
        with pytest.raises(DataCorruptionError) as caught:
            await log.open()
        await log.close()
        return caught.value

    before = snapshot(folder)
    error = run_virtual(scenario())
    assert snapshot(folder) == before
    assert [report.status for report in read_only_frames(str(folder), OsDisk())][-1] == "corrupt"
    return error


def statuses(folder: Path) -> Sequence[str]:
    """Of what lies from FIRST on."""
    return [report.status for report in read_only_frames(str(folder), OsDisk())][1:]


@pytest.mark.parametrize("old_length", share([7, 1, 30], 3, 2))
def test_leftovers_at_every_alignment_are_the_end(tmp_path: Path, old_length: int) -> None:
    old = old_frames(old_length, 600)
    for length in range(1, 2 * (old_length + FRAME_HEADER_LENGTH)):
        folder = tmp_path / str(length)
        by_hand(folder, over(frame(FIRST, length), old))
        assert statuses(folder) == ["ok"]
        assert recovered(folder) == [length]


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.integers(1, 90), min_size=0, max_size=6),
    st.lists(st.integers(1, 90), min_size=1, max_size=12),
    st.integers(0, 200),
)
def test_leftovers_of_any_sizes_are_the_end(
    tmp_path_factory: pytest.TempPathFactory, new: list[int], old: list[int], torn: int
) -> None:
    folder = tmp_path_factory.mktemp("log") / "log"
    before = b"".join(
        frame(FIRST - len(old) + index, length, fill=b"o") for index, length in enumerate(old)
    )
    live = b"".join(frame(FIRST + index, length) for index, length in enumerate(new))
    cut = frame(FIRST + len(new), 150)[:torn]
    by_hand(folder, over(live + cut, before))
    whole = [150] if torn >= FRAME_HEADER_LENGTH + 150 else []
    assert recovered(folder) == new + whole


def test_leftovers_exactly_where_the_next_frame_is_expected(tmp_path: Path) -> None:
    old = old_frames(20, 900)
    for count in range(6):
        folder = tmp_path / str(count)
        by_hand(folder, over(b"".join(frame(FIRST + index, 20) for index in range(count)), old))
        assert recovered(folder) == [20] * count


@pytest.mark.parametrize("old_length", [20, 33])
def test_a_tail_torn_at_every_byte_over_leftovers_is_cut(tmp_path: Path, old_length: int) -> None:
    old = old_frames(old_length, 900)
    live = frame(FIRST, 20) + frame(FIRST + 1, 20)
    last = frame(FIRST + 2, 20)
    for torn in range(len(last) + 1):
        folder = tmp_path / str(torn)
        by_hand(folder, over(live + last[:torn], old))
        assert recovered(folder) == [20] * (2 if torn < len(last) else 3)


def test_a_group_torn_in_any_page_over_leftovers_is_cut_at_its_first_gap(tmp_path: Path) -> None:
    group = b"".join(frame(FIRST + 1 + index, 40, FIRST) for index in range(4))
    whole = frame(FIRST, 40) + group
    old = old_frames(40, 900)
    size = FRAME_HEADER_LENGTH + 40
    for index in range(1, 5):
        folder = tmp_path / str(index)
        by_hand(
            folder,
            over(whole[: index * size] + old[index * size : (index + 1) * size], whole)
            + old[len(whole) :],
        )
        assert recovered(folder) == [40] * index


def test_a_torn_frame_is_distinguished_from_leftovers_in_reports_if_its_header_is_whole(
    tmp_path: Path,
) -> None:
    by_hand(
        tmp_path / "log", over(frame(FIRST, 20) + frame(FIRST + 1, 20)[:60], old_frames(33, 900))
    )
    assert statuses(tmp_path / "log") == ["ok", "torn"]


def test_damage_at_every_byte_of_a_durable_frame_is_corruption(tmp_path: Path) -> None:
    whole = b"".join(frame(FIRST + index, 20) for index in range(4))
    size = FRAME_HEADER_LENGTH + 20
    for place in range(size, 2 * size, 3):
        for old_length in (20, 33):
            folder = tmp_path / f"{place}-{old_length}"
            damaged = bytearray(over(whole, old_frames(old_length, 900)))
            damaged[place] ^= 0x5A
            path = by_hand(folder, bytes(damaged))
            assert (
                refused(folder).where
                == f"{path} offset {FILE_HEADER_LENGTH + size} frame {FIRST + 1}"
            )


def test_a_write_that_was_lost_shows_the_leftovers_and_is_corruption(tmp_path: Path) -> None:
    size = FRAME_HEADER_LENGTH + 20
    old = old_frames(20, 900)
    whole = b"".join(frame(FIRST + index, 20) for index in range(4))
    for index in range(1, 3):
        folder = tmp_path / str(index)
        place = index * size
        path = by_hand(folder, over(whole[:place] + old[place : place + size], over(whole, old)))
        assert (
            refused(folder).where
            == f"{path} offset {FILE_HEADER_LENGTH + place} frame {FIRST + index}"
        )


def test_a_long_leftover_where_a_write_was_lost_does_not_hide_the_frames_behind(
    tmp_path: Path,
) -> None:
    size = FRAME_HEADER_LENGTH + 20
    whole = b"".join(frame(FIRST + index, 20) for index in range(6))
    long = frame(FIRST - 1, 800, fill=b"o")
    by_hand(tmp_path / "log", whole[:size] + long[:size] + whole[2 * size :] + long[5 * size :])
    assert f"frame {FIRST + 2}" in refused(tmp_path / "log").detail


def test_a_copy_of_a_log_in_a_leftover_proves_nothing(tmp_path: Path) -> None:
    inner = frame(FIRST + 3, 10, FIRST + 2)
    data = b"o" * 100 + inner + b"o" * 100
    leftover = seal_header(0, 1, FIRST - 1, FIRST - 2, [data]) + data
    by_hand(tmp_path / "log", frame(FIRST, 10) + leftover)
    assert recovered(tmp_path / "log") == [10]


def test_an_old_frame_of_another_epoch_is_no_leftover(tmp_path: Path) -> None:
    data = b"x"
    by_hand(tmp_path / "log", frame(FIRST, 10) + seal_header(0, 7, 5, 4, [data]) + data)
    assert "frame 5 lies there" in refused(tmp_path / "log").detail


def test_a_recycled_file_of_a_fenced_owner_below_the_new_owners(tmp_path: Path) -> None:
    by_hand(tmp_path / "log", over(frame(FIRST, 20), old_frames(20, 900)), epoch=2)
    begin(tmp_path / "log", 3, 1, FIRST + 1, over(frame(FIRST + 1, 20, FIRST), old_frames(20, 900)))
    begin(tmp_path / "log", 4, 1, FIRST + 1, old_frames(20, 900))
    begin(tmp_path / "log", 5, 2, FIRST + 1, b"")
    assert statuses(tmp_path / "log") == ["ok", "stale"]
    assert recovered(tmp_path / "log") == [20]


def test_late_frames_of_a_fenced_owner_in_a_recycled_file_that_counts_in_part(
    tmp_path: Path,
) -> None:
    live = frame(FIRST, 20) + frame(FIRST + 1, 20)
    by_hand(tmp_path / "log", over(live, old_frames(20, 900)), epoch=2)
    begin(tmp_path / "log", 3, 2, FIRST + 1, b"")
    assert statuses(tmp_path / "log") == ["ok", "stale"]
    assert recovered(tmp_path / "log") == [20]
