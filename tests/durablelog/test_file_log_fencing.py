"""Two owners in the windows between checking and doing; the lock was taken away, as an operator
might.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from durablelog.data_frame import seal_header
from durablelog.durable_data_log import LogAddress
from durablelog.file.file_log import FileLog
from durablelog.file.frame_reports import read_only_frames
from durablelog.file.log_folder import LogFolder
from durablelog.file.log_layout import (
    FileHeader,
    file_name,
    pack_file_header,
    prepared_name,
    spare_name,
    state_version,
)
from durablelog.file.log_state import StateFile, read_state
from segmentstore.contracts.disk import OsDisk, OsFile
from segmentstore.contracts.errors import NotPrimaryError, StoreInUseError, TierUnavailableError
from segmentstore.contracts.runtime import Runtime
from tests.contracts.durable_data_log_contract import (
    PAYLOAD_BYTES_MAX,
    append_all,
    payload,
    read_all,
    read_payloads,
)
from tests.durablelog.faulty_disk import FaultyDisk
from tests.support.fake_kernel import syncs_by  # noqa: F401 - each test runs both ways

FILE_BYTES = 8192


def make_log(folder: Path, disk: OsDisk | None = None, file_bytes: int = FILE_BYTES) -> FileLog:
    runtime = Runtime(disk=disk or OsDisk())
    return FileLog(
        str(folder), 0, runtime, file_bytes=file_bytes, payload_bytes_max=PAYLOAD_BYTES_MAX
    )


def count_files(folder: Path) -> int:
    return len(list(folder.glob("*.log")))


def test_an_owner_usurped_between_its_check_and_its_roll(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        old = make_log(tmp_path, disk)
        await old.open()
        usurper = LogFolder(str(tmp_path), 0, OsDisk(), "usurper")

        def usurp() -> None:
            disk.before_link = lambda: None
            (tmp_path / "LOCK").unlink()
            usurper.open(FILE_BYTES)

        disk.before_link = usurp
        acknowledged = 0

        async def append_for_ever() -> None:
            nonlocal acknowledged
            while True:
                await old.append([payload(acknowledged)])
                acknowledged += 1

        with pytest.raises(NotPrimaryError):
            await append_for_ever()
        await old.close()
        assert usurper.epoch == 2
        usurper.close()
        log = make_log(tmp_path)
        await log.open()
        assert await read_payloads(log) == [payload(number) for number in range(acknowledged)]
        await log.close()

    asyncio.run(scenario())


def test_a_stale_file_under_the_number_the_new_owner_wanted(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = make_log(tmp_path)
        await log.open()
        await append_all(log, range(5))
        await log.close()
        stale = tmp_path / file_name(2)

        def roll_late() -> None:
            disk.before_link = lambda: None
            frame = seal_header(0, 1, 6, 5, [payload(900)]) + payload(900)
            stale.write_bytes(pack_file_header(FileHeader(0, 2, 1, 6, 5)) + frame + bytes(1000))

        disk = FaultyDisk()
        disk.before_link = roll_late
        log = make_log(tmp_path, disk)
        await log.open()
        assert await read_payloads(log) == [payload(number) for number in range(5)]
        addresses = await append_all(log, range(5, 8))
        assert min(addresses) >> 32 == 3
        await log.close()
        reports = list(read_only_frames(str(tmp_path), OsDisk()))
        assert [bytes(report.payload) for report in reports if report.status == "stale"].count(
            payload(900)
        ) == 1
        assert [report.sequence for report in reports if report.status == "ok"] == list(range(1, 9))
        log = make_log(tmp_path)
        await log.open()
        assert await read_payloads(log) == [payload(number) for number in range(8)]
        await log.close()
        assert not stale.exists()

    asyncio.run(scenario())


def test_frames_acknowledged_between_the_first_check_and_the_fence_are_in(tmp_path: Path) -> None:
    async def scenario() -> None:
        old = make_log(tmp_path)
        await old.open()
        await append_all(old, range(3))
        (tmp_path / "LOCK").unlink()
        loop = asyncio.get_running_loop()

        class LateDisk(OsDisk):
            """The old owner goes on until the very moment of the fence."""

            def link(self, source: str, target: str) -> None:
                if state_version(os.path.basename(target)) is not None:
                    asyncio.run_coroutine_threadsafe(self.last_words(), loop).result(60)
                super().link(source, target)

            @staticmethod
            async def last_words() -> None:
                for start in range(3, 150, 7):
                    await append_all(old, range(start, start + 7))

        new = make_log(tmp_path, LateDisk())
        await new.open()
        assert await read_payloads(new) == [payload(number) for number in range(150)]
        with pytest.raises(NotPrimaryError):
            await old.append([payload(900)])
        await append_all(new, range(150, 152))
        assert len(await read_all(new)) == 152
        await old.close()
        await new.close()

    asyncio.run(scenario())


def test_frames_that_are_appended_under_the_first_check_are_no_corruption(tmp_path: Path) -> None:
    """Whenever they come: between a check of the place of a frame and one at what lies behind it,
    too.
    """

    async def scenario(folder: Path, moment: int) -> bool:
        loop = asyncio.get_running_loop()
        old = make_log(folder)
        await old.open()
        for number in range(6):  # one by one: by now it writes to a file that had its length before
            await old.append([payload(number)])
        (folder / "LOCK").unlink()
        acknowledged = looks = 0

        async def go_on() -> None:
            nonlocal acknowledged
            with suppress(NotPrimaryError):
                for number in range(6, 10):
                    await old.append([payload(number)])
                    acknowledged = number - 5

        class File(OsFile):
            def pread(self, offset: int, length: int) -> bytes:
                self.meanwhile()
                return super().pread(offset, length)

            def size(self) -> int:
                self.meanwhile()
                return super().size()

            @staticmethod
            def meanwhile() -> None:
                nonlocal looks
                looks += 1
                if looks == moment:
                    asyncio.run_coroutine_threadsafe(go_on(), loop).result(60)

        class Disk(OsDisk):
            def _opened(self, descriptor: int) -> OsFile:
                return File(descriptor)

        new = make_log(folder, Disk())
        await new.open()
        found = await read_payloads(new)
        assert found[: 6 + acknowledged] == [payload(number) for number in range(6 + acknowledged)]
        await new.close()
        await old.close()
        return looks >= moment

    moments = 0
    while asyncio.run(scenario(tmp_path / str(moments), moments + 1)):
        moments += 1
    assert moments > 5


def test_a_log_that_grows_under_every_check_is_in_use_and_not_corrupt(tmp_path: Path) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        # Long in a file that was prepared: a check that a roll to the next one comes under may find
        # everything in order.
        old = make_log(tmp_path, file_bytes=1 << 20)
        await old.open()
        appended = 0

        async def go_on() -> None:
            nonlocal appended
            for _ in range(2):
                await old.append([payload(appended)])
                appended += 1

        while count_files(tmp_path) < 2:
            await go_on()
        (tmp_path / "LOCK").unlink()

        class File(OsFile):
            def size(self) -> int:
                # Asked for after the check of the place of the next frame, and before the one at
                # what lies behind it.
                asyncio.run_coroutine_threadsafe(go_on(), loop).result(60)
                return super().size()

        class Disk(OsDisk):
            def _opened(self, descriptor: int) -> OsFile:
                return File(descriptor)

        new = make_log(tmp_path, Disk(), 1 << 20)
        with pytest.raises(StoreInUseError, match="its owner is alive"):
            await new.open()
        await old.append([payload(appended)])
        assert len(await read_all(old)) == appended + 1
        await old.close()

    asyncio.run(scenario())


def test_a_truncation_of_the_old_owner_just_before_the_fence_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        old = make_log(tmp_path)
        await old.open()
        addresses: list[LogAddress] = []
        for start in range(0, 150, 10):
            addresses += await append_all(old, range(start, start + 10))
        (tmp_path / "LOCK").unlink()
        loop = asyncio.get_running_loop()

        class LateDisk(OsDisk):
            """The old owner truncates after the new one has checked, before it names its state
            record.
            """

            def link(self, source: str, target: str) -> None:
                if state_version(os.path.basename(target)) is not None and not late:
                    late.append(target)
                    asyncio.run_coroutine_threadsafe(old.truncate(addresses[140]), loop).result(60)
                super().link(source, target)

        late: list[str] = []
        new = make_log(tmp_path, LateDisk())
        await new.open()
        assert await read_payloads(new) == [payload(number) for number in range(140, 150)]
        await new.close()
        await old.close()

    asyncio.run(scenario())


class _Turns(OsDisk):
    """Does something else first when a state record is about to get its name; that once."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile: Callable[[], None] | None = meanwhile

    def link(self, source: str, target: str) -> None:
        meanwhile = self._meanwhile
        if state_version(os.path.basename(target)) is not None and meanwhile is not None:
            self._meanwhile = None
            meanwhile()
        super().link(source, target)


