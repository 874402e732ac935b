"""StagingFolder: where the file storage writes an object before it has its name.

Files here belong to no object until they are linked to a name; what a dead process left is deleted.
Rules:

- every storage writes under a tag of its own, and holds the lock `<tag>.lock` for as long as it is
  alive;
- what belongs to a tag is removed by another only while holding that tag's lock: its owner is dead,
  even if several processes or several stores share one root;
- a folder that was removed from outside is made again, and the tag's lock taken again in it
  (`renew`).

Blocking, called from the storage's threads.
"""

from __future__ import annotations

import contextlib
import posixpath
import re

from segmentstore.contracts.disk import DiskFile, make_directories
from segmentstore.contracts.runtime import Runtime

FOLDER = "~staging"
"""Under the root. `~` may not stand in an object name, so no object can get in the way."""

_TAGGED = re.compile(r"([0-9a-f]{16})(?:\.lock|-[0-9]+-[0-9a-f]{32})")
_TAG_MAX = 2**64 - 1


class StagingFolder:
    """The staging files of one storage. `tag` is 64 random bits. Safe for several threads."""

    def __init__(self, runtime: Runtime, root: str, tag: int) -> None:
        self._disk = runtime.disk
        self._path = posixpath.join(root, FOLDER)
        self._tag = tag
        self._lock = runtime.lock()
        self._owned: DiskFile | None = None
        self._next = 0

    def new_path(self, unique_id: bytes) -> str:
        """A path for one attempt to put an object; never given twice.

        The first call, and the first after `renew`, makes the folder, removes what dead owners left
        and takes this owner's lock. Raises OSError.
        """
        with self._lock:
            if self._owned is None:
                make_directories(self._disk, self._path)
                self._remove_leftovers()
                self._owned = self._take_tag()
            self._next += 1
            return posixpath.join(self._path, f"{self._tag:016x}-{self._next}-{unique_id.hex()}")

    def renew(self) -> None:
        """A path that `new_path` gave is in a folder that is missing: have the next call make the
        folder again.
        """
        with self._lock:
            # Another thread may have come to the same before, and holds the new lock file.
            if self._owned is not None and not self._owned.is_at(self._lock_path(self._tag)):
                self._owned.close()
                self._owned = None

    def discard(self, path: str) -> None:
        """Remove a staging file, if it can be: one that stays is removed by the next owner."""
        with contextlib.suppress(OSError):
            self._disk.unlink(path)

    def close(self) -> None:
        """Give up the tag. Idempotent."""
        with self._lock:
            owned, self._owned = self._owned, None
            if owned is not None:
                self.discard(self._lock_path(self._tag))
                owned.close()

    def _take_tag(self) -> DiskFile:
        while True:
            path = self._lock_path(self._tag)
            try:
                owned = self._disk.lock(path)
            except BlockingIOError:
                self._tag = (self._tag + 1) & _TAG_MAX
                continue
            # Another storage that removes leftovers may have locked and removed the file between
            # its creation and our lock.
            if owned.is_at(path):
                return owned
            owned.close()

    def _remove_leftovers(self) -> None:
        names_of: dict[int, list[str]] = {}
        for name in self._disk.list_directory(self._path):
            match = _TAGGED.fullmatch(name)
            if match is not None and int(match[1], 16) != self._tag:
                names_of.setdefault(int(match[1], 16), []).append(name)
        for tag, names in names_of.items():
            lock_path = self._lock_path(tag)
            try:
                owned = self._disk.lock(lock_path)
            except BlockingIOError:
                continue
            try:
                for name in names:
                    path = posixpath.join(self._path, name)
                    if path != lock_path:
                        self.discard(path)
                self.discard(lock_path)
            finally:
                owned.close()

    def _lock_path(self, tag: int) -> str:
        return posixpath.join(self._path, f"{tag:016x}.lock")
