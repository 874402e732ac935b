"""A gateway that somebody else started is of our release, or the opening says so at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from durablelog.bookkeeper.bookkeeper_clients import open_clients
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.cluster.addresses import choose_addresses
from durablelog.bookkeeper.gateway import gateway_protocol
from durablelog.bookkeeper.gateway.gateway_settings import TOKEN_VARIABLE
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from tests.durablelog.bookkeeper.kept_gateway import kept_gateway
from tests.support.open_sockets import open_sockets


def test_one_of_another_release_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = f"127.0.0.1:{choose_addresses(tmp_path, 1, None).zookeeper}"
    with kept_gateway() as gateway:
        monkeypatch.setenv(TOKEN_VARIABLE, gateway.token)
        monkeypatch.setattr(gateway_protocol, "VERSION", gateway_protocol.VERSION + 1)
        address = f"127.0.0.1:{gateway.process.port}"
        location = BookKeeperLocation.parse(f"bookkeeper://{nobody}/store?gateway={address}")
        before = open_sockets()
        with pytest.raises(ConfigError) as caught:
            asyncio.run(open_clients(location, {}, Runtime()))
        assert caught.value.setting == "tier1"
        for told in (
            address,
            f"version {gateway_protocol.VERSION}",
            "start it anew from this release",
        ):
            assert told in str(caught.value)
        assert open_sockets() <= before
        assert gateway.alive
