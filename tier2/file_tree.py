"""FileTree: gives files their names under a root, so that a name once given survives a crash.

A name is durable when its folder has been synced, and that folder's own name too, up to the root.
Rules:

- a folder is in `_durable` only while this process knows its whole path to be synced. One that was
  merely found there (created by a process that was killed, or by another thread a moment ago) does
  not count;
- folders are made and removed, and names are given, under one lock: otherwise a folder could be
  removed and made again, unsynced, between the check and the link.

Blocking, called from the storage's threads.
"""

from __future__ import annotations

import contextlib
import posixpath

from segmentstore.contracts.disk import make_directories
from segmentstore.contracts.runtime import Runtime

FOLDERS_MAX = 65_536
"""Durable folders remembered, about 10 MiB; beyond it they are synced again."""


class FileTree:
    """The folders under one root. Safe for several threads. Everything raises OSError."""

    def __init__(self, runtime: Runtime, root: str) -> None:
        self._disk = runtime.disk
        self._root = root
        self._lock = runtime.lock()
        self._durable: set[str] = set()

    def link(self, source: str, target: str) -> None:
        """Give the file `source` the name `target`, durably; FileExistsError if it is taken."""
        self._publish(source, target, replace=False)

    def replace(self, source: str, target: str) -> None:
        """Move the file `source` to `target`, durably, in the place of what is there."""
        self._publish(source, target, replace=True)

    def sync_nearest(self, folder: str) -> None:
        """Make durable what is missing from `folder`; if another process pruned the folder itself,
        make its absence durable.
        """
        while True:
            try:
                self._disk.sync_directory(folder)
            except FileNotFoundError:
                if folder == self._root:
                    return
                folder = posixpath.dirname(folder)
            else:
                return

    def prune(self, folder: str) -> None:
        """Remove `folder` and those above it, below the root, as far as they are empty."""
        with self._lock:
            while folder != self._root:
                try:
                    self._disk.remove_directory(folder)
                except OSError:
                    return  # Not empty, mostly; an empty folder that stays does no harm.
                self._durable.discard(folder)
                folder = posixpath.dirname(folder)

    def _publish(self, source: str, target: str, *, replace: bool) -> None:
        folder = posixpath.dirname(target)
        with self._lock:
            self._make_durable(folder)
            try:
                self._name(source, target, replace=replace)
            except FileNotFoundError:
                # A hand from outside removed the folder we knew.
                self._durable.clear()
                self._make_durable(folder)
                self._name(source, target, replace=replace)
        self._disk.sync_directory(folder)

    def _name(self, source: str, target: str, *, replace: bool) -> None:
        if replace:
            self._disk.rename(source, target)
        else:
            self._disk.link(source, target)

    def _make_durable(self, folder: str) -> None:
        if folder in self._durable:
            return
        make_directories(self._disk, folder)
        above = folder
        while above != self._root:
            above = posixpath.dirname(above)
            if above in self._durable:
                break
            self._disk.sync_directory(above)
        else:
            # What is above the root may belong to another user, and be closed to this process.
            with contextlib.suppress(PermissionError):
                self._disk.sync_directory(posixpath.dirname(self._root))
        if len(self._durable) >= FOLDERS_MAX:
            self._durable.clear()
        self._durable.add(folder)
