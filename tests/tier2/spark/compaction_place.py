"""A real store in a folder, fragmented on purpose, and the compaction job over it; in this
process.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from segmentstore import blocking
from tests.store.harness import LAZY
from tests.support.folders import files_below
from tests.tier2.spark.local_session import LocalSession
from tier2.object_names import MAILBOX_PREFIX as MAILBOX
from tier2.object_names import parse_object_name
from tier2.spark.compact.job import CompactionPlanned, CompactionResult, compact, plan_compaction

OPTIONS: dict[str, Any] = {
    "target_file_size_bytes": 4000,
    "min_input_files": 2,
    "older_than_ms": 0,
    "extent_bytes": 16,
    "block_bytes": 1000,
    "timeout_s": 120.0,
}
NAMES = [f"logs/{number}" for number in range(6)]


class Place:
    """A store in a folder, small flushes, no consolidation: fragmented on purpose."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.tier2 = folder / "tier2"
        self.settings = {
            **LAZY,
            "tier2": self.tier2.as_uri(),
            "containers": 2,
            "consolidation": False,
            "mailbox_poll_interval_s": 0.05,
            "deletion_lag_s": 3600.0,
            **settings,
        }
        self.random = random.Random(5)
        self.store = self.open()

    @property
    def url(self) -> str:
        return self.tier2.as_uri()

    def open(self, **settings: Any) -> blocking.SegmentStore:
        self.store = blocking.open(self.folder / "store", **{**self.settings, **settings})
        return self.store

    def fragment(self, rounds: int = 6, names: list[str] = NAMES) -> None:
        """Every segment gets a piece in every round, and every round is flushed."""
        known = {info.name for info in self.store.list_segments()}
        for name in names:
            if name not in known:
                self.store.create_segment(name)
        for _ in range(rounds):
            for name in names:
                self.store.append(name, self.random.randbytes(self.random.randrange(30, 300)))
            self.store.flush()

    def content(self) -> dict[str, bytes]:
        return {
            info.name: b"".join(self.store.reader(info.name, info.start_offset))
            for info in self.store.list_segments()
        }

    def objects(self, kind: str | None = None) -> list[str]:
        found = []
        for path in files_below(self.tier2):
            named = parse_object_name(path.relative_to(self.tier2).as_posix())
            if named is not None and kind in {None, named.kind}:
                found.append(path.relative_to(self.tier2).as_posix())
        return found

    def messages(self) -> Counter[str]:
        """Proposals and answers to them."""
        messages = (path for path in files_below(self.tier2 / MAILBOX) if path.suffix == ".json")
        paths = [path for path in messages if not path.name.startswith("export")]
        return Counter(
            "answer" if path.name.endswith(".answer.json") else "proposal" for path in paths
        )

    def compact(self, session: LocalSession | None = None, **options: Any) -> CompactionResult:
        session = session if session is not None else LocalSession()
        return compact(session.as_spark(), self.url, **{**OPTIONS, **options})

    def plan(self, **options: Any) -> CompactionPlanned:
        return plan_compaction(self.url, **{**OPTIONS, **options})


class Caller:
    """A client that appends, truncates, merges and deletes, knows what every segment must hold, and
    goes on until it is ended.
    """

    def __init__(self, place: Place, seed: int) -> None:
        self._place = place
        self._random = random.Random(seed)
        self._content = {name: bytearray(data) for name, data in place.content().items()}
        self._starts = {info.name: info.start_offset for info in place.store.list_segments()}
        self._created = 0
        self.steps = 0

    def run(self, ended: threading.Event) -> None:
        while not ended.is_set():
            self._step()
            self.steps += 1

    def expected(self) -> dict[str, bytes]:
        return {name: bytes(data) for name, data in self._content.items()}

    def _step(self) -> None:
        store, rng = self._place.store, self._random
        kind = rng.choice(
            ["append"] * 8 + ["truncate", "truncate", "merge", "delete", "create", "create"]
        )
        name = rng.choice(sorted(self._content)) if self._content else ""
        if kind == "create" or len(self._content) < 3:
            self._created += 1
            name = f"made/{self._created}"
            store.create_segment(name)
            self._content[name], self._starts[name] = bytearray(), 0
        elif kind == "append":
            data = rng.randbytes(rng.randrange(1, 300))
            store.append(name, data)
            self._content[name] += data
        elif kind == "truncate":
            cut = rng.randrange(len(self._content[name]) + 1)
            store.truncate(name, self._starts[name] + cut)
            del self._content[name][:cut]
            self._starts[name] += cut
        elif kind == "delete":
            store.delete(name)
            del self._content[name], self._starts[name]
        else:
            other = rng.choice(sorted(self._content))
            if other != name and not self._starts[other]:
                store.merge(name, other)
                self._content[name] += self._content.pop(other)
                del self._starts[other]
