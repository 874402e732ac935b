"""What Pravega's segment stores and its Controller write into ZooKeeper: a host, and which host has
which container.

Pure. Format: docs/formats/pravega-nodes.md. The objects are those of Pravega's serializers: an
envelope with one revision. Further revisions, and bytes behind what is known, are ignored.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from segmentstore.contracts.errors import DataCorruptionError

_ENVELOPE: Final = struct.Struct(">BBBBi")
"""Kind and version of the format, count of revisions, number and length of the first one."""
_BEGINS: Final = (0, 0)
_NUMBER: Final = struct.Struct(">i")
_LENGTH: Final = struct.Struct(">H")


class PravegaHost(NamedTuple):
    """Where clients reach a segment store."""

    host: str
    port: int

    @property
    def node_name(self) -> str:
        """Of its node: it ends with an id of the endpoint, which is empty."""
        return f"{self.host}:{self.port}:"


def encode_host(host: PravegaHost) -> bytes:
    """The bytes of its node."""
    name = host.host.encode()
    body = _LENGTH.pack(len(name)) + name + _NUMBER.pack(host.port) + _LENGTH.pack(0)
    return _ENVELOPE.pack(*_BEGINS, 1, 0, len(body)) + body


def decode_mapping(data: bytes, where: str) -> dict[int, PravegaHost]:
    """Which host is to have each container.

    Raises DataCorruptionError if it is no mapping, or a container has two hosts.
    """
    try:
        reader = _Reader(data).revision()
        found: dict[int, PravegaHost] = {}
        for _ in range(reader.compact()):
            of_host = reader.revision()
            host = PravegaHost(of_host.text(), of_host.number())
            containers = reader.revision()
            for _ in range(containers.compact()):
                number = containers.number()
                if number in found:
                    raise DataCorruptionError(where, f"container {number} has two hosts")
                found[number] = host
    except (struct.error, ValueError) as error:
        raise DataCorruptionError(where, f"it is no mapping of Pravega's: {error}") from error
    return found


class _Reader:
    """Of bytes, from their beginning on. Raises struct.error, ValueError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def revision(self) -> _Reader:
        """The first revision of an object."""
        kind, version, count, _, length = _ENVELOPE.unpack(self._take(_ENVELOPE.size))
        if (kind, version) != _BEGINS or count < 1 or length < 0:
            raise ValueError(f"an object begins with {(kind, version, count, length)}")
        first = _Reader(self._take(length))
        for _ in range(count - 1):
            self._take(1)
            self._take(self.number())
        return first

    def compact(self) -> int:
        """A count: one byte, two with the highest bits 10, or four with 11."""
        (first,) = self._take(1)
        if first < 0x80:
            return int(first)
        if first < 0xC0:
            return int((first & 0x3F) << 8 | self._take(1)[0])
        return (first & 0x3F) << 24 | int.from_bytes(self._take(3))

    def number(self) -> int:
        """Of four bytes."""
        value: int = _NUMBER.unpack(self._take(_NUMBER.size))[0]
        return value

    def text(self) -> str:
        """UTF-8 with its length."""
        (length,) = _LENGTH.unpack(self._take(_LENGTH.size))
        return self._take(length).decode()

    def _take(self, length: int) -> bytes:
        taken = self._data[self._at : self._at + length]
        if length < 0 or len(taken) < length:
            raise ValueError(f"{length} bytes are missing at {self._at}")
        self._at += length
        return taken
