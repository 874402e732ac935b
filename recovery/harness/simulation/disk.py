"""SimulatedDisk: the `Disk` one process of a simulated world has, on the image all of them share.

Rules of this file:

- a call that changes something is announced first (`process.effect`, where crashes strike) and then
  may meet a fault. Then it changes the image in one step, and lets time pass. A call that finds no
  file, or one in its way, is neither announced nor met by a fault;
- a call that reads checks first and then lets time pass: its answer may be old when it arrives;
- a dead process reads and closes without harm, and changes nothing;
- lock files are no effects: what they hold goes with the process that has them.
"""

from __future__ import annotations

import errno
import os
import random
import zlib
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from recovery.harness.simulation.disk_image import DIRECTORY_BYTES, DiskImage, parts_of
from recovery.harness.simulation.disk_nodes import Directory, Inode, Node
from recovery.harness.simulation.disk_roles import effect_of, folder_role, role_of
from segmentstore.contracts.checksum import Buffer, crc32c
from segmentstore.contracts.disk import KernelSyncs
from segmentstore.contracts.runtime import Clock

_WRITE_S: Final = (20e-6, 40e-6)
"""Time of a call, as the least and what chance adds."""
_SYNC_S: Final = (80e-6, 320e-6)
_SLOW_SYNC_S: Final = (5e-3, 45e-3)
_SLOW_SYNCS: Final = 0.002
_NAME_S: Final = (15e-6, 10e-6)
_SYNC_DIRECTORY_S: Final = (100e-6, 200e-6)
_READ_S: Final = (8e-6, 4e-6)
_CHECKS_THAT_WAIT: Final = 0.2
"""What only checks mostly takes no time, as from the page cache: a fifth of the turns suffice to
let others in between.
"""
_STALL_S: Final = (1.0, 19.0)


class DiskWorld(Protocol):
    """What a disk needs of its world."""

    @property
    def clock(self) -> Clock:
        """Wall time, for modification times."""

    def strikes(self, point: str) -> bool:
        """True if this fault happens now."""

    def reach(self, point: str) -> None:
        """Count a fault that happens by itself."""


class DiskProcess(Protocol):
    """What a disk needs of the process that has it."""

    @property
    def name(self) -> str:
        """Whose locks these are."""

    @property
    def world(self) -> DiskWorld:
        """Where faults come from."""

    @property
    def random(self) -> random.Random:
        """Where latencies come from."""

    @property
    def dead(self) -> bool:
        """Nothing it does has an effect any more."""

    def effect(self, kind: str, place: str, detail: str = "") -> None:
        """About to change something; does not return if the process dies here."""

    def note_read(self) -> None:
        """Has seen something outside, and has done nothing about it yet."""

    def give_way(self, seconds: float) -> None:
        """Let time pass; does not return if the process is dead."""


class SimulatedFile:
    """A DiskFile. Costs a few microseconds a call."""

    def __init__(self, disk: SimulatedDisk, node: Node, path: str, *, write: bool) -> None:
        self._disk = disk
        self._node = node
        self._path = path
        self._write = write
        self._closed = False

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> None:
        file = self._writable(errno.EBADF)
        data = bytes(buffers[0]) if len(buffers) == 1 else b"".join(buffers)
        if not data:
            return
        disk = self._disk
        late = disk.begin(
            effect_of("write", file.role), file.path, f"{offset}+{len(data)} {crc32c(data):08x}"
        )
        failure = disk.write_fault(len(data)) or disk.no_room(file, offset, len(data))
        if failure is not None:
            data = data[: failure[1]]
        if data:
            file.write(offset, data)
            file.modified_ms = disk.now_ms()
        disk.wait(_WRITE_S, late)
        if failure is not None:
            raise _error(failure[0], file.path)

    def pread(self, offset: int, length: int) -> bytes:
        node = self._open()
        if isinstance(node, Directory):
            raise _error(errno.EISDIR, self._path)
        self._disk.check_read(self._path)
        data = bytes(memoryview(node.current)[offset : offset + length])
        self._disk.wait_after_check()
        return data

    def sync(self) -> None:
        if self._closed:
            raise ValueError("the file descriptor is closed")
        file, disk = self._node, self._disk
        if isinstance(file, Directory):
            disk.sync_directory(self._path)
            return
        late = disk.begin(effect_of("sync", file.role), file.path)
        if disk.strikes("disk.sync.eio"):
            file.fail_sync()
            disk.wait(_SYNC_S, late)
            raise _error(errno.EIO, file.path)
        file.sync()
        disk.wait(_SYNC_S, late)

    def size(self) -> int:
        return _size(self._open())

    def truncate(self, length: int) -> None:
        file = self._writable(errno.EINVAL)
        disk = self._disk
        late = disk.begin(effect_of("write", file.role), file.path, f"length {length}")
        disk.fault("disk.write.eio", errno.EIO, file.path)
        if disk.no_room(file, 0, length) is not None:
            raise _error(errno.ENOSPC, file.path)
        if length != max(len(file.current), file.allocated):
            file.truncate(length)
        file.modified_ms = disk.now_ms()
        disk.wait(_WRITE_S, late)

    def allocate(self, offset: int, length: int) -> None:
        # No reader sees it: no effect, and no time of its own.
        file, disk = self._writable(errno.EBADF), self._disk
        disk.check_alive()
        failure = disk.no_room(file, offset, length)
        # As on ext4 and XFS: what room there was stays with the file.
        fits = length if failure is None else failure[1]
        if fits:
            file.allocated = max(file.allocated, offset + fits)
        if failure is not None:
            raise _error(failure[0], file.path)

    def write_directly(self) -> None:
        # What was written is volatile until it is synced, either way.
        pass

    def is_at(self, path: str) -> bool:
        try:
            there = self._disk.image.find(path)
        except FileNotFoundError:
            there = None
        self._disk.wait_after_check()
        return there is self._node

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if isinstance(self._node, Inode):
                self._disk.image.unlock(self._node, self)

    def _open(self) -> Node:
        if self._closed:
            raise _error(errno.EBADF, self._path)
        return self._node

    def _writable(self, code: int) -> Inode:
        node = self._open()
        if not self._write or isinstance(node, Directory):
            raise _error(code, self._path)
        return node


