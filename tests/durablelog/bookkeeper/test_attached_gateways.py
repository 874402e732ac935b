"""A gateway that another process started is of our release, and has a secret that a handshake can
have, or the opening says so at once.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
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
    unused = f"127.0.0.1:{choose_addresses(tmp_path, 1, None).zookeeper}"
    with kept_gateway() as gateway:
        monkeypatch.setenv(TOKEN_VARIABLE, gateway.token)
        monkeypatch.setattr(gateway_protocol, "VERSION", gateway_protocol.VERSION + 1)
        address = f"127.0.0.1:{gateway.process.port}"
        location = BookKeeperLocation.parse(f"bookkeeper://{unused}/store?gateway={address}")
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


@pytest.mark.parametrize(
    ("token", "wrong"),
    [("x" * 1025, "1025 bytes"), ("\u00e9" * 513, "1026 bytes"), ("x\udcff", "is not UTF-8")],
)
def test_a_token_that_no_handshake_can_have_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str, wrong: str
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    unused = f"127.0.0.1:{choose_addresses(tmp_path, 1, None).zookeeper}"
    location = BookKeeperLocation.parse(f"bookkeeper://{unused}/store?gateway={unused}")
    with pytest.raises(ConfigError, match=wrong):
        asyncio.run(open_clients(location, {}, Runtime()))
    started = subprocess.run(
        [sys.executable, "-m", "durablelog.bookkeeper.gateway"],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert started.returncode == 2
    assert wrong in started.stderr
