"""Partial attribute tables against a dict that has everything, and a set of what is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from segmentstore.contracts.attribute_table import (
    NO_ATTRIBUTES,
    AttributeTable,
    UnknownAttributeError,
)
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET
from segmentstore.contracts.metadata import SegmentMetadata
from tests.contracts.test_attribute_table import TinyTable, apply_to, key_of
from tests.support.suites import examples

KEYS = [key_of(number) for number in range(12)]
keys = st.sampled_from(KEYS)
values = st.one_of(st.integers(-3, 3), st.just(ATTRIBUTE_UNSET))


class Machine(RuleBasedStateMachine):
    @initialize(there=st.dictionaries(keys, st.integers(-3, 3)))
    def begin(self, there: dict[bytes, int]) -> None:
        self.model = there
        self.table: AttributeTable = TinyTable(there)
        self.known: set[bytes] | None = None
        """None: all."""

    def is_known(self, key: bytes) -> bool:
        return self.known is None or key in self.known

    @rule(changes=st.dictionaries(keys, values, max_size=6), only_known=st.booleans())
    def apply(self, changes: dict[bytes, int], only_known: bool) -> None:
        if only_known:
            changes = {key: value for key, value in changes.items() if self.is_known(key)}
        unknown = [key for key in changes if not self.is_known(key)]
        if unknown:
            with pytest.raises(UnknownAttributeError) as caught:
                self.table.apply(changes)
            assert caught.value.key == unknown[0]
        else:
            self.table.apply(changes)
            apply_to(self.model, changes)

    @rule(chosen=st.sets(keys))
    def learn(self, chosen: set[bytes]) -> None:
        """As the catalog has them; of those that are known it is behind."""
        catalog = {key: 77 if self.is_known(key) else self.model.get(key) for key in sorted(chosen)}
        self.table.learn(catalog)
        if self.known is not None:
            self.known |= chosen

    @rule(chosen=st.sets(keys))
    def forget(self, chosen: set[bytes]) -> None:
        if self.known is None:
            with pytest.raises(AssertionError):
                self.table.forget(chosen)
        else:
            self.table.forget(chosen)
            self.known -= chosen

    @rule(keep=st.sets(keys))
    def make_partial(self, keep: set[bytes]) -> None:
        self.table.make_partial(keep)
        self.known = {key for key in keep if self.is_known(key)}

    @rule(whole=st.booleans())
    def begin_again(self, whole: bool) -> None:
        self.table = TinyTable(self.model) if whole else TinyTable.partial(len(self.model))
        self.known = None if whole else set()

    @invariant()
    def is_the_known_part_of_the_dict(self) -> None:
        if not hasattr(self, "model"):
            return
        table, model = self.table, self.model
        assert (len(table), bool(table)) == (len(model), bool(model))
        assert table.whole == (self.known is None)
        for key in KEYS:
            assert table.knows(key) == self.is_known(key)
            if self.is_known(key):
                assert table.get(key) == model.get(key)
            else:
                with pytest.raises(UnknownAttributeError) as caught:
                    table.get(key)
                assert caught.value.key == key
        shown = model if self.known is None else {key: model.get(key) for key in self.known}
        assert sorted(table.known()) == sorted(shown.items())
        everything: tuple[Callable[[], Any], ...] = (
            lambda: list(table.items()),
            lambda: [item for page in table.pages() for item in page.items()],
        )
        for function in everything:
            if self.known is None:
                assert function() == sorted(model.items())
            else:
                assert not table.paged
                with pytest.raises(UnknownAttributeError, match="all attributes"):
                    function()


TestMachine = Machine.TestCase
TestMachine.settings = settings(deadline=None, max_examples=examples(600), stateful_step_count=20)


def test_more_attributes_than_there_are_are_refused() -> None:
    table = AttributeTable.partial(2)
    table.learn({key_of(1): 1, key_of(2): None})
    for wrong in ({key_of(3): 3, key_of(4): 4}, {key_of(5): ATTRIBUTE_UNSET}):
        with pytest.raises(ValueError):
            table.learn(wrong)
    assert sorted(table.known(), key=str) == [(key_of(1), 1), (key_of(2), None)]
    table.apply({key_of(1): ATTRIBUTE_UNSET})
    table.learn({key_of(3): 3})
    assert len(table) == 1


def test_what_was_forgotten_is_learnt_again() -> None:
    table = AttributeTable.partial(1)
    for value in (1, 2):
        table.learn({key_of(1): value})
        assert table.get(key_of(1)) == value
        table.forget([key_of(1), key_of(2)])
    assert len(table) == 1


def test_the_shared_empty_table_is_whole_and_stays_so() -> None:
    NO_ATTRIBUTES.learn({key_of(1): 1})
    with pytest.raises(AssertionError):
        NO_ATTRIBUTES.make_partial([])
    assert (NO_ATTRIBUTES.whole, len(NO_ATTRIBUTES)) == (True, 0)


def test_a_segment_changes_a_partial_table_in_place() -> None:
    segment = SegmentMetadata(1, "a", 0)
    segment.attributes = table = AttributeTable.partial(500_000)
    table.learn({key_of(1): None})
    segment.apply_attributes({key_of(1): 7})
    assert segment.attributes is table
    assert (len(table), table.get(key_of(1))) == (500_001, 7)


def test_tables_are_compared_by_all_attributes() -> None:
    with pytest.raises(UnknownAttributeError):
        assert AttributeTable.partial(1) != AttributeTable()