def claim(folder: Path, tag: str, disk: OsDisk | None = None) -> StateFile:
    return StateFile.claim(str(folder), disk or OsDisk(), 0, tag)


def test_of_two_claims_at_once_the_later_one_wins_with_a_higher_epoch(tmp_path: Path) -> None:
    inner: list[StateFile] = []
    outer = claim(tmp_path, "a", _Turns(lambda: inner.append(claim(tmp_path, "b"))))
    assert (inner[0].state.epoch, outer.state.epoch) == (1, 2)
    assert not inner[0].is_ours()
    assert outer.is_ours()
    assert read_state(str(tmp_path), OsDisk()) == outer.state


def test_a_claim_that_always_comes_too_late_gives_up(tmp_path: Path) -> None:
    class Busy(OsDisk):
        def link(self, source: str, target: str) -> None:
            claim(tmp_path, f"other-{os.path.basename(target)}")
            super().link(source, target)

    with pytest.raises(NotPrimaryError):
        claim(tmp_path, "a", Busy())


@pytest.mark.parametrize("changes", [0, 1, 2, 3])
def test_an_owner_that_sleeps_in_the_middle_of_a_truncation_wakes_up_fenced(
    tmp_path: Path, changes: int
) -> None:
    """Whatever the new owner did meanwhile: the version the old one wants may be taken, or used and
    removed again.
    """
    new: list[StateFile] = []

    def take_over() -> None:
        new.append(claim(tmp_path, "new"))
        for change in range(changes):
            new[0].truncate(LogAddress((9 << 32) + change), 90 + change)

    old = claim(tmp_path, "old", _Turns(lambda: None))
    old._disk = _Turns(take_over)
    with pytest.raises(NotPrimaryError):
        old.truncate(LogAddress((3 << 32) + 4096), 7)
    assert not old.is_ours()
    assert new[0].is_ours()
    assert read_state(str(tmp_path), OsDisk()) == new[0].state
    assert sorted(name for name in os.listdir(tmp_path) if "tmp" in name) == []


