"""The image of a simulated disk: what is durable when, and what a power cut may leave."""

from __future__ import annotations

import errno
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.harness.simulation.disk_image import DiskImage
from recovery.harness.simulation.disk_nodes import Inode
from recovery.harness.simulation.fault_points import TABLE
from recovery.harness.simulation.power_cut import Everything, Fate, Nothing
from tests.support.suites import examples

SECTOR = 512


def image_with(**files: bytes) -> DiskImage:
    image = DiskImage()
    for name, content in files.items():
        file = image.create(f"/{name}")
        if content:
            file.write(0, content)
            file.sync()
    image.sync_directory("/")
    return image


def file_at(image: DiskImage, path: str) -> Inode:
    node = image.find(path)
    assert isinstance(node, Inode)
    return node


def after(image: DiskImage, fate: Fate) -> dict[str, bytes]:
    """What a power cut leaves; the image itself stays as it is."""
    left = image.copy()
    left.cut(fate, lambda _: None)
    return contents(left)


def contents(image: DiskImage) -> dict[str, bytes]:
    return {path: image.read(path) for path in image.files()}


def everything_left(image: DiskImage, cap: int = 10_000) -> list[dict[str, bytes]]:
    return [contents(left) for left in image.outcomes(cap, random.Random(1))]


def chances(image: DiskImage, count: int) -> list[tuple[dict[str, bytes], list[str]]]:
    """What so many power cuts leave, and the fault points each was."""
    found = []
    for seed in range(count):
        left, points = image.copy(), list[str]()
        left.lose_power(random.Random(seed), points.append)
        found.append((contents(left), points))
    return found


# --- what is durable ------------------------------------------------------------------------------


def test_a_write_is_seen_at_once_and_durable_after_its_sync() -> None:
    image = image_with(a=b"old")
    file = file_at(image, "/a")
    file.write(1, b"XYZ")
    assert image.read("/a") == b"oXYZ"
    assert after(image, Nothing()) == {"/a": b"old"}
    assert after(image, Everything()) == {"/a": b"oXYZ"}
    file.sync()
    assert after(image, Nothing()) == {"/a": b"oXYZ"}
    assert image.outcome_count() == 1


def test_a_gap_in_front_of_a_write_is_zeros() -> None:
    image = image_with(a=b"ab")
    file_at(image, "/a").write(5, b"c")
    assert image.read("/a") == b"ab\0\0\0c"


def test_truncation_is_pending_like_a_write() -> None:
    image = image_with(a=b"abcdef")
    file = file_at(image, "/a")
    file.truncate(2)
    file.truncate(4)
    assert image.read("/a") == b"ab\0\0"
    assert after(image, Nothing()) == {"/a": b"abcdef"}
    file.sync()
    assert after(image, Nothing()) == {"/a": b"ab\0\0"}


def test_what_a_failed_sync_was_for_is_seen_and_never_becomes_durable() -> None:
    image = image_with(a=b"......")
    file = file_at(image, "/a")
    file.write(0, b"AA")
    file.fail_sync()
    file.sync()
    file.write(4, b"BB")
    file.sync()
    assert image.read("/a") == b"AA..BB"
    assert after(image, Nothing()) == {"/a": b"....BB"}
    assert {left["/a"] for left in everything_left(image)} == {b"....BB", b"AA..BB"}


def test_what_was_synced_after_a_failed_sync_lies_over_what_that_was_for() -> None:
    image = image_with(a=b"......")
    file = file_at(image, "/a")
    file.write(0, b"AAAA")
    file.fail_sync()
    file.write(2, b"BBBBBB")
    file.sync()
    assert {left["/a"] for left in everything_left(image)} == {b"..BBBBBB", b"AABBBBBB"}
    file.truncate(1)
    file.sync()
    assert {left["/a"] for left in everything_left(image)} == {b".", b"A"}


def test_a_file_is_lost_with_its_name_however_often_it_was_synced() -> None:
    image = image_with()
    file = image.create("/a")
    file.write(0, b"x")
    file.sync()
    assert after(image, Nothing()) == {}
    image.sync_directory("/")
    assert after(image, Nothing()) == {"/a": b"x"}


