"""Bit rot: one bit of something durable flips by itself, and can be flipped back, as a repair from
a copy would.

Only in places where the engine can distinguish rot from a torn tail: not in what was synced last to
a log file.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from durablelog.file.log_layout import file_number, parse_retained_name
from recovery.harness.simulation.disk_image import DiskImage
from recovery.harness.simulation.store_world import LOCATION, TIER2, StoreWorld


def plant_bit_rot(world: StoreWorld, point: str, rng: random.Random) -> Callable[[], None] | None:
    """Flip a bit; what flips it back, or None if there is nothing to flip.

    No process has the store open.
    """
    if point == "rot.log":
        return _flip_file_bit(world, point, f"{LOCATION}/log/", ".log", rng)
    if world.tier2 == "file":
        return _flip_file_bit(world, point, f"{TIER2}/", "", rng)
    names = sorted(world.bucket.objects)
    if not names:
        return None
    name = rng.choice(names)
    offset, bit = rng.randrange(len(world.bucket.objects[name].data)), rng.randrange(8)
    world.reach(point)
    world.bucket.flip_bit(name, offset, bit)

    def undo() -> None:
        if name in world.bucket.objects:
            world.bucket.flip_bit(name, offset, bit)

    return undo


def _flip_file_bit(
    world: StoreWorld, point: str, folder: str, suffix: str, rng: random.Random
) -> Callable[[], None] | None:
    image = world.image
    places = [
        (path, extent)
        for path in image.files()
        if path.startswith(folder) and path.endswith(suffix) and "~staging" not in path
        for extent in _settled(image.synced_extents(path), last_counts=not suffix)
    ]
    if not places:
        return None
    path, (start, length) = rng.choice(places)
    offset, bit = start + rng.randrange(length), rng.randrange(8)
    world.reach(point)
    image.flip_bit(path, offset, bit)
    flipped = image.read(path)[offset]

    def undo() -> None:
        # A name is never used twice, nor is a byte below what is durable written again: what is
        # there is what rotted.
        for there in _names_of(image, path):
            if image.read(there)[offset : offset + 1] == bytes((flipped,)):
                image.flip_bit(there, offset, bit)
                return

    return undo


def _names_of(image: DiskImage, path: str) -> Iterator[str]:
    """The name of a file, and those of the same log file where it is retained meanwhile."""
    folder, _, name = path.rpartition("/")
    number = file_number(name)
    for there in image.files():
        above, _, below = there.rpartition("/")
        retained = parse_retained_name(below) if above == folder else None
        if there == path or (retained is not None and retained.number == number):
            yield there


def _settled(extents: list[tuple[int, int]], *, last_counts: bool) -> list[tuple[int, int]]:
    """Where rot can be distinguished from a torn tail: below what was synced last, which says that
    all before it was durable.
    """
    if last_counts or not extents:
        return extents
    end = extents[-1][0]
    return [(start, min(length, end - start)) for start, length in extents if start < end]
