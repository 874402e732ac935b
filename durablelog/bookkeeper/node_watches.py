"""NodeWatches: the watches of one client, and when they are called.

Rules of this file:

- a call comes in a turn of the loop of its own, never inside of the change that it reports;
- changes up to that turn are one call;
- nothing is called behind `cancel` and `close`.
"""

from __future__ import annotations

from collections.abc import Callable

from durablelog.bookkeeper.metadata_node import NodeUnavailableError, NodeWatch


class NodeWatches:
    """Of one client, on its loop. `soon` has a call come in a later turn."""

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon
        self._by_path: dict[str, dict[_Watch, None]] = {}
        self._closed = False

    def add(self, path: str, changed: Callable[[], object]) -> NodeWatch:
        """A new watch; not reported yet."""
        if not path.startswith("/"):
            raise ValueError(f"{path!r}: a path begins with /")
        if self._closed:
            raise NodeUnavailableError(path, "the session is closed")
        watch = _Watch(self, path, changed)
        self._by_path.setdefault(path, {})[watch] = None
        return watch

    def remove(self, watch: _Watch) -> None:
        """It is called no more."""
        watches = self._by_path.get(watch.path, {})
        watches.pop(watch, None)
        if not watches:
            self._by_path.pop(watch.path, None)

    def has(self, watch: _Watch) -> bool:
        """False once it is cancelled, or all are closed."""
        return watch in self._by_path.get(watch.path, ())

    def watched(self, path: str) -> bool:
        return path in self._by_path

    def report(self, path: str) -> None:
        """Call the watches of this node soon."""
        for watch in self._by_path.get(path, ()):
            if not watch.due:
                watch.due = True
                self._soon(watch.call)

    def report_all(self) -> None:
        """Call every watch soon: changes may have been missed."""
        for path in list(self._by_path):
            self.report(path)

    def __len__(self) -> int:
        """Nodes that are watched."""
        return len(self._by_path)

    def close(self) -> None:
        """End all. Idempotent."""
        self._closed = True
        self._by_path.clear()


class _Watch(NodeWatch):
    def __init__(self, watches: NodeWatches, path: str, changed: Callable[[], object]) -> None:
        self.path = path
        self.due = False
        self._watches = watches
        self._changed = changed

    def cancel(self) -> None:
        self._watches.remove(self)

    def call(self) -> None:
        self.due = False
        if self._watches.has(self):
            self._changed()