def test_a_folder_is_lost_with_all_that_is_in_it_until_its_own_name_is_synced() -> None:
    image = image_with()
    image.make_directory("/d")
    image.create("/d/a")
    image.sync_directory("/d")
    assert after(image, Nothing()) == {}
    image.sync_directory("/")
    assert after(image, Nothing()) == {"/d/a": b""}
    image.unlink("/d/a")
    image.sync_directory("/d")
    image.remove_directory("/d")
    assert image.find("/d") is None
    left = image.copy()
    left.cut(Nothing(), lambda _: None)
    assert left.find("/d") is not None


def test_a_rename_within_a_folder_is_one_change() -> None:
    image = image_with(new=b"new", old=b"old")
    image.rename("/new", "/old")
    assert contents(image) == {"/old": b"new"}
    assert everything_left(image) == [{"/new": b"new", "/old": b"old"}, {"/old": b"new"}]


def test_a_rename_between_folders_is_two_changes() -> None:
    image = image_with(a=b"a")
    image.make_directory("/d")
    image.sync_directory("/")
    image.rename("/a", "/d/a")
    left = everything_left(image)
    assert len(left) == 4
    assert {"/a": b"a", "/d/a": b"a"} in left
    assert {} in left
    image.sync_directory("/d")
    assert everything_left(image) == [{"/a": b"a", "/d/a": b"a"}, {"/d/a": b"a"}]


def test_changes_of_names_survive_in_any_subset() -> None:
    image = image_with(tmp=b"x")
    image.link("/tmp", "/log")
    image.unlink("/tmp")
    left = everything_left(image)
    assert [sorted(files) for files in left] == [["/tmp"], ["/log", "/tmp"], [], ["/log"]]


def test_two_names_of_one_file_hold_the_same_bytes_afterwards() -> None:
    image = image_with(a=bytes(4 * SECTOR))
    image.link("/a", "/b")
    image.sync_directory("/")
    file_at(image, "/b").write(0, b"z" * 4 * SECTOR)
    for left in everything_left(image):
        assert left["/a"] == left["/b"]
    for left, _ in chances(image, 50):
        assert left["/a"] == left["/b"]


# --- power cuts -----------------------------------------------------------------------------------


def test_outcomes_are_every_combination_and_each_once() -> None:
    image = image_with(a=bytes(3 * SECTOR), b=b"..")
    # Lost, kept, and a beginning and an end at each of two boundaries.
    file_at(image, "/a").write(0, b"A" * 3 * SECTOR)
    file_at(image, "/b").write(0, b"B")
    file_at(image, "/b").write(1, b"C")
    image.create("/c")
    assert image.outcome_count() == 6 * 4 * 2
    images = list(image.outcomes(48, random.Random(1)))
    left = [contents(one) for one in images]
    assert len({one.fingerprint() for one in images}) == 48
    assert after(image, Nothing()) == left[0]
    assert after(image, Everything()) in left
    assert {files["/b"] for files in left} == {b"..", b"B.", b".C", b"BC"}
    assert all(one.outcome_count() == 1 for one in images)


def test_outcomes_of_a_file_that_grew_have_each_length_with_and_without_the_bytes() -> None:
    image = image_with(a=b"a")
    file_at(image, "/a").write(1, b"BCD")
    assert [left["/a"] for left in everything_left(image)] == [b"a", b"a\0\0\0", b"aBCD"]


