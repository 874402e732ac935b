"""Writes that bypass the page cache: the same bytes as others, whatever the file system takes."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts import direct_writes
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.direct_writes import BLOCK_BYTES, DirectWriter
from segmentstore.contracts.disk import OsDisk, OsFile

SIZES = st.sampled_from((0, 1, 100, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 9 * BLOCK_BYTES))
SMALL_BUFFER = 4 * BLOCK_BYTES


@pytest.fixture
def _small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_writes, "BUFFER_BYTES", SMALL_BUFFER)


def bytes_of(seed: int, length: int) -> bytes:
    return bytes((seed * 31 + index * 7 + index // 251) & 0xFF for index in range(length))


def is_direct(file: OsFile) -> bool:
    return bool(fcntl.fcntl(file._descriptor, fcntl.F_GETFL) & os.O_DIRECT)


def can_write_directly(folder: Path) -> bool:
    """Whether the file system of the folder has such writes, by another way to ask."""
    try:
        os.close(os.open(folder / "asked", os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
    except OSError:
        return False
    return True


def new_file(folder: Path) -> OsFile:
    path = str(folder / "file")
    if os.path.exists(path):
        os.unlink(path)
    return OsDisk().open(path, write=True, create=True, exclusive=True)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[OsFile]:
    opened = new_file(tmp_path)
    yield opened
    opened.close()


def write_all(file: OsFile, writes: Sequence[Sequence[Buffer]]) -> bytes:
    """Write one behind the other, and sync; what should be there."""
    offset = 0
    for buffers in writes:
        file.pwrite(buffers, offset)
        offset += sum(map(len, buffers))
    file.sync()
    return b"".join(data for buffers in writes for data in buffers)


@pytest.mark.usefixtures("_small_buffer")
@given(sizes=st.lists(st.lists(SIZES, max_size=5), max_size=4))
def test_the_bytes_are_there_however_they_are_cut(
    sizes: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = new_file(tmp_path_factory.getbasetemp())
    try:
        file.write_directly()
        writes = [
            [bytes_of(number * 5 + index, size) for index, size in enumerate(some)]
            for number, some in enumerate(sizes)
        ]
        expected = write_all(file, writes)
        # It is left with the first write that does not end with a block, or with a read.
        ends = list(accumulate(map(sum, sizes)))
        whole = all(end % BLOCK_BYTES == 0 for end in ends)
        assert is_direct(file) == (whole and can_write_directly(tmp_path_factory.getbasetemp()))
        assert file.pread(0, len(expected) + 1) == expected
        assert not is_direct(file)
    finally:
        file.close()


def test_whole_blocks_are_written_so_and_the_rest_is_not(file: OsFile, tmp_path: Path) -> None:
    file.write_directly()
    assert is_direct(file) == can_write_directly(tmp_path)
    file.pwrite([memoryview(bytes_of(1, 2 * BLOCK_BYTES))], 0)
    assert is_direct(file) == can_write_directly(tmp_path)
    file.pwrite([b"x"], 2 * BLOCK_BYTES)
    assert not is_direct(file)


@pytest.mark.parametrize("length", [1, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 1])
@pytest.mark.parametrize("offset", [0, 3, BLOCK_BYTES])
def test_any_range_is_read_between_such_writes(offset: int, length: int, file: OsFile) -> None:
    file.write_directly()
    data = bytes_of(7, 3 * BLOCK_BYTES)
    file.pwrite([data[: 2 * BLOCK_BYTES]], 0)
    assert file.pread(offset, length) == data[: 2 * BLOCK_BYTES][offset : offset + length]
    file.pwrite([data[2 * BLOCK_BYTES :]], 2 * BLOCK_BYTES)
    assert file.pread(offset, length) == data[offset : offset + length]


def test_readers_beside_each_other_find_the_flag_taken_back(
    file: OsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes_of(8, 2 * BLOCK_BYTES)
    file.write_directly()
    file.pwrite([data], 0)
    change, seen = fcntl.fcntl, list[bytes]()

    def late(descriptor: int, command: int, argument: int = 0) -> int:
        if command == fcntl.F_SETFL and not seen:
            seen.append(b"")
            # Another reader, before the flag of this one's call is changed.
            seen.append(file.pread(3, 100))
        return change(descriptor, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", late)
    assert file.pread(0, len(data)) == data
    assert seen[1:] == [data[3:103]]


@pytest.mark.usefixtures("_small_buffer")
def test_a_reader_in_the_middle_of_a_write_harms_neither(
    file: OsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, write, seen = bytes_of(9, 3 * SMALL_BUFFER + 100), os.pwrite, list[bytes]()

    def read_too(descriptor: int, part: Buffer, offset: int) -> int:
        written = write(descriptor, part, offset)
        seen.append(file.pread(1, 100))
        return written

    file.write_directly()
    monkeypatch.setattr(os, "pwrite", read_too)
    file.pwrite([data], 0)
    assert set(seen) == {data[1:101]}
    assert file.pread(0, len(data) + 1) == data


def test_a_write_inside_of_a_block_is_an_ordinary_one(file: OsFile) -> None:
    file.pwrite([b"abc"], 0)
    file.write_directly()
    file.pwrite([bytes_of(2, BLOCK_BYTES)], 3)
    assert not is_direct(file)
    assert file.pread(0, 2 * BLOCK_BYTES) == b"abc" + bytes_of(2, BLOCK_BYTES)


def test_a_file_system_that_has_no_such_writes_is_written_as_before(
    file: OsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int, command: int, _argument: int = 0) -> int:
        if command == fcntl.F_SETFL:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return 0

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "fcntl", refuse)
        file.write_directly()
    assert not is_direct(file)
    expected = write_all(file, [[bytes_of(3, 3 * BLOCK_BYTES)], [b"end"]])
    assert file.pread(0, len(expected) + 1) == expected


def test_without_memory_for_the_buffer_it_is_written_as_before(
    file: OsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int, _length: int) -> mmap.mmap:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(mmap, "mmap", refuse)
    file.write_directly()
    assert not is_direct(file)
    expected = write_all(file, [[bytes_of(6, 3 * BLOCK_BYTES)], [b"end"]])
    assert file.pread(0, len(expected) + 1) == expected


def refusing_from(number: int, code: int) -> Callable[[int, Buffer, int], int]:
    """`os.pwrite` that fails from the call of this number on."""
    calls, write = 0, os.pwrite

    def pwrite(descriptor: int, data: Buffer, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls >= number:
            raise OSError(code, os.strerror(code))
        return write(descriptor, data, offset)

    return pwrite


@pytest.mark.usefixtures("_small_buffer")
@pytest.mark.parametrize("number", [1, 2, 3])
def test_one_that_refuses_a_write_gets_the_rest_as_before(
    number: int, file: OsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_directly()
    data = bytes_of(4, 3 * SMALL_BUFFER)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", refusing_from(number, errno.EINVAL))
        file.pwrite([data[:100], data[100:]], 0)
    assert not is_direct(file)
    assert file.pread(0, len(data) + 1) == data


@pytest.mark.usefixtures("_small_buffer")
def test_a_short_write_is_continued(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite

    def short(descriptor: int, data: Buffer, offset: int) -> int:
        return write(descriptor, memoryview(data)[:BLOCK_BYTES], offset)

    file.write_directly()
    data = bytes_of(5, 3 * SMALL_BUFFER)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", short)
        file.pwrite([data], 0)
    assert file.pread(0, len(data) + 1) == data


def test_other_errors_are_the_callers(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = DirectWriter(file._descriptor)
    monkeypatch.setattr(os, "pwrite", refusing_from(1, errno.ENOSPC))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        writer.write([bytes(BLOCK_BYTES)], 0)
