"""What a power cut leaves of a simulated disk: one result by chance, or every result there can be.

Each change that was not synced is kept or lost by itself, whatever came before it; a write may also
survive in some of its sectors only. Rules of this file:

- what was synced survives, wherever it stands among changes that did not;
- a file that grew may have any length between the durable one and the seen one, whichever of its
  bytes survived; bytes that did not are zeros;
- only files that still have a name count; afterwards what is seen is what is durable, and nothing
  is pending;
- folders and files are processed in the order they were made in, so equal chances give equal
  results.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, TypeAlias

from recovery.harness.simulation.disk_nodes import (
    Change,
    Directory,
    Inode,
    Node,
    apply,
    put,
    set_length,
)

SECTORS: Final = (512, 4096)
"""Bytes a disk writes wholly or not at all."""

_ALL_KEPT: Final = 0.15
_ALL_LOST: Final = 0.30
"""Below these draws a whole cut keeps, or loses, everything; the rest is mixed."""
_WORK_MAX: Final = 16
"""Combinations of fates tried for each different content that is wanted of a file."""

Spans: TypeAlias = Sequence[tuple[int, int]]
"""The parts of a write that survive, as (from, to) within its bytes; of a length that was set:
none, or any.
"""
Tree: TypeAlias = dict[Directory, dict[str, Node]]
"""A result for the names: every folder that is left, with what it holds."""


class Fate(Protocol):
    """Decides what survives."""

    def keeps(self) -> bool:
        """Of a change of names, or of a length that was set."""

    def spans(self, offset: int, length: int) -> tuple[str, Spans]:
        """Of a write: the fault point it is, and what is left."""

    def length(self, least: int, natural: int, most: int) -> int:
        """Of a file that grew; `natural` reaches to its last surviving byte."""


class Everything:
    """Nothing is lost."""

    def keeps(self) -> bool:
        return True

    def spans(self, offset: int, length: int) -> tuple[str, Spans]:
        return "power.write.kept", ((0, length),)

    def length(self, least: int, natural: int, most: int) -> int:
        return most


class Nothing:
    """All that was not synced is lost."""

    def keeps(self) -> bool:
        return False

    def spans(self, offset: int, length: int) -> tuple[str, Spans]:
        return "power.write.lost", ()

    def length(self, least: int, natural: int, most: int) -> int:
        return least


class RandomCut:
    """Each by itself."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def keeps(self) -> bool:
        return self._rng.random() < 0.5

    def spans(self, offset: int, length: int) -> tuple[str, Spans]:
        draw = self._rng.random()
        if draw >= 0.7:
            unit = self._rng.choice(SECTORS)
            pieces = list(itertools.pairwise((0, *_cuts(offset, length, unit), length)))
            if len(pieces) > 1:
                return f"power.write.torn-{unit}", self._some(pieces)
            draw -= 0.5
        if draw < 0.4:
            return "power.write.kept", ((0, length),)
        return "power.write.lost", ()

    def length(self, least: int, natural: int, most: int) -> int:
        return self._rng.choice((least, natural, most, self._rng.randint(least, most)))

    def _some(self, pieces: Sequence[tuple[int, int]]) -> Spans:
        """Not all, not none: mostly a beginning, as disks write; or any."""
        if self._rng.random() < 0.5:
            return pieces[: self._rng.randrange(1, len(pieces))]
        bits = self._rng.randrange(1, (1 << len(pieces)) - 1)
        return [piece for number, piece in enumerate(pieces) if bits >> number & 1]


def draw_fate(rng: random.Random) -> Fate:
    """Of one power cut."""
    draw = rng.random()
    if draw < _ALL_KEPT:
        return Everything()
    return Nothing() if draw < _ALL_LOST else RandomCut(rng)


def cut_power(root: Directory, fate: Fate, reach: Callable[[str], None]) -> None:
    """Carry out one power cut on all below `root`.

    `reach` gets the fault point of every change that is decided.
    """
    files: dict[Inode, None] = {}
    folders: dict[Directory, None] = {}
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        folders[folder] = None
        _cut_names(folder, fate, reach)
        for node in folder.names.values():
            if isinstance(node, Inode):
                files[node] = None
            elif node not in folders:
                waiting.append(node)
    for file in files:
        if file.pending or file.past:
            _cut_file(file, fate, reach)


def _cut_names(folder: Directory, fate: Fate, reach: Callable[[str], None]) -> None:
    names, lost = dict(folder.durable), False
    for change in folder.pending:
        if not fate.keeps():
            lost = True
            reach("power.name.lost")
            continue
        apply(names, change)
        reach("power.name.kept")
        if lost:
            reach("power.name.reordered")
    folder.settle(names)


def _cut_file(file: Inode, fate: Fate, reach: Callable[[str], None]) -> None:
    changes, kept = file.changes(), list[Spans]()
    for (offset, data), settled in changes:
        if settled:
            kept.append(())
            continue
        if data is None:
            point, spans = (
                ("power.write.kept", _whole(data)) if fate.keeps() else ("power.write.lost", ())
            )
        else:
            point, spans = fate.spans(offset, len(data))
        kept.append(spans)
        reach(point)
    content, least, most = _replay(file, changes, kept)
    natural = len(content)
    if least < most:
        length = fate.length(least, natural, most)
        if length < len(file.current):
            reach("power.size.short")
        if length > natural:
            reach("power.size.zeros")
        set_length(content, length)
    file.settle(content)