def test_outcomes_beyond_the_cap_are_drawn_and_hold_the_two_extremes() -> None:
    image = image_with(a=bytes(20 * SECTOR))
    for number in range(20):
        file_at(image, "/a").write(number * SECTOR, b"%02d" % number * (SECTOR // 2))
        image.create(f"/{number}")
    assert image.outcome_count(100) == 101
    images = list(image.outcomes(100, random.Random(3)))
    assert len({one.fingerprint() for one in images}) == 100
    left = [contents(one) for one in images]
    assert after(image, Nothing()) == left[0]
    assert after(image, Everything()) == left[1]
    again = [one.fingerprint() for one in image.outcomes(100, random.Random(3))]
    assert again == [one.fingerprint() for one in images]


def test_equal_seeds_leave_equal_disks() -> None:
    def run(seed: int) -> tuple[str, list[str]]:
        image, points, rng = image_with(a=b"a", b=b"b"), list[str](), random.Random(seed)
        for number in range(40):
            image.create(f"/{number}").write(rng.randrange(9), rng.randbytes(3000))
            file_at(image, "/a").write(rng.randrange(9000), rng.randbytes(3000))
        image.lose_power(rng, points.append)
        return image.fingerprint(), points

    assert run(5) == run(5)
    assert run(5) != run(6)


def test_every_point_of_a_power_cut_is_met_and_the_extremes_are_common() -> None:
    image = image_with(a=bytes(16 * SECTOR))
    for offset in (0, 5000, 8000):
        file_at(image, "/a").write(offset, b"x" * 9000)
    image.create("/b")
    image.create("/c")
    nothing, everything = after(image, Nothing()), after(image, Everything())
    cuts = chances(image, 300)
    counts = Counter(point for _, points in cuts for point in points)
    assert set(counts) == {point for point in TABLE if point.startswith("power.")} - {"power.cut"}
    assert sum(left == nothing for left, _ in cuts) > 20
    assert sum(left == everything for left, _ in cuts) > 20
    assert sum(left not in (nothing, everything) for left, _ in cuts) > 100


def test_after_a_power_cut_nothing_is_pending_and_nothing_is_locked() -> None:
    image = image_with(a=b"a")
    file = file_at(image, "/a")
    image.lock(file, "p", file)
    file.write(0, bytes(5000))
    image.create("/b")
    image.lose_power(random.Random(0), lambda _: None)
    assert image.outcome_count() == 1
    assert after(image, Nothing()) == contents(image)
    image.lock(file, "q", "handle")


places = st.tuples(st.just("write"), st.integers(0, 6 * SECTOR), st.integers(1, 4 * SECTOR))
lengths = st.tuples(st.just("truncate"), st.integers(0, 8 * SECTOR), st.just(0))
syncs = st.tuples(st.just("sync"), st.just(0), st.just(0))
failed_syncs = st.tuples(st.just("fail_sync"), st.just(0), st.just(0))


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.one_of(places, places, lengths, syncs), max_size=12), st.integers(0, 2**32))
def test_each_byte_a_power_cut_leaves_is_the_durable_one_or_one_written_since(
    steps: list[tuple[str, int, int]], seed: int
) -> None:
    image = image_with(a=b"")
    file = file_at(image, "/a")
    possible = [{0} for _ in range(10 * SECTOR)]
    least = most = 0
    for number, (what, place, length) in enumerate(steps, 1):
        if what == "write":
            file.write(place, bytes([number]) * length)
            for values in possible[place : place + length]:
                values.add(number)
            most = max(most, place + length)
        elif what == "truncate":
            file.truncate(place)
            least, most = min(least, place), max(most, place)
        else:
            file.sync()
            seen = image.read("/a")
            least = most = len(seen)
            possible = [{byte} for byte in seen.ljust(10 * SECTOR, b"\0")]
    image.lose_power(random.Random(seed), lambda _: None)
    left = image.read("/a")
    assert least <= len(left) <= most
    for position, byte in enumerate(left):
        assert byte in possible[position] or (byte == 0 and position >= least)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.one_of(places, places, syncs, failed_syncs), max_size=12), st.integers(0, 2**32))
def test_no_byte_is_older_than_what_was_synced_whatever_syncs_failed(
    steps: list[tuple[str, int, int]], seed: int
) -> None:
    image = image_with(a=b"")
    file = file_at(image, "/a")
    least = [0] * (10 * SECTOR)
    length_synced = 0
    unsynced: list[tuple[int, int, int]] = []
    for number, (what, place, length) in enumerate(steps, 1):
        if what == "write":
            file.write(place, bytes([number]) * length)
            unsynced.append((number, place, place + length))
        elif what == "fail_sync":
            file.fail_sync()
            unsynced.clear()
        else:
            file.sync()
            for written, start, end in unsynced:
                least[start:end] = [written] * (end - start)
                length_synced = max(length_synced, end)
            unsynced.clear()
    seen = image.read("/a")
    surely = after(image, Nothing())["/a"]
    assert surely == bytes(least[:length_synced])
    image.lose_power(random.Random(seed), lambda _: None)
    left = image.read("/a")
    assert length_synced <= len(left) <= len(seen)
    for position, byte in enumerate(left):
        assert least[position] <= byte <= seen[position]


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 2000), st.integers(1, 9000), st.integers(0, 2**32))
def test_a_torn_write_is_whole_in_every_sector(offset: int, length: int, seed: int) -> None:
    image = image_with(a=b"o" * 16_384)
    file_at(image, "/a").write(offset, b"n" * length)
    points: list[str] = []
    image.lose_power(random.Random(seed), points.append)
    (point,) = points
    unit = 4096 if point == "power.write.torn-4096" else SECTOR
    left = image.read("/a")
    parts = [
        left[max(start, offset) : min(start + unit, offset + length)]
        for start in range(0, 16_384, unit)
    ]
    assert all(len(set(part)) <= 1 for part in parts)
    assert set(left[:offset] + left[offset + length :]) <= {ord("o")}
    whole = len({part[0] for part in parts if part}) == 1
    assert whole != point.startswith("power.write.torn")


