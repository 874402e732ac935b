"""Where a client is to connect to: `host:port`, and lists of these. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from segmentstore.contracts.errors import InvalidArgumentError

_ADDRESS: Final = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<host>[^/:,\[\]\s\0-\x1f\x7f]+)):(?P<port>\d{1,5})"
)


class StoreAddress(NamedTuple):
    """Of a wire server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> StoreAddress | None:
    """The address, None of what has not its form. Raises InvalidArgumentError for a bad port."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return None
    port = int(match["port"])
    if not 1 <= port <= 65_535:
        raise InvalidArgumentError("location", text, "a port is from 1 to 65535")
    return StoreAddress(match["ipv6"] or match["host"], port)


def parse_addresses(text: str) -> tuple[StoreAddress, ...] | None:
    """Of hosts of a cluster: two or more behind one another, or one and a comma.

    None of what has not that form: one address, or a folder. Raises InvalidArgumentError.
    """
    parts = text.split(",")
    if len(parts) == 1:
        return None
    if not parts[-1]:
        parts.pop()
    found = [parse_address(part.strip(" ")) for part in parts]
    if all(each is None for each in found):
        return None
    for part, address in zip(parts, found, strict=True):
        if address is None:
            raise InvalidArgumentError("location", text, f"{part.strip(' ')!r} is not host:port")
    return tuple(dict.fromkeys(each for each in found if each is not None))
