"""A process that owns containers of a store, for tests of several:
`python -m tests.store.owner_process`.

It carries out each line of its standard input, a JSON list of a name and its arguments, and answers
with a line. That is {"ok": result} or {"error": name of the error, "text": what it says}. It ends
with its standard input, and closes what is open.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import segmentstore.blocking
from segmentstore.contracts.errors import SegmentStoreError


class Owner:
    def __init__(self) -> None:
        self._store: segmentstore.blocking.SegmentStore | None = None
        self.calls: Mapping[str, Callable[..., object]] = {
            "hello": lambda: "hello",
            "open": self._open,
            "close": self.close,
            "create": self._create,
            "append": self._append,
            "read": self._read,
            "flush": self._flush,
        }

    @property
    def store(self) -> segmentstore.blocking.SegmentStore:
        assert self._store is not None
        return self._store

    def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _open(self, folder: str, options: Mapping[str, Any]) -> None:
        self._store = segmentstore.blocking.open(folder, **options)

    def _create(self, name: str) -> None:
        self.store.create_segment(name)

    def _append(self, name: str, *pieces: str) -> list[int | None]:
        """All on their way at once; their offsets."""
        futures = [self.store.append_nowait(name, piece.encode()) for piece in pieces]
        return [future.result() for future in futures]

    def _read(self, name: str) -> str:
        return b"".join(self.store.reader(name)).decode()

    def _flush(self) -> None:
        self.store.flush()
        self.store.checkpoint()


def main() -> None:
    owner = Owner()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer: dict[str, object] = {"ok": owner.calls[name](*arguments)}
        except SegmentStoreError as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(answer), flush=True)
    owner.close()


if __name__ == "__main__":
    main()
