"""What requests cost: the price list, and that it does not depend on the number of segments."""

from __future__ import annotations

import pytest

from bench.request_costs import (
    DOLLARS_MAX,
    MIB,
    PART_BYTES,
    SPREAD_MAX,
    TIB,
    compose_requests,
    dollars,
    put_requests,
    scaled_config,
    simulate,
)
from segmentstore.config import StoreConfig
from segmentstore.part_configs import cache_share, writer_config
from storagewriter.config import StorageWriterConfig
from tests.support.suites import slow


@pytest.mark.parametrize(
    ("size", "requests"),
    [
        (1, {"put": 1}),
        (64 * MIB, {"put": 1}),
        (128 * MIB - 1, {"put": 1}),
        (128 * MIB, {"post": 2, "put": 2}),
        (128 * MIB + 1, {"post": 2, "put": 3}),
        (256 * MIB, {"post": 2, "put": 4}),
    ],
)
def test_requests_of_a_put(size: int, requests: dict[str, int]) -> None:
    assert put_requests(size) == requests


def test_prices_agree_with_the_published_table() -> None:
    """Of a TiB in objects of one size: $83.89 at 64 KiB, $1.31 at 4 MiB, $0.08 at 64 MiB; copied
    from 8 MiB, $0.67.
    """

    def tib_in(size: int) -> float:
        return dollars({kind: count * (TIB // size) for kind, count in put_requests(size).items()})

    assert round(tib_in(64 * 1024), 2) == 83.89
    assert round(tib_in(4 * MIB), 2) == 1.31
    assert round(tib_in(64 * MIB), 2) == 0.08
    assert round(tib_in(1024 * MIB), 2) == 0.09
    copies = {kind: count * 1024 for kind, count in compose_requests(128).items()}
    assert round(dollars(copies), 2) == 0.67
    assert dollars({"delete": 10**6}) == 0


def test_the_defaults_of_writer_and_store_are_the_same_and_allow_two_full_objects() -> None:
    plain = StorageWriterConfig()
    config = StoreConfig(tier2="memory://x")
    assert writer_config(config, cache_share(config, 1)) == plain
    assert plain.flush_bytes == plain.object_bytes == plain.unflushed_target_bytes == PART_BYTES
    assert plain.upload_bytes_max >= 2 * plain.object_bytes
    scaled = scaled_config(64)
    assert (
        plain.object_bytes // scaled.object_bytes
        == plain.consolidation_bytes // scaled.consolidation_bytes
        == 64
    )


@slow(5)
def test_a_tib_costs_less_than_a_dollar_whatever_the_number_of_segments() -> None:
    """Consolidation, garbage collection and the search for orphans included."""
    costs = {segments: simulate(segments, scale=64, objects=4) for segments in (1, 100, 10_000)}
    for each in costs.values():
        assert each.consolidations == TIB / (256 * MIB)
        assert each.objects_written == TIB / (64 * MIB)
        assert each.copied + each.rewritten < 1.4
    prices = sorted(each.dollars for each in costs.values())
    assert prices[-1] <= DOLLARS_MAX
    assert prices[-1] <= SPREAD_MAX * prices[0], costs
    assert costs[1].copied > 0, "one segment's objects are copied by the store"
    assert costs[10_000].rewritten > 0, "many segments' blocks come together by download and upload"