@pytest.mark.parametrize("claims", [1, 2, 3])
def test_who_sleeps_in_the_very_first_claim_does_not_go_back_behind_those_who_came_meanwhile(
    tmp_path: Path, claims: int
) -> None:
    def others() -> None:
        for number in range(claims):
            claim(tmp_path, f"other-{number}")

    late = claim(tmp_path, "late", _Turns(others))
    assert late.state.epoch == claims + 1
    assert late.is_ours()
    assert read_state(str(tmp_path), OsDisk()) == late.state


class _BegunMeanwhile(OsDisk):
    """Just before the reply that there is no state record, another owner begins the log."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self.begin: Callable[[], None] | None = begin

    def exists(self, path: str) -> bool:
        begin, self.begin = self.begin, None
        if begin is not None:
            begin()
        return super().exists(path)


def test_a_log_that_another_owner_begins_between_two_checks_is_not_taken_for_damaged(
    tmp_path: Path,
) -> None:
    rival = LogFolder(str(tmp_path), 0, OsDisk(), "rival")

    def begin() -> None:
        (tmp_path / "LOCK").unlink()
        rival.open(FILE_BYTES)

    late = LogFolder(str(tmp_path), 0, _BegunMeanwhile(begin), "late")
    late.open(FILE_BYTES)
    assert (rival.epoch, late.epoch) == (1, 2)
    assert rival.is_fenced()
    late.close()
    rival.close()


def test_a_claim_follows_the_truncation_it_met(tmp_path: Path) -> None:
    old = claim(tmp_path, "old")
    new = claim(tmp_path, "new", _Turns(lambda: old.truncate(LogAddress((3 << 32) + 4096), 7)))
    assert (new.state.epoch, new.state.truncation_sequence) == (2, 7)
    assert not old.is_ours()


def test_who_is_overtaken_before_its_file_has_its_name_is_reported(tmp_path: Path) -> None:
    """The new owner removes what it had prepared: that shows first."""

    async def scenario() -> None:
        disk = FaultyDisk()
        usurper = LogFolder(str(tmp_path), 0, OsDisk(), "usurper")

        def usurp() -> None:
            (tmp_path / "LOCK").unlink()
            usurper.open(FILE_BYTES)

        disk.before_link = usurp
        with pytest.raises(StoreInUseError):
            await make_log(tmp_path, disk).open()
        assert usurper.epoch == 2
        usurper.close()

    asyncio.run(scenario())


def test_what_a_later_owner_prepares_is_nothing_left_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        for epoch in (1, 2):
            (tmp_path / prepared_name(epoch, 7)).touch()
            (tmp_path / spare_name(epoch, 7)).touch()
        log = make_log(tmp_path)
        await log.open()
        await log.close()

    asyncio.run(scenario())
    assert sorted(path.name for path in tmp_path.glob("*.tmp")) == [
        prepared_name(2, 7),
        spare_name(2, 7),
    ]


def test_a_recovery_whose_log_a_new_owner_has_truncated_learns_that_it_is_fenced(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        log = make_log(tmp_path)
        await log.open()
        # One group: no later one proves it durable.
        await append_all(log, range(1))
        usurper = LogFolder(str(tmp_path), 0, OsDisk(), "usurper")
        (tmp_path / "LOCK").unlink()
        usurper.open(FILE_BYTES)
        # It has taken our frame into a file of its own, and removed ours.
        with pytest.raises(NotPrimaryError):
            await read_payloads(log)
        await log.close()
        usurper.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("moved", [True, False])
def test_a_missing_folder_is_final_and_no_other_owner(tmp_path: Path, moved: bool) -> None:
    folder, away = tmp_path / "log", tmp_path / "away"

    async def scenario() -> None:
        log = make_log(folder)
        await log.open()
        await append_all(log, range(2))
        folder.rename(away)
        if not moved:
            shutil.rmtree(away)
        gone = f"folder is not at {folder} any more"
        with pytest.raises(TierUnavailableError, match=gone):
            await log.check_primary()
        with pytest.raises(TierUnavailableError, match=gone):
            await log.append([b"written to a file that no reader finds"])
        if moved:
            away.rename(folder)
        with pytest.raises(TierUnavailableError, match=gone):
            await log.append([b"and never again, wherever the folder is"])
        await log.close()
        if moved:
            log = make_log(folder)
            await log.open()
            assert (await read_payloads(log))[:2] == [payload(number) for number in range(2)]
            await log.close()

    asyncio.run(scenario())
