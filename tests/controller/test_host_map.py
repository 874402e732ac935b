"""Which address a segment has."""

from __future__ import annotations

import asyncio

import pytest

from segmentstore.contracts.errors import InvalidArgumentError
from segmentstore.controller.host_map import HostsByContainer
from segmentstore.published_hosts import PublishedAddress

FIRST, SECOND = PublishedAddress("127.0.0.1", 1), PublishedAddress("127.0.0.1", 2)


def address(hosts: HostsByContainer, segment: str) -> PublishedAddress:
    return asyncio.run(hosts.address_of(segment))


def test_a_segment_is_where_its_container_is() -> None:
    alone = HostsByContainer({0: FIRST})
    assert address(alone, "myscope/mystream") == FIRST
    # Of four containers it is in number 1, and `a` is in number 0.
    hosts = HostsByContainer({0: SECOND, 1: FIRST, 2: SECOND, 3: SECOND})
    assert address(hosts, "myscope/mystream") == FIRST
    assert address(hosts, "myscope/mystream.#epoch.7") == FIRST
    assert address(hosts, "a") == SECOND


def test_every_container_has_an_address() -> None:
    for addresses in ({}, {1: FIRST}, {0: FIRST, 2: FIRST}):
        with pytest.raises(InvalidArgumentError):
            HostsByContainer(addresses)
