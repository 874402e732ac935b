"""DiskImage: the file system of a simulated world, in memory; and what becomes of it when the power
goes.

Pure: it knows no processes, no time and no faults (disk.py does). Rules of this file:

- errors are those of the operating system, by class and number;
- paths are absolute, or relative to "/", which is always there; no links to follow;
- a change of names is pending in its folder until that is synced. A rename within one folder is one
  change, one between two folders is two, that of the target first;
- room is counted in blocks of the files that have a name; folders and names need none;
- bytes are changed through the `Inode` a path leads to, which stays without a name as an
  open file does.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final

from recovery.harness.simulation.disk_nodes import Directory, Inode, Node, copy_tree
from recovery.harness.simulation.power_cut import (
    Everything,
    Fate,
    Nothing,
    Results,
    cut_power,
    draw_fate,
)

DIRECTORY_BYTES: Final = 4096
"""What a folder says its length is."""
BLOCK_BYTES: Final = 4096
OUTCOMES_COUNTED: Final = 4096
_TRIES: Final = 4
"""Power cuts tried for each result that is wanted, where there are too many to go through."""


@lru_cache(maxsize=4096)
def parts_of(path: str) -> tuple[str, ...]:
    """The names on the way from "/" to `path`."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in {"", "."}:
            parts.append(part)
    return tuple(parts)


