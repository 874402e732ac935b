"""The attribute table against a dict, with pages so small that they split and join all the time."""

from __future__ import annotations

from itertools import islice, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.contracts.attribute_pages import AttributePage, AttributePages
from segmentstore.contracts.attribute_table import NO_ATTRIBUTES, AttributeTable
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET
from segmentstore.contracts.metadata import SegmentMetadata
from tests.support.suites import examples


class TinyTable(AttributeTable):
    """A table whose pages have at most four attributes."""

    __slots__ = ()
    PAGE_MAX = 4


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


keys = st.one_of(st.integers(0, 40), st.sampled_from([2**128 - 1, 2**127])).map(key_of)
values = st.one_of(st.integers(-3, 3), st.just(ATTRIBUTE_UNSET), st.just(ATTRIBUTE_UNSET))
changes = st.lists(
    st.one_of(
        st.dictionaries(keys, values, max_size=12),
        st.just("hand out"),
        st.tuples(keys, st.booleans(), st.integers(0, 12)),
    ),
    max_size=30,
)


def apply_to(model: dict[bytes, int], change: dict[bytes, int]) -> None:
    for key, value in change.items():
        if value == ATTRIBUTE_UNSET:
            model.pop(key, None)
        else:
            model[key] = value


def check_pages(table: AttributeTable) -> None:
    """What `attribute_pages.py` promises of its pages."""
    values = table._values
    if isinstance(values, AttributePages):
        pages, starts = values._pages, values._starts
        assert len(pages) == len(starts) > 1
        assert starts[0] == b""
        assert starts == sorted(starts)
        for page, low, high in zip(pages, starts, [*starts[1:], b"\xff" * 17], strict=True):
            assert 0 < len(page.values) <= table.PAGE_MAX
            assert all(low <= key < high for key in page.values)
        for one, two in pairwise(pages):
            assert len(one.values) + len(two.values) > table.PAGE_MAX // 2


@settings(max_examples=examples(1_500))
@given(st.dictionaries(keys, st.integers(-3, 3), max_size=30), changes)
def test_a_table_is_a_dict_in_order_of_id(
    there: dict[bytes, int],
    steps: list[dict[bytes, int] | str | tuple[bytes, bool, int]],
) -> None:
    table, model = TinyTable(there), dict(there)
    handed_out: list[tuple[AttributePage, dict[bytes, int]]] = []
    for step in steps:
        if isinstance(step, dict):
            apply_to(model, step)
            table.apply(step)
        elif isinstance(step, tuple):
            start, exclusive, limit = step
            expected = [
                item
                for item in sorted(model.items())
                if item[0] > start or (item[0] == start and not exclusive)
            ]
            assert list(islice(table.items(start, exclusive=exclusive), limit)) == expected[:limit]
        else:
            pages = table.pages()
            assert [item for page in pages for item in page.items()] == sorted(model.items())
            assert all(page.frozen for page in pages)
            handed_out += [(page, dict(page.values)) for page in pages]
        assert len(table) == len(model)
        assert list(table.items()) == sorted(model.items())
        assert [table.get(key_of(number)) for number in range(41)] == [
            model.get(key_of(number)) for number in range(41)
        ]
        assert table == AttributeTable(model)
        check_pages(table)
    for page, content in handed_out:
        assert page.values == content


def test_a_change_replaces_the_page_it_concerns_and_no_other() -> None:
    table = AttributeTable({key_of(number): number for number in range(5_000)})
    before = table.pages()
    assert table.pages() == before
    table.apply({key_of(2_500): -1})
    after = table.pages()
    changed = [one for one, two in zip(before, after, strict=True) if one is not two]
    assert len(changed) == 1
    assert changed[0].values[key_of(2_500)] == 2_500


def test_an_iteration_sorts_only_the_pages_it_reaches() -> None:
    table = AttributeTable({key_of(number): number for number in range(5_000)})
    touched: list[AttributePage] = []

    class Watched(AttributePage):
        __slots__ = ()

        def items(self) -> list[tuple[bytes, int]]:
            touched.append(self)
            return super().items()

    pages = table._values._pages  # type: ignore[union-attr]
    pages[:] = [Watched(page.values) for page in pages]
    got = list(islice(table.items(key_of(3_000)), 10))
    assert got == [(key_of(number), number) for number in range(3_000, 3_010)]
    assert len(touched) <= 2


def test_many_that_become_few_are_one_dict_again() -> None:
    many = {key_of(number): 1 for number in range(1_000)}
    table = AttributeTable(many)
    was_paged = table.paged
    table.apply(dict.fromkeys(list(many)[1:], ATTRIBUTE_UNSET))
    assert (was_paged, table.paged) == (True, False)
    assert list(table.items()) == [(key_of(0), 1)]


def test_segments_without_attributes_share_a_table_that_never_changes() -> None:
    one, two = SegmentMetadata(1, "a", 0), SegmentMetadata(2, "b", 0)
    one.apply_attributes({})
    assert one.attributes is two.attributes is NO_ATTRIBUTES
    one.apply_attributes({key_of(1): 1})
    two.apply_attributes({key_of(2): 2})
    assert list(one.attributes.items()) == [(key_of(1), 1)]
    assert not NO_ATTRIBUTES
    one.apply_attributes({key_of(1): ATTRIBUTE_UNSET})
    assert one.attributes == NO_ATTRIBUTES
