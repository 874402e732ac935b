"""Files and folders of the simulated disk, each with two faces: what the running system sees, and
what is durable.

Rules of this file:

- `current` and `names` are what every process sees at once, synced or not. `durable` is what is
  surely left after a power cut. What lies between the two stands in `pending`, in the order it was
  done;
- after a failed sync the changes it was for are seen as before, but no later sync makes them
  durable. They move to `past`, and with them all that is synced afterwards, so that their order
  stays known;
- a change of names is absolute ("this name is that file"), so any subset of changes makes a folder.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

Change: TypeAlias = tuple[int, bytes | None]
"""Of a file: (offset, bytes written there); or (length, None) where the length was set."""

EXTENTS_MAX: Final = 64
"""Synced writes a file remembers, the latest ones."""


class Inode:
    """A file.

    `role` and `path` are its use and latest name, kept for the code that names the effects on it.
    """

    __slots__ = (
        "allocated",
        "current",
        "durable",
        "modified_ms",
        "past",
        "path",
        "pending",
        "role",
        "synced",
    )

    def __init__(self, content: bytes = b"") -> None:
        """A file that holds `content`, durably."""
        self.current = bytearray(content)
        self.durable = bytearray(content)
        self.pending: list[Change] = []
        self.past: list[tuple[Change, bool]] = []
        """Changes since the first failed sync, and whether a later one has made them durable (else:
        in doubt).
        """
        self.synced: deque[tuple[int, int]] = deque(maxlen=EXTENTS_MAX)
        self.allocated = 0
        """Length there is room for, beyond what is written."""
        self.modified_ms = 0
        self.role = ""
        self.path = ""

    def write(self, offset: int, data: bytes) -> None:
        """Seen at once; zeros fill a gap before `offset`. Costs the bytes written."""
        put(self.current, offset, data)
        self.pending.append((offset, data))

    def truncate(self, length: int) -> None:
        """Cut it, or fill it up with zeros."""
        set_length(self.current, length)
        self.allocated = min(self.allocated, length)
        self.pending.append((length, None))

    def sync(self) -> None:
        """Make durable what was done since the last sync; not what a failed one gave up."""
        durable, synced = self.durable, self.synced
        for offset, data in self.pending:
            if data is None:
                set_length(durable, offset)
            else:
                put(durable, offset, data)
                synced.append((offset, len(data)))
        if self.past:
            self.past += [(change, True) for change in self.pending]
        self.pending.clear()

    def fail_sync(self) -> None:
        """What was done since the last sync is in doubt for good: seen, perhaps on the disk, never
        synced again.
        """
        self.past += [(change, False) for change in self.pending]
        self.pending.clear()

    def changes(self) -> list[tuple[Change, bool]]:
        """All that matters on top of `durable`, in order; True with those that are surely
        durable.
        """
        return [*self.past, *((change, False) for change in self.pending)]

    def settle(self, content: bytes | bytearray) -> None:
        """This is what it holds, seen and durable; nothing is pending."""
        self.current[:] = content
        self.durable[:] = content
        self.allocated = 0
        self.pending.clear()
        self.past.clear()
        length = len(content)
        self.synced = deque(
            (place for place in self.synced if sum(place) <= length), maxlen=EXTENTS_MAX
        )

    def copy(self) -> Inode:
        """An independent one; the bytes of pending changes are shared."""
        made = Inode()
        made.current[:] = self.current
        made.durable[:] = self.durable
        made.pending = self.pending.copy()
        made.past = self.past.copy()
        made.synced = self.synced.copy()
        made.allocated = self.allocated
        made.modified_ms, made.role, made.path = self.modified_ms, self.role, self.path
        return made


class Directory:
    """A folder."""

    __slots__ = ("durable", "modified_ms", "names", "pending")

    def __init__(self, names: dict[str, Node] | None = None) -> None:
        """A folder that holds `names`, durably."""
        self.names: dict[str, Node] = dict(names or {})
        self.durable: dict[str, Node] = dict(self.names)
        self.pending: list[NameChange] = []
        self.modified_ms = 0

    def change(self, change: NameChange) -> None:
        """One atomic change of names."""
        apply(self.names, change)
        self.pending.append(change)

    def sync(self) -> None:
        """Make durable what was changed."""
        for change in self.pending:
            apply(self.durable, change)
        self.pending.clear()

    def settle(self, names: dict[str, Node]) -> None:
        """This is what it holds, seen and durable; nothing is pending."""
        self.names, self.durable = names, dict(names)
        self.pending.clear()


Node: TypeAlias = Inode | Directory
NameChange: TypeAlias = tuple[tuple[str, Node | None], ...]
"""Names that change at once, each with what it means from then on; None: nothing."""


def apply(names: dict[str, Node], change: NameChange) -> None:
    """Carry out a change of names."""
    for name, node in change:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def put(content: bytearray, offset: int, data: bytes) -> None:
    """Lay `data` into `content`, over what is there and beyond."""
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def set_length(content: bytearray, length: int) -> None:
    """Cut, or fill up with zeros."""
    missing = length - len(content)
    if missing > 0:
        content.extend(bytes(missing))
    else:
        del content[length:]


def copy_tree(root: Directory) -> tuple[Directory, dict[Inode, Inode]]:
    """An independent copy of all that `root` leads to by seen, durable or pending names; and of
    which file it has which.
    """
    files: dict[Inode, Inode] = {}
    folders: dict[Directory, Directory] = {}

    def copied(node: Node) -> Node:
        if isinstance(node, Inode):
            file = files.get(node)
            if file is None:
                file = files[node] = node.copy()
            return file
        folder = folders.get(node)
        if folder is None:
            folder = folders[node] = Directory()
            folder.modified_ms = node.modified_ms
            folder.names = {name: copied(there) for name, there in node.names.items()}
            folder.durable = {name: copied(there) for name, there in node.durable.items()}
            folder.pending = [
                tuple((name, None if there is None else copied(there)) for name, there in change)
                for change in node.pending
            ]
        return folder

    made = copied(root)
    assert isinstance(made, Directory)
    return made, files
