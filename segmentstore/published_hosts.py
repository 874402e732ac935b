"""What the setting `wire_hosts` says: the address at which clients reach each container. Pure."""

from __future__ import annotations

import ipaddress
import re
from typing import Final, NamedTuple

from segmentstore.contracts.errors import ConfigError

_NAME: Final = "wire_hosts"
_PART: Final = re.compile(
    r"(?P<first>\d{1,5})(?:-(?P<last>\d{1,5}))?=(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:\[\]=]+):"
    r"(?P<port>\d{1,5})",
    re.ASCII,
)


class PublishedAddress(NamedTuple):
    """Where clients connect to. The Python and Rust clients take an IP address alone as host."""

    host: str
    port: int


def published_hosts(text: str, containers: int) -> dict[int, PublishedAddress]:
    """The address of each container by `0-1=HOST:PORT,2=HOST:PORT`, all of them once.

    Raises ConfigError.
    """
    found: dict[int, PublishedAddress] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ConfigError(_NAME, f"{part.strip()!r} is not CONTAINERS=HOST:PORT, as 0-3=h:1")
        first, port = int(match["first"]), int(match["port"])
        last = int(match["last"] or first)
        address = PublishedAddress(match["host"].strip("[]"), port)
        if not first <= last < containers:
            raise ConfigError(_NAME, f"{part.strip()} is not in 0 to {containers - 1}")
        if not 0 < port < 1 << 16 or is_wildcard(address.host):
            raise ConfigError(_NAME, f"{part.strip()}: no client can connect to that address")
        for container_id in range(first, last + 1):
            if container_id in found:
                raise ConfigError(_NAME, f"{text!r} names container {container_id} twice")
            found[container_id] = address
    missing = [str(each) for each in range(containers) if each not in found]
    if missing:
        raise ConfigError(_NAME, f"{text!r} does not name containers {', '.join(missing[:9])}")
    return found


def is_wildcard(host: str) -> bool:
    """Whether it stands for all addresses of a machine: to listen on, not to connect to."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host