def _replay(
    file: Inode, changes: Sequence[tuple[Change, bool]], kept: Sequence[Spans]
) -> tuple[bytearray, int, int]:
    """What a file holds if of its changes `kept` survives; and the least and the greatest length it
    may have.
    """
    content = bytearray(file.durable)
    least = most = len(content)
    for ((offset, data), settled), some in zip(changes, kept, strict=True):
        spans = _whole(data) if settled else some
        if data is None:
            if spans:
                set_length(content, offset)
                least, most = (offset, offset) if settled else (min(least, offset), offset)
            continue
        for start, end in spans:
            put(content, offset + start, data[start:end])
        end = offset + len(data)
        most = max(most, end)
        if settled:
            least = max(least, end)
    set_length(content, max(least, len(content)))
    return content, least, most


def _whole(data: bytes | None) -> Spans:
    return ((0, len(data) if data is not None else 0),)


def _cuts(offset: int, length: int, unit: int) -> range:
    """Where the sectors of the file divide a write, counted from its begin."""
    return range(unit - offset % unit, length, unit)


# --- every result ---------------------------------------------------------------------------------


class Results:
    """Every different result of a power cut, as far as they are no more than `limit`.

    Of the tears of one write those count that leave a beginning or an end of it. Any sector of 512
    bytes may be the first or the last one, which covers the larger sectors. Of the lengths: the
    least, the natural, the greatest.
    """

    def __init__(self, root: Directory, limit: int) -> None:
        self._root = root
        self._limit = limit
        self._mappings: dict[Directory, list[dict[str, Node]]] = {}
        self._contents: dict[Inode, list[bytes]] = {}

    def count(self) -> int:
        """How many there are; `limit` + 1 if there are more than that."""
        count = 0
        for tree in self._trees([self._root]):
            count += math.prod(len(self._contents_of(file)) for file in _files(tree))
            if count > self._limit:
                return self._limit + 1
        return count

    def __iter__(self) -> Iterator[Directory]:
        """Each as a tree of its own; what loses everything comes first.

        Only to be asked if `count` is in the limit.
        """
        for tree in self._trees([self._root]):
            files = _files(tree)
            for contents in itertools.product(*(self._contents_of(file) for file in files)):
                yield _build(self._root, tree, dict(zip(files, contents, strict=True)))

    def _trees(self, waiting: Sequence[Directory]) -> Iterator[Tree]:
        if not waiting:
            yield {}
            return
        first, others = waiting[0], waiting[1:]
        for mapping in self._mappings_of(first):
            below = [node for node in mapping.values() if isinstance(node, Directory)]
            for tree in self._trees([*below, *others]):
                yield {first: mapping, **tree}

    def _mappings_of(self, folder: Directory) -> list[dict[str, Node]]:
        known = self._mappings.get(folder)
        if known is None:
            different = {frozenset(folder.durable.items()): folder.durable}
            for change in folder.pending:
                if len(different) > self._limit:
                    break
                for names in list(different.values()):
                    changed = dict(names)
                    apply(changed, change)
                    different.setdefault(frozenset(changed.items()), changed)
            known = self._mappings[folder] = list(different.values())
        return known

    def _contents_of(self, file: Inode) -> list[bytes]:
        known = self._contents.get(file)
        if known is None:
            known = self._contents[file] = list(
                itertools.islice(self._find_contents(file), self._limit + 1)
            )
        return known

    def _find_contents(self, file: Inode) -> Iterator[bytes]:
        changes = file.changes()
        options = [((),) if settled else _options(*change) for change, settled in changes]
        if math.prod(map(len, options)) > self._limit * _WORK_MAX:
            # Never given out: `count` says that they are too many.
            yield from (b"" for _ in range(self._limit + 1))
            return
        different: dict[bytes, None] = {}
        for kept in itertools.product(*options):
            content, least, most = _replay(file, changes, kept)
            for length in (len(content), least, most):
                created = content.copy()
                set_length(created, length)
                if (frozen := bytes(created)) not in different:
                    different[frozen] = None
                    yield frozen


def _options(offset: int, data: bytes | None) -> tuple[Spans, ...]:
    if data is None:
        return (), _whole(None)
    length = len(data)
    cuts = _cuts(offset, length, SECTORS[0])
    tears = (spans for cut in cuts for spans in (((0, cut),), ((cut, length),)))
    return (), ((0, length),), *tears


def _files(tree: Tree) -> list[Inode]:
    found = (node for names in tree.values() for node in names.values() if isinstance(node, Inode))
    return list(dict.fromkeys(found))


def _build(root: Directory, tree: Tree, contents: dict[Inode, bytes]) -> Directory:
    created: dict[Inode, Inode] = {}
    for file, content in contents.items():
        created[file] = file.copy()
        created[file].settle(content)

    def built(folder: Directory) -> Directory:
        names: dict[str, Node] = {}
        for name, node in tree[folder].items():
            names[name] = created[node] if isinstance(node, Inode) else built(node)
        return Directory(names)

    return built(root)
