"""Names of one column in another: the walk and the hash table say what a set says."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.suites import share
from tier2.spark.reconcile import name_matching
from tier2.spark.reconcile.name_matching import Matched, match_names


def check(ours: list[str], theirs: list[str], found: Matched) -> None:
    their_set, our_set = set(theirs), set(ours)
    assert found.listed.tolist() == [name in their_set for name in ours]
    assert found.known.tolist() == [name in our_set for name in theirs]
    assert [ours[place] for place in found.places] == [name for name in theirs if name in our_set]


def matched(ours: list[str], theirs: list[str]) -> Matched:
    return match_names(pa.array(ours, pa.string()), pa.array(theirs, pa.string()))


names = st.lists(st.text("ab/é", max_size=3), max_size=40)


@given(names, names, st.booleans())
def test_names_in_both_are_those_of_a_set(ours: list[str], theirs: list[str], tidy: bool) -> None:
    if tidy:
        ours, theirs = sorted(set(ours)), sorted(set(theirs))
    check(ours, theirs, matched(ours, theirs))
    check(ours, list(ours), matched(ours, list(ours)))


@pytest.mark.parametrize("differences", share([1, 0, 3, 40, 2000], 5, 3))
def test_sorted_names_that_differ_a_little_or_much(differences: int) -> None:
    rng = random.Random(differences)
    everything = sorted({f"{rng.getrandbits(64):016x}" for _ in range(5000)})
    out = rng.sample(everything, differences)
    gone, new = set(out[::2]), set(out[1::2])
    ours, theirs = (
        [name for name in everything if name not in new],
        [name for name in everything if name not in gone],
    )
    walked = name_matching._walked(pa.array(ours), pa.array(theirs))
    assert (walked is None) == (differences > name_matching.DIFFERENCES_MAX)
    check(ours, theirs, matched(ours, theirs))
    hashed = name_matching._hashed(pa.array(ours), pa.array(theirs))
    for one, other in zip(hashed, matched(ours, theirs), strict=True):
        assert np.array_equal(one, other)


def test_slices_are_compared_as_what_they_show() -> None:
    whole = pa.array([f"{number:03}" for number in range(300)])
    found = match_names(whole.slice(100, 150), whole.slice(110, 150))
    assert found.listed.tolist() == [False] * 10 + [True] * 140
    assert found.places.tolist() == list(range(10, 150))
