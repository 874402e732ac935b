"""Damage is named and nothing is touched; a torn tail is cut; the cache may be lost at any time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import segmentstore
from durablelog.data_frame import FRAME_MAGIC, FrameFormatError, FrameHeader, parse_header
from durablelog.file.log_layout import FILE_HEADER_LENGTH
from segmentstore import DataCorruptionError, SegmentStore
from tests.store.harness import TINY, UNFLUSHED, open_lazy, open_tiny, read_all, run, until
from tests.support.suites import size, sized

TORN_STEP = size("TORN_TAIL_STEP", 17, 1)
"""Bytes between two places where the last frame is cut off."""
FLIP_STEP = size("FLIPPED_BIT_STEP", 45, 5)
"""Bytes between two damaged places of an object."""


def frames_of(path: Path) -> list[tuple[int, FrameHeader]]:
    """Where each whole frame of a log file begins, with its header."""
    data = memoryview(path.read_bytes())
    found: list[tuple[int, FrameHeader]] = []
    position = FILE_HEADER_LENGTH
    while position < len(data):
        try:
            header = parse_header(data, position)
        except FrameFormatError:
            break
        if header is None:
            break
        found.append((position, header))
        position += header.frame_length
    assert not found or bytes(data[found[0][0] :][:4]) == FRAME_MAGIC
    return found


def log_files(location: Path) -> list[Path]:
    """The files of container 0 that hold frames, oldest first."""
    return [path for path in sorted((location / "log" / "0").glob("*.log")) if frames_of(path)]


def all_frames(location: Path) -> list[tuple[Path, int, FrameHeader]]:
    """Every frame of container 0's log, in order."""
    return [
        (path, position, header)
        for path in log_files(location)
        for position, header in frames_of(path)
    ]


def kept(location: Path) -> dict[str, bytes]:
    """Everything but the cache, which may be lost, and the locks, which name the last reader."""
    return {
        str(path.relative_to(location)): path.read_bytes()
        for path in location.rglob("*")
        if path.is_file()
        and not {"cache", "lock", "LOCK"}.intersection(path.relative_to(location).parts)
    }


def flip(path: Path, position: int, mask: int = 0x10) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


def written(location: Path, appends: int = 30) -> list[bytes]:
    """A closed store with one append a frame, none of them in Tier 2."""
    pieces = [b"<%03d>" % number * 4 for number in range(appends)]

    async def main() -> None:
        async with segmentstore.open(location, **UNFLUSHED) as store:
            await store.create_segment("x")
            for piece in pieces:
                await store.append("x", piece)

    run(main())
    return pieces


async def opened(location: Path) -> None:
    async with open_lazy(location) as store:
        await read_all(store, "x")


