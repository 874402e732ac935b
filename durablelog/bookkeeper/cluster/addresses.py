"""The ports of a local cluster: chosen once, kept in its folder, the same for as long as its data
lives.

A bookie's data belongs to its address, so a port must be free again at every start. Hence they are
taken from below the range out of which the system gives ports to outgoing connections.
"""

from __future__ import annotations

import json
import os
import socket
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from durablelog.bookkeeper.cluster.settings import HOST
from segmentstore.contracts.errors import ConfigError

FILE_NAME: Final = "cluster.json"
BOOKIES_MAX: Final = 9

LOWEST_PORT: Final = 10_000
"""The lowest one that is tried."""

_VERSION: Final = 1
_OUTGOING: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_OUTGOING_DEFAULT: Final = 32_768


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the processes of a cluster listen, on 127.0.0.1."""

    zookeeper: int
    bookies: tuple[int, ...]


def load_addresses(folder: Path) -> Addresses | None:
    """Those of the cluster in this folder; None if there is no folder, or nothing in it.

    Raises ConfigError.
    """
    path = folder / FILE_NAME
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["version"] != _VERSION:
            raise ConfigError(
                "cluster",
                f"{path} is of version {kept['version']}, which this program does not know",
            )
        return Addresses(int(kept["zookeeper"]), tuple(int(port) for port in kept["bookies"]))
    except FileNotFoundError:
        if folder.is_dir() and any(not entry.name.startswith(".") for entry in folder.iterdir()):
            raise ConfigError(
                "cluster", f"{folder} is neither empty nor the folder of a local cluster"
            ) from None
        return None
    except NotADirectoryError:
        raise ConfigError("cluster", f"{folder} is not a folder") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError("cluster", f"{path} is damaged: {error!r}") from error


def choose_addresses(folder: Path, bookies: int, before: Addresses | None) -> Addresses:
    """Addresses for so many bookies, those of before among them, kept in the folder.

    Raises ConfigError.
    """
    if not 1 <= bookies <= BOOKIES_MAX:
        raise ConfigError("bookies", f"{bookies} is not a number from 1 to {BOOKIES_MAX}")
    kept = [before.zookeeper, *before.bookies] if before is not None else []
    if len(kept) > bookies + 1:
        raise ConfigError(
            "bookies", f"the cluster in {folder} has {len(kept) - 1}, and cannot have fewer"
        )
    ports = [*kept, *free_ports(folder, bookies + 1 - len(kept), kept)]
    addresses = Addresses(ports[0], tuple(ports[1:]))
    if addresses != before:
        content = {
            "version": _VERSION,
            "zookeeper": addresses.zookeeper,
            "bookies": addresses.bookies,
        }
        new = folder / f"{FILE_NAME}.new"
        new.write_text(json.dumps(content) + "\n", encoding="utf-8")
        new.replace(folder / FILE_NAME)
    return addresses


def free_ports(folder: Path, count: int, taken: list[int]) -> list[int]:
    """Ports without a listener. Two searches at the same time begin at different places."""
    end = first_outgoing_port()
    place = zlib.crc32(f"{folder.absolute()} {os.getpid()}".encode())
    found: list[int] = []
    for step in range(end - LOWEST_PORT):
        if len(found) == count:
            return found
        port = LOWEST_PORT + (place + step) % (end - LOWEST_PORT)
        if port not in taken and port_is_free(port):
            found.append(port)
    raise ConfigError("cluster", f"no {count} ports of {HOST} are free")


def port_is_free(port: int) -> bool:
    """Whether a port of 127.0.0.1 has no listener just now."""
    with socket.socket() as probe:
        # As the servers do: what is left of closed connections does not hold a port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def first_outgoing_port() -> int:
    """The lowest port that the system gives to outgoing connections. Others are for servers."""
    try:
        first = int(_OUTGOING.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first = _OUTGOING_DEFAULT
    return first if first >= LOWEST_PORT + 1000 else _OUTGOING_DEFAULT