class SimulatedDisk:
    """A Disk. `image` may be shared with other processes' disks; `syncs` makes what syncs for a
    log beside its threads, if anything does.
    """

    def __init__(
        self,
        image: DiskImage,
        process: DiskProcess,
        syncs: Callable[[], KernelSyncs | None] = lambda: None,
    ) -> None:
        self.image = image
        self._process = process
        self._syncs = syncs
        self.strikes = process.world.strikes

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
    ) -> SimulatedFile:
        node, late = self.image.find(path), None
        if node is None:
            if not create:
                raise _error(errno.ENOENT, path)
            late = self.begin(effect_of("create", role_of(path)), path)
            self.fault("disk.create.enospc", errno.ENOSPC, path)
            # Another one may have made it while this process was stopped.
            node = self.image.find(path)
        elif create and exclusive:
            raise _error(errno.EEXIST, path)
        if node is None:
            node = self.image.create(path)
            node.modified_ms = self.now_ms()
        elif create and exclusive:
            raise _error(errno.EEXIST, path)
        if isinstance(node, Directory):
            if write or create:
                raise _error(errno.EISDIR, path)
        elif write or late is not None:
            _named(node, path)
        if late is not None:
            self.wait(_NAME_S, late)
        else:
            self.wait_after_check()
        return SimulatedFile(self, node, path, write=write)

    def lock(self, path: str) -> SimulatedFile:
        while True:
            self.check_alive()
            node = self.image.find(path)
            if isinstance(node, Directory):
                raise _error(errno.EISDIR, path)
            if node is None:
                self.fault("disk.create.enospc", errno.ENOSPC, path)
                node = self.image.create(path)
                node.modified_ms = self.now_ms()
                _named(node, path)
            # Opened is not locked yet: another process may come between the two.
            self._process.note_read()
            self.wait(_NAME_S)
            file = SimulatedFile(self, node, path, write=True)
            self.image.lock(node, self._process.name, file)
            if self.image.find(path) is node:
                return file
            file.close()

    def rename(self, source: str, target: str) -> None:
        node = self.image.get(source)
        self.image.find(target)
        late = self.begin(effect_of("rename", role_of(source)), target, source)
        self.fault("disk.rename.eio", errno.EIO, source)
        self.image.rename(source, target)
        if isinstance(node, Inode):
            _named(node, target)
        self.wait(_NAME_S, late)

    def link(self, source: str, target: str) -> None:
        node = self.image.get(source)
        if self.image.find(target) is not None:
            raise _error(errno.EEXIST, target)
        late = self.begin(effect_of("link", role_of(target)), target, source)
        self.fault("disk.link.eio", errno.EIO, target)
        self.image.link(source, target)
        if isinstance(node, Inode):
            _named(node, target)
        self.wait(_NAME_S, late)

    def unlink(self, path: str) -> None:
        if isinstance(self.image.get(path), Directory):
            raise _error(errno.EISDIR, path)
        late = self.begin(effect_of("unlink", role_of(path)), path)
        self.fault("disk.unlink.eio", errno.EIO, path)
        self.image.unlink(path)
        self.wait(_NAME_S, late)

    def make_private(self, path: str) -> None:
        """No effect: there is one user, and rights are not simulated."""

    def make_directory(self, path: str) -> None:
        path = "/" + "/".join(parts_of(path))
        if self.image.find(path) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        late = self.begin("folder.make", path)
        self.fault("disk.create.enospc", errno.ENOSPC, path)
        self.image.make_directory(path).modified_ms = self.now_ms()
        self.wait(_NAME_S, late)

    def list_directory(self, path: str) -> list[str]:
        names = sorted(self.image.get_directory(path).names)
        self.check_read(path)
        self.wait_after_check()
        return names

    def exists(self, path: str) -> bool:
        return self._node_at(path) is not None

    def is_directory(self, path: str) -> bool:
        return isinstance(self._node_at(path), Directory)

    def size(self, path: str) -> int:
        size = _size(self.image.get(path))
        self.wait_after_check()
        return size

    def modified_ms(self, path: str) -> int:
        modified_ms = self.image.get(path).modified_ms
        self.wait_after_check()
        return modified_ms

    def identity(self, path: str) -> tuple[int, int]:
        self.image.get(path)
        return 0, zlib.crc32("/".join(parts_of(path)).encode())

    def remove_directory(self, path: str) -> None:
        self.image.check_removable(path)
        late = self.begin("tier2.remove-directory", path)
        self.fault("disk.unlink.eio", errno.EIO, path)
        self.image.remove_directory(path)
        self.wait(_NAME_S, late)

    def sync_directory(self, path: str) -> None:
        self._sync_directory(path, effect_of("sync-directory", folder_role(path)))

    def kernel_syncs(self, path: str) -> KernelSyncs | None:
        return self._syncs()

    # --- for this room ----------------------------------------------------------------------------

    def begin(self, kind: str, place: str, detail: str = "") -> float:
        """Announce an effect; an empty `kind` is none.

        How late, in seconds, its answer will come beyond the usual.
        """
        if kind:
            self._process.effect(kind, place, detail)
        else:
            self.check_alive()
        if not self.strikes("disk.stall"):
            return 0.0
        seconds = self._stall_s()
        if self._process.random.random() < 0.5:
            return seconds
        # The change itself is what comes late.
        self._process.give_way(seconds)
        return 0.0

    def fault(self, point: str, code: int, path: str) -> None:
        """Raise the error of this fault point, if it strikes."""
        if self.strikes(point):
            self.wait(_NAME_S)
            raise _error(code, path)

    def write_fault(self, length: int) -> tuple[int, int] | None:
        """The error number a write of `length` bytes will meet, if any, and how many of them it
        writes before.
        """
        if self.strikes("disk.write.eio"):
            return errno.EIO, 0
        if self.strikes("disk.write.partial"):
            return errno.EIO, self._process.random.randrange(length)
        if self.strikes("disk.write.enospc"):
            return errno.ENOSPC, self._process.random.randrange(length)
        return None

    def no_room(self, file: Inode, offset: int, length: int) -> tuple[int, int] | None:
        """The same for a disk that is full."""
        end = self.image.growth(file, offset + length)
        if end >= offset + length:
            return None
        self._process.world.reach("disk.full")
        return errno.ENOSPC, max(0, end - offset)

    def check_read(self, path: str) -> None:
        """Raise the error of a read, if one strikes."""
        if not self._process.dead:
            self.fault("disk.read.eio", errno.EIO, path)

    def wait(self, usual: tuple[float, float], late: float = 0.0) -> None:
        """Let the time of a call pass."""
        least, more = usual
        draw = self._process.random.random()
        if draw < _SLOW_SYNCS and usual is _SYNC_S:
            least, more = _SLOW_SYNC_S
            draw = self._process.random.random()
        self._process.give_way(least + more * draw + late)

    def wait_after_check(self) -> None:
        """Let the time of a call pass that changed nothing."""
        if self._process.dead:
            return
        self._process.note_read()
        if self.strikes("disk.stall"):
            self.wait(_READ_S, self._stall_s())
        elif self._process.random.random() < _CHECKS_THAT_WAIT:
            self.wait(_READ_S)

    def now_ms(self) -> int:
        """Wall time."""
        return self._process.world.clock.time_ms()

    def _sync_directory(self, path: str, kind: str) -> None:
        self.image.get_directory(path)
        late = self.begin(kind, path)
        self.fault("disk.sync-directory.eio", errno.EIO, path)
        self.image.sync_directory(path)
        self.wait(_SYNC_DIRECTORY_S, late)

    def _node_at(self, path: str) -> Node | None:
        try:
            node = self.image.find(path)
        except (FileNotFoundError, NotADirectoryError):
            node = None
        self.wait_after_check()
        return node

    def _stall_s(self) -> float:
        return _STALL_S[0] + _STALL_S[1] * self._process.random.random()

    def check_alive(self) -> None:
        """Raises in a dead process."""
        if self._process.dead:
            self._process.give_way(0.0)  # which raises


def _named(file: Inode, path: str) -> None:
    """The file is written under this name from now on, as far as effects go; through older handles
    too.
    """
    file.path = path
    file.role = role_of(path)


def _size(node: Node) -> int:
    return len(node.current) if isinstance(node, Inode) else DIRECTORY_BYTES


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
