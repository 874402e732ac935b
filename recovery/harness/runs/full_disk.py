"""What a store may hold of a disk that is full, once it has had time to give up what it can.

With Tier 2 elsewhere and well, everything is flushed by then. What is left of a log is its last
file, the one before if the truncation point lies there, and one that is prepared. More is room that
is never given back.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Final

from durablelog.file.log_layout import LOCK_NAME, RESERVE_NAME, state_version
from recovery.harness.history import Violation
from recovery.harness.simulation.disk_image import DiskImage
from recovery.harness.simulation.store_world import LOCATION, StoreWorld
from recovery.harness.simulation.virtual_loop import WedgedError
from segmentstore.service import SegmentStore
from segmentstore.store_folder import log_directory

FILES_MAX: Final = 3
TIMEOUT_S: Final = 300.0
"""Virtual time after which the test makes room on a full disk."""


def wait_on_full_disk(
    world: StoreWorld, done: Callable[[], bool], store: Callable[[], SegmentStore | None]
) -> list[Violation]:
    """A while without help; then every owner that still waits must have given up what it could, and
    room is freed.
    """
    found: list[Violation] = []
    try:
        world.run(done, TIMEOUT_S)
    except WedgedError:
        found = full_disk_held(world.image, store())
    world.image.capacity = None
    return found


def full_disk_held(image: DiskImage, store: SegmentStore | None) -> list[Violation]:
    """Of a store whose containers wait for room: logs that hold more than they may."""
    found = []
    for container in store._parts.containers if store is not None else ():  # noqa: SLF001
        # Its log is reported nowhere else. Frames of one large append, sent just before the disk
        # filled, may take more than the reserve has: then nothing goes on until there is room
        # (docs/limits.md).
        log = container._log  # noqa: SLF001 - `stats` of the container wants a running loop.
        if not container.lacks_log_room or log.statistics().frames_in_flight:
            continue
        # No checkpoint of it truncates the log before its catalog finds room (decision 0058).
        if container.snapshot_in_progress:
            continue
        folder = log_directory(LOCATION, container.container_id)
        names = [
            posixpath.basename(path) for path in image.files() if posixpath.dirname(path) == folder
        ]
        files = [
            name
            for name in names
            if name not in {LOCK_NAME, RESERVE_NAME} and state_version(name) is None
        ]
        if len(files) > FILES_MAX:
            found.append(
                Violation(
                    "log", f"a full disk, and container {container.container_id} holds {files}"
                )
            )
    return found