# --- the rest -------------------------------------------------------------------------------------


def test_a_copy_is_independent_and_has_what_is_pending() -> None:
    image = image_with(a=b"a")
    file_at(image, "/a").write(1, b"b")
    image.link("/a", "/c")
    image.lock(file_at(image, "/a"), "p", "handle")
    other = image.copy()
    before = other.fingerprint()
    assert before == image.fingerprint()
    assert everything_left(other) == everything_left(image)
    file_at(image, "/a").write(0, b"z")
    image.unlink("/c")
    image.release_locks("p")
    assert other.fingerprint() == before != image.fingerprint()
    assert file_at(other, "/a") is file_at(other, "/c")
    with pytest.raises(BlockingIOError):
        other.lock(file_at(other, "/a"), "q", "handle")


def test_locks_belong_to_a_handle_of_a_process() -> None:
    image = image_with(a=b"", b=b"")
    one, two = file_at(image, "/a"), file_at(image, "/b")
    image.lock(one, "p", "first")
    image.lock(two, "q", "second")
    with pytest.raises(BlockingIOError):
        image.lock(one, "p", "third")
    image.unlock(one, "third")
    with pytest.raises(BlockingIOError):
        image.lock(one, "q", "fourth")
    image.expire_locks("p")
    image.lock(one, "q", "fourth")
    image.unlock(one, "first")
    with pytest.raises(BlockingIOError):
        image.lock(one, "p", "first")
    image.release_locks("q")
    image.lock(two, "p", "first")


def test_a_flipped_bit_is_seen_and_durable() -> None:
    image = image_with(a=b"abc")
    image.flip_bit("/a", 1, 0)
    assert image.read("/a") == b"acc"
    assert after(image, Nothing()) == {"/a": b"acc"}
    with pytest.raises(IndexError):
        image.flip_bit("/a", 3, 0)


def test_synced_extents_are_the_latest_durable_writes() -> None:
    image = image_with(a=b"abc")
    file = file_at(image, "/a")
    file.write(3, b"de")
    assert image.synced_extents("/a") == [(0, 3)]
    file.sync()
    assert image.synced_extents("/a") == [(0, 3), (3, 2)]
    for _ in range(100):
        file.write(0, b"x")
        file.sync()
    assert image.synced_extents("/a") == [(0, 1)] * 64


def test_the_fingerprint_distinguishes_names_bytes_and_folders() -> None:
    made = [
        image_with(),
        image_with(a=b""),
        image_with(b=b""),
        image_with(a=b"x"),
        image_with(a=b"", b=b""),
    ]
    folder = image_with()
    folder.make_directory("/a")
    assert len({image.fingerprint() for image in (*made, folder)}) == 6
    turned = image_with(b=b"2", a=b"1")
    assert turned.fingerprint() == image_with(a=b"1", b=b"2").fingerprint()
    assert turned.files() == ["/a", "/b"]


def test_paths_lead_from_the_root_whatever_their_form() -> None:
    image = image_with()
    image.make_directory("/d")
    made = image.create("/d/a")
    assert image.find("d//x/../a") is made
    assert image.find("/d/./a") is made
    with pytest.raises(OSError, match="empty"):
        image.remove_directory("/../d")
    image.unlink("../d/a")
    image.remove_directory("/./d/")
    with pytest.raises(OSError, match="busy") as caught:
        image.remove_directory("/..")
    assert caught.value.errno == errno.EBUSY
