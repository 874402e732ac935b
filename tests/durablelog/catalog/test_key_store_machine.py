"""Any sequence of calls on a store of keys against a plain dictionary."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from durablelog.catalog.key_ranges import StoreKeyRange
from durablelog.catalog.key_store import KeyBatch, KeyPair, KeySnapshot, KeyStore
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from segmentstore.contracts.runtime import Runtime
from tests.contracts.key_store_contract import EVERYTHING, IDENTITY, all_of
from tests.durablelog.catalog.key_store_writer import make
from tests.support.suites import examples, sized

T = TypeVar("T")

keys = st.one_of(
    st.binary(min_size=1, max_size=3).filter(lambda key: key[0] > 0),
    st.sampled_from([b"\x01", b"a", b"a\0", b"a\0\0", b"aa", b"b", b"\xff", b"\xff\xff"]),
)
values = st.one_of(st.binary(max_size=4), st.just(bytes(3000)))
changes = st.one_of(
    st.tuples(st.just("put"), keys, values),
    st.tuples(st.just("delete"), keys),
    st.tuples(st.just("delete_range"), st.builds(StoreKeyRange, keys, keys)),
)


class KeyStoreMachine(RuleBasedStateMachine):
    kind: type[MemoryKeyStore | RocksDbKeyStore]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="key-store-"))
        self.runner = asyncio.Runner()
        self.keys: dict[bytes, bytes] = {}
        self.number = 0
        self.snapshots: list[tuple[KeySnapshot, dict[bytes, bytes]]] = []
        self.copies = 0
        self.store = self.open("store")

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def open(self, name: str) -> KeyStore:
        store = self.kind(str(self.folder / name), IDENTITY, Runtime())
        self.do(store.open())
        return store

    def teardown(self) -> None:
        self.do(self.store.close())
        self.runner.close()
        shutil.rmtree(self.folder)

    @rule(wanted=st.lists(changes, max_size=8), more=st.integers(0, 3))
    def apply(self, wanted: list[tuple[Any, ...]], more: int) -> None:
        batch = KeyBatch()
        for call, *arguments in wanted:
            getattr(batch, call)(*arguments)
        self.number += more
        self.do(self.store.apply(batch, self.number))
        make(self.keys, batch)

    @rule()
    def flush(self) -> None:
        assert self.do(self.store.flush()) == self.number

    @rule(wanted=st.lists(keys, max_size=5))
    def get(self, wanted: list[bytes]) -> None:
        assert self.do(self.store.get(wanted)) == [self.keys.get(key) for key in wanted]

    @rule(wanted=st.builds(StoreKeyRange, keys, keys), limit=st.integers(1, 4))
    def scan(self, wanted: StoreKeyRange, limit: int) -> None:
        there = self.within(self.keys, wanted)
        portion = self.do(self.store.scan(wanted, limit))
        assert portion.pairs == there[:limit]
        assert (portion.rest is None) == (len(there) <= limit)
        if portion.rest is not None:
            assert self.do(self.store.scan(portion.rest, 1)).pairs == there[limit : limit + 1]
        (last,) = self.do(self.store.find_last([wanted]))
        assert last == (there[-1] if there else None)

    @rule(
        ranges=st.lists(st.builds(StoreKeyRange, keys, keys), max_size=4),
        limit=st.integers(1, 6),
    )
    def scan_each(self, ranges: list[StoreKeyRange], limit: int) -> None:
        portions = self.do(self.store.scan_each(ranges, limit))
        left = limit
        for wanted, portion in zip(ranges, portions, strict=True):
            there = self.within(self.keys, wanted)
            assert portion.pairs == there[:left]
            assert (portion.rest is None) == (len(there) <= left and left > 0)
            if portion.rest is not None:
                assert self.within(self.keys, portion.rest) == there[left:]
            left -= len(portion.pairs)

    @precondition(lambda self: len(self.snapshots) < 3)
    @rule()
    def take_snapshot(self) -> None:
        self.snapshots.append((self.do(self.store.snapshot()), dict(self.keys)))

    @precondition(lambda self: self.snapshots)
    @rule(wanted=st.builds(StoreKeyRange, keys, keys), close=st.booleans())
    def scan_snapshot(self, wanted: StoreKeyRange, close: bool) -> None:
        snapshot, there = self.snapshots[0]
        assert self.do(all_of(snapshot, wanted)) == self.within(there, wanted)
        if close:
            self.do(snapshot.close())
            self.snapshots.pop(0)

    @rule()
    def open_again(self) -> None:
        self.do(self.store.flush())
        self.do(self.store.close())
        self.snapshots.clear()
        self.store = self.open("store")
        self.check_all()

    @rule()
    def open_a_checkpoint_instead(self) -> None:
        self.copies += 1
        made = self.do(self.store.checkpoint(str(self.folder / f"copy-{self.copies}")))
        assert made.sequence_number == self.number
        self.do(self.store.destroy())
        self.snapshots.clear()
        (self.folder / "store").rmdir()
        (self.folder / f"copy-{self.copies}").rename(self.folder / "store")
        self.store = self.open("store")
        self.check_all()

    def check_all(self) -> None:
        assert self.store.sequence_number == self.number
        assert self.do(all_of(self.store)) == self.within(self.keys, EVERYTHING)

    @staticmethod
    def within(there: dict[bytes, bytes], wanted: StoreKeyRange) -> list[KeyPair]:
        return sorted(pair for pair in there.items() if wanted.start <= pair[0] < wanted.end)


@sized(30)
@pytest.mark.parametrize("kind", [MemoryKeyStore, RocksDbKeyStore])
def test_a_store_does_what_a_dictionary_does(
    kind: type[MemoryKeyStore | RocksDbKeyStore],
) -> None:
    machine = type("Machine", (KeyStoreMachine,), {"kind": kind})
    few = settings(max_examples=examples(60), stateful_step_count=25)
    run_state_machine_as_test(machine, settings=few)