class DiskImage:
    """One disk. `DiskImage()` is empty."""

    def __init__(self, root: Directory | None = None) -> None:
        self._root = root if root is not None else Directory()
        self._locks: dict[Inode, tuple[str, object]] = {}
        self.capacity: int | None = None
        """Bytes all files together may take, in whole blocks; None: there is always room."""

    # --- checking
    # ----------------------------------------------------------------------------------

    def find(self, path: str) -> Node | None:
        """What has this name; None if its folder has no such.

        FileNotFoundError, NotADirectoryError: there is no folder.
        """
        node: Node = self._root
        parts = parts_of(path)
        last = len(parts) - 1
        for number, part in enumerate(parts):
            if isinstance(node, Inode):
                raise _error(errno.ENOTDIR, path)
            there = node.names.get(part)
            if there is None:
                if number < last:
                    raise _error(errno.ENOENT, path)
                return None
            node = there
        return node

    def get(self, path: str) -> Node:
        """What has this name. FileNotFoundError, NotADirectoryError."""
        node = self.find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        return node

    def get_directory(self, path: str) -> Directory:
        """The folder of this name. FileNotFoundError, NotADirectoryError."""
        node = self.get(path)
        if isinstance(node, Inode):
            raise _error(errno.ENOTDIR, path)
        return node

    def files(self) -> list[str]:
        """Paths of all files, as they are seen, sorted."""
        return [path for path, node in self._walk() if isinstance(node, Inode)]

    def read(self, path: str) -> bytes:
        """The whole of a file as it is seen.

        FileNotFoundError, NotADirectoryError, IsADirectoryError.
        """
        return bytes(self._file(path).current)

    def synced_extents(self, path: str) -> list[tuple[int, int]]:
        """(offset, length) of the latest synced writes to a file, at most EXTENTS_MAX, in the order
        they were made in.
        """
        return list(self._file(path).synced)

    def fingerprint(self) -> str:
        """A digest of all names and bytes that are seen: equal for equal images.

        Reads everything.
        """
        digest = hashlib.blake2b(digest_size=16)
        for path, node in self._walk():
            length = len(node.current) if isinstance(node, Inode) else -1
            digest.update(f"{len(path)} {path} {length}\n".encode())
            if isinstance(node, Inode):
                digest.update(node.current)
        return digest.hexdigest()

    # --- room -------------------------------------------------------------------------------------

    def used(self) -> int:
        """Bytes of the blocks of all files. Costs their number."""
        files = {node for _, node in self._walk() if isinstance(node, Inode)}
        return sum(_blocks(file) for file in files) * BLOCK_BYTES

    def fill(self) -> None:
        """Whatever room was left, something else has taken it: files grow only by what others give
        up.
        """
        self.capacity = self.used()

    def growth(self, file: Inode, length: int) -> int:
        """How long a file may become that is to become `length` long, or is longer."""
        if self.capacity is None or length <= _blocks(file) * BLOCK_BYTES:
            return length
        free = max(0, self.capacity - self.used())
        return min(length, (_blocks(file) + free // BLOCK_BYTES) * BLOCK_BYTES)

    # --- names ------------------------------------------------------------------------------------

    def create(self, path: str) -> Inode:
        """A new empty file. FileExistsError, FileNotFoundError, NotADirectoryError."""
        made = Inode()
        self._name_new(path, made)
        return made

    def make_directory(self, path: str) -> Directory:
        """A new empty folder. FileExistsError, FileNotFoundError, NotADirectoryError."""
        made = Directory()
        self._name_new(path, made)
        return made

    def link(self, source: str, target: str) -> None:
        """Another name for a file.

        FileExistsError, PermissionError (a folder), FileNotFoundError, NotADirectoryError.
        """
        file = self.get(source)
        if isinstance(file, Directory):
            if self.find(target) is not None:
                raise _error(errno.EEXIST, target)
            raise _error(errno.EPERM, source)
        self._name_new(target, file)

    def unlink(self, path: str) -> None:
        """Take away a name. FileNotFoundError, NotADirectoryError, IsADirectoryError."""
        self._file(path)
        folder, name = self._place(path)
        folder.change(((name, None),))

    def rename(self, source: str, target: str) -> None:
        """Replaces what is at `target`; nothing happens if both are names of one file.

        FileNotFoundError, NotADirectoryError, IsADirectoryError, OSError(ENOTEMPTY, EINVAL).
        """
        node, there = self.get(source), self.find(target)
        if node is there:
            return
        if isinstance(node, Directory):
            if parts_of(target)[: len(parts_of(source))] == parts_of(source):
                raise _error(errno.EINVAL, target)
            if isinstance(there, Inode):
                raise _error(errno.ENOTDIR, target)
            if there is not None and there.names:
                raise _error(errno.ENOTEMPTY, target)
        elif isinstance(there, Directory):
            raise _error(errno.EISDIR, target)
        (old_folder, old_name), (new_folder, new_name) = self._place(source), self._place(target)
        if old_folder is new_folder:
            new_folder.change(((old_name, None), (new_name, node)))
        else:
            new_folder.change(((new_name, node),))
            old_folder.change(((old_name, None),))

    def remove_directory(self, path: str) -> None:
        """Take away an empty folder. FileNotFoundError, NotADirectoryError, OSError(ENOTEMPTY)."""
        self.check_removable(path)
        folder, name = self._place(path)
        folder.change(((name, None),))

    def check_removable(self, path: str) -> None:
        """Raises what `remove_directory` would."""
        if self.get_directory(path).names:
            raise _error(errno.ENOTEMPTY, path)

    def sync_directory(self, path: str) -> None:
        """What was changed in this folder is durable. FileNotFoundError, NotADirectoryError."""
        self.get_directory(path).sync()

    # --- locks ------------------------------------------------------------------------------------

    def lock(self, file: Inode, process: str, handle: object) -> None:
        """Give the one lock of a file to a handle of a process.

        BlockingIOError if another handle has it.
        """
        if file in self._locks:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
        self._locks[file] = (process, handle)

    def unlock(self, file: Inode, handle: object) -> None:
        """Take the lock back, if this handle still has it."""
        held = self._locks.get(file)
        if held is not None and held[1] is handle:
            del self._locks[file]

    def release_locks(self, process: str) -> None:
        """The process has died: its locks are free."""
        self._locks = {file: held for file, held in self._locks.items() if held[0] != process}

    def expire_locks(self, process: str) -> None:
        """The lease of a process has run out while it was paused: its handles hold nothing, and it
        does not know.
        """
        self.release_locks(process)

    # --- misfortune -------------------------------------------------------------------------------

    def lose_power(self, rng: random.Random, reach: Callable[[str], None]) -> None:
        """Become what a power cut leaves.

        Often all of the pending changes, or none, and mostly some of them.

        `reach` gets the fault point of each change that is decided; `power.cut` itself is its
        caller's to count.
        """
        self.cut(draw_fate(rng), reach)

    def cut(self, fate: Fate, reach: Callable[[str], None]) -> None:
        """Become what a power cut with this fate leaves."""
        cut_power(self._root, fate, reach)
        self._locks.clear()

    def outcomes(self, cap: int, rng: random.Random) -> Iterator[DiskImage]:
        """Every different result of a power cut; if there are more than `cap`, that many different
        ones by chance.

        What loses everything comes first; what keeps everything is always there. The names are what
        distinguishes results: where two files hold the same bytes, results may look the same.
        """
        results = Results(self._root, cap)
        if results.count() <= cap:
            yield from map(DiskImage, results)
            return
        known: dict[str, None] = {}
        for number in range(cap * _TRIES):
            image = self.copy()
            fate = (Nothing(), Everything())[number] if number < 2 else draw_fate(rng)
            image.cut(fate, _ignore)
            fingerprint = image.fingerprint()
            if fingerprint not in known:
                known[fingerprint] = None
                yield image
                if len(known) == cap:
                    return

    def outcome_count(self, limit: int = OUTCOMES_COUNTED) -> int:
        """How many results `outcomes` would go through; `limit` + 1 if there are more than that."""
        return Results(self._root, limit).count()

    def flip_bit(self, path: str, offset: int, bit: int) -> None:
        """Bit rot in a byte of a file, seen and durable. IndexError behind its end."""
        file = self._file(path)
        file.current[offset] ^= 1 << bit
        if offset < len(file.durable):
            file.durable[offset] ^= 1 << bit

    def copy(self) -> DiskImage:
        """An independent one, with all that is pending and locked. Costs about its bytes."""
        root, files = copy_tree(self._root)
        made = DiskImage(root)
        made.capacity = self.capacity
        made._locks = {files[file]: held for file, held in self._locks.items() if file in files}
        return made

    # --- inside -----------------------------------------------------------------------------------

    def _file(self, path: str) -> Inode:
        node = self.get(path)
        if isinstance(node, Directory):
            raise _error(errno.EISDIR, path)
        return node

    def _place(self, path: str) -> tuple[Directory, str]:
        """The folder a name is in, and the name."""
        parts = parts_of(path)
        if not parts:
            raise _error(errno.EBUSY, path)
        node: Node = self._root
        for part in parts[:-1]:
            if isinstance(node, Inode):
                break
            there = node.names.get(part)
            if there is None:
                raise _error(errno.ENOENT, path)
            node = there
        if isinstance(node, Inode):
            raise _error(errno.ENOTDIR, path)
        return node, parts[-1]

    def _name_new(self, path: str, node: Node) -> None:
        if self.find(path) is not None:
            raise _error(errno.EEXIST, path)
        folder, name = self._place(path)
        folder.change(((name, node),))

    def _walk(self) -> Iterator[tuple[str, Node]]:
        """Everything below "/" with its path, sorted by the path."""
        found: list[tuple[str, Node]] = []
        waiting: list[tuple[str, Directory]] = [("", self._root)]
        while waiting:
            above, folder = waiting.pop()
            for name, node in folder.names.items():
                found.append((f"{above}/{name}", node))
                if isinstance(node, Directory):
                    waiting.append((f"{above}/{name}", node))
        yield from sorted(found, key=lambda item: item[0])


def _blocks(file: Inode) -> int:
    return -(-max(len(file.current), file.allocated) // BLOCK_BYTES)


def _error(code: int, path: str) -> OSError:
    """The error of this number, of the class Python gives it."""
    return OSError(code, os.strerror(code), path)


def _ignore(point: str) -> None:
    """Results that are processed are not chance's, and count as no fault."""