class TestLog:
    @pytest.mark.parametrize("where", ["magic", "header", "payload", "payload end"])
    @pytest.mark.parametrize("which", [0, 7, -3])
    def test_a_flipped_bit_with_valid_frames_behind_it(
        self, tmp_path: Path, which: int, where: str
    ) -> None:
        location = tmp_path / "s"
        written(location)
        path, position, header = all_frames(location)[which]
        offsets = {
            "magic": 0,
            "header": 20,
            "payload": header.header_length + 3,
            "payload end": header.frame_length - 1,
        }
        flip(path, position + offsets[where])
        before = kept(location)
        for _ in range(2):
            with pytest.raises(DataCorruptionError) as caught:
                run(opened(location))
            for part in (str(path), f"offset {position}", f"frame {header.sequence}"):
                assert part in caught.value.where
            assert caught.value.detail
            assert kept(location) == before
        flip(path, position + offsets[where])
        run(opened(location))

    def test_a_flipped_bit_in_a_file_that_is_not_the_last(self, tmp_path: Path) -> None:
        location = tmp_path / "s"
        written(location, appends=150)
        first, *rest = log_files(location)
        assert rest, "the log has rolled"
        for which in (0, -1):
            position, _ = frames_of(first)[which]
            flip(first, position + 60)
            before = kept(location)
            with pytest.raises(DataCorruptionError) as caught:
                run(opened(location))
            assert str(first) in caught.value.where
            assert kept(location) == before
            flip(first, position + 60)

    def test_a_missing_file_in_the_middle(self, tmp_path: Path) -> None:
        location = tmp_path / "s"
        written(location, appends=300)
        _, middle, *rest = log_files(location)
        assert rest
        middle.unlink()
        before = kept(location)
        with pytest.raises(DataCorruptionError):
            run(opened(location))
        assert kept(location) == before

    def test_a_frame_copied_to_another_place(self, tmp_path: Path) -> None:
        location = tmp_path / "s"
        written(location)
        (path, source, header), (same_path, target, same) = all_frames(location)[7:9]
        assert path == same_path
        assert header.frame_length == same.frame_length
        data = bytearray(path.read_bytes())
        data[target : target + header.frame_length] = data[source : source + header.frame_length]
        path.write_bytes(data)
        before = kept(location)
        with pytest.raises(DataCorruptionError):
            run(opened(location))
        assert kept(location) == before

    @sized(25)
    def test_a_tail_torn_at_every_byte_of_the_last_frame(self, tmp_path: Path) -> None:
        location = tmp_path / "s"
        pieces = written(location, appends=6)
        path = log_files(location)[-1]
        position, header = frames_of(path)[-1]
        whole = path.read_bytes()
        shutil.rmtree(location / "cache")
        shutil.copytree(location, tmp_path / "whole")

        async def check(torn: Path, expected: bytes) -> None:
            for extra in (b"", b"!"):
                async with open_tiny(torn) as store:
                    assert await read_all(store, "x") == expected
                    if not extra:
                        assert await store.append("x", b"!") == len(expected)
                        expected += b"!"

        for cut in {*range(0, header.frame_length, TORN_STEP), header.frame_length - 1}:
            torn = tmp_path / "torn"
            shutil.copytree(tmp_path / "whole", torn)
            data = whole[: position + cut] + bytes(len(whole) - position - cut)
            (torn / path.relative_to(location)).write_bytes(data)
            complete = data == whole
            run(check(torn, b"".join(pieces if complete else pieces[:-1])))
            shutil.rmtree(torn)

    def test_the_file_cut_short_within_the_last_frame(self, tmp_path: Path) -> None:
        location = tmp_path / "s"
        pieces = written(location, appends=6)
        path = log_files(location)[-1]
        position, header = frames_of(path)[-1]
        path.write_bytes(path.read_bytes()[: position + header.frame_length // 2])

        async def main() -> None:
            async with open_tiny(location) as store:
                assert await read_all(store, "x") == b"".join(pieces[:-1])

        run(main())


class TestTier2:
    def objects(self, location: Path) -> list[Path]:
        return sorted(path for path in (location / "tier2").rglob("flush-*") if path.is_file())

    async def flushed(self, location: Path, data: bytes) -> None:
        async with open_lazy(location) as store:
            await store.create_segment("x")
            await store.append("x", data)
            await store.flush()
            await store.checkpoint()

    @sized(10)
    def test_a_flipped_bit_anywhere_in_an_object(self, tmp_path: Path) -> None:
        async def main() -> None:
            location, data = tmp_path / "s", bytes(range(200))
            await self.flushed(location, data)
            (path,) = self.objects(location)
            for position in range(0, path.stat().st_size, FLIP_STEP):
                flip(path, position)
                async with open_lazy(location) as store:
                    with pytest.raises(DataCorruptionError) as caught:
                        await read_all(store, "x")
                    assert path.name in caught.value.where
                    # Others are served as ever.
                    await store.create_segment("y")
                    await store.append("y", b"fine")
                    assert await read_all(store, "y") == b"fine"
                    await store.delete("y")
                flip(path, position)
            async with open_lazy(location) as store:
                assert await read_all(store, "x") == data

        run(main())

    def test_an_object_that_is_missing_or_too_short(self, tmp_path: Path) -> None:
        async def main() -> None:
            location, data = tmp_path / "s", bytes(range(200))
            await self.flushed(location, data)
            (path,) = self.objects(location)
            whole = path.read_bytes()
            for length in (0, 100, len(whole) - 1):
                path.write_bytes(whole[:length])
                await self.refused(location, path.name)
            path.unlink()
            await self.refused(location, path.name)
            path.write_bytes(whole)
            async with open_lazy(location) as store:
                assert await read_all(store, "x") == data

        run(main())

    def test_the_object_of_another_segment_under_the_name(self, tmp_path: Path) -> None:
        async def main() -> None:
            location = tmp_path / "s"
            await self.flushed(location, bytes(range(200)))
            (mine,) = self.objects(location)
            async with open_lazy(location) as store:
                await store.create_segment("y")
                await store.append("y", bytes(reversed(range(200))))
                await store.flush()
                await store.checkpoint()
            (other,) = [path for path in self.objects(location) if path != mine]
            mine.write_bytes(other.read_bytes())
            await self.refused(location, mine.name)

        run(main())

    async def refused(self, location: Path, name: str) -> None:
        async with open_lazy(location) as store:
            with pytest.raises(DataCorruptionError) as caught:
                await read_all(store, "x")
            assert name in caught.value.where


class TestCache:
    @pytest.mark.parametrize("damage", ["delete", "delete files", "overwrite", "truncate"])
    def test_lost_while_running(self, tmp_path: Path, damage: str) -> None:
        async def main() -> None:
            location = tmp_path / "s"
            data = bytes(number % 249 for number in range(5000))
            async with open_lazy(
                location, flush_bytes=100_000, object_bytes=100_000, upload_bytes_max=200_000
            ) as store:
                await store.create_segment("x")
                for start in range(0, 2600, 100):
                    await store.append("x", data[start : start + 100])
                    # A cache that is late would be passed over: what is dropped goes to Tier 2.
                    await until(lambda: in_tail(store) <= TINY["tail_bytes_max"])
                assert spilled(store), "the cache is in use"
                spoil(location / "cache", damage)
                assert await read_all(store, "x") == data[:2600]
                for start in range(2600, 5000, 100):
                    await store.append("x", data[start : start + 100])
                spoil(location / "cache", damage)
                assert await read_all(store, "x") == data
                await store.flush()
                assert await read_all(store, "x") == data
            async with open_lazy(location) as store:
                assert await read_all(store, "x") == data

        def spilled(store: SegmentStore) -> int:
            return sum(each._read_index.statistics().spilled_bytes for each in store._containers)

        def in_tail(store: SegmentStore) -> int:
            return sum(each._read_index.statistics().tail_bytes for each in store._containers)

        run(main())

    @pytest.mark.parametrize(
        "damage", ["delete", "delete files", "overwrite", "truncate", "a file"]
    )
    def test_lost_between_runs(self, tmp_path: Path, damage: str) -> None:
        async def main() -> None:
            location = tmp_path / "s"
            data = bytes(number % 249 for number in range(3000))
            async with open_lazy(location) as store:
                await store.create_segment("x")
                await store.append("x", data)
            if damage == "a file":
                shutil.rmtree(location / "cache")
                (location / "cache").write_text("in the way")
            else:
                spoil(location / "cache", damage)
            async with open_lazy(location) as store:
                assert await read_all(store, "x") == data
                await store.append("x", b"!")
                assert await read_all(store, "x") == data + b"!"

        run(main())


def spoil(cache: Path, damage: str) -> None:
    if damage == "delete":
        shutil.rmtree(cache, ignore_errors=True)
        return
    for path in sorted(cache.rglob("*")):
        if not path.is_file():
            continue
        if damage == "delete files":
            path.unlink()
        elif damage == "overwrite":
            path.write_bytes(b"\x5a" * path.stat().st_size)
        else:
            path.write_bytes(b"")
