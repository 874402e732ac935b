"""What SFTP needs beyond fsspec's file system: an exclusive create, many requests under way, an end
to waiting.

fsspec writes 32 KiB per round trip, and its "create" is a check followed by an overwrite. Here a
file is opened with the protocol's own EXCL, and writes and reads are sent ahead. Every answer is
waited for: a write that failed in the middle must not be taken for done. An instance belongs to one
thread at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import paramiko

from segmentstore.contracts.checksum import Buffer

KNOWN_HOSTS: Final = "known_hosts"
"""An option of ours: the file of the servers' keys, as OpenSSH writes it.

Without it any server is believed.
"""

OPTIONS: Final = {"timeout": 10.0, "banner_timeout": 20.0, "auth_timeout": 20.0}
"""For connecting, in seconds, where the URL says nothing else."""

_SILENCE_S: Final = 60.0
"""A server that says nothing for so long is given up."""
_KEEPALIVE_S: Final = 15
_WRITE_BYTES: Final = 2 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024
"""Written, and asked for, before answers are waited for."""
_ONE_REQUEST_BYTES: Final = 32 * 1024


def connect(file_system: type[Any], options: Mapping[str, Any]) -> Any:
    """A connection of its own."""
    wanted = {**OPTIONS, **options}
    known_hosts = wanted.pop(KNOWN_HOSTS, None)
    if known_hosts is not None:
        wanted["host_key_policy"] = _OnlyKnown(str(known_hosts))
    made = file_system(**wanted, skip_instance_cache=True)
    _prepare(made)
    return made


class _OnlyKnown(paramiko.MissingHostKeyPolicy):
    """Believes servers whose keys stand in a file. fsspec loads no such file, so every key is a
    missing one to it.
    """

    def __init__(self, path: str) -> None:
        self._known = paramiko.HostKeys(path)

    def missing_host_key(
        self,
        client: paramiko.SSHClient,  # noqa: ARG002 - paramiko's signature
        hostname: str,
        key: paramiko.PKey,
    ) -> None:
        if not self._known.check(hostname, key):
            raise paramiko.AuthenticationException(
                f"the key of {hostname} is not the one in the known_hosts file"
            )


def _prepare(file_system: Any) -> None:
    file_system.ftp.get_channel().settimeout(_SILENCE_S)
    transport = file_system.client.get_transport()
    if transport is not None:
        transport.set_keepalive(_KEEPALIVE_S)


def is_connected(file_system: Any) -> bool:
    """Whether it may be used again."""
    transport = file_system.client.get_transport()
    return transport is not None and transport.is_active()


def disconnect(file_system: Any) -> None:
    """Close the connection."""
    file_system.client.close()


def create(file_system: Any, path: str, data: bytes) -> None:
    """Write a new file; FileExistsError if there is one. A failed one may leave a part."""
    with open_new(file_system, path) as file:
        write(file, data)


def open_new(file_system: Any, path: str) -> Any:
    """A new file, to be written; FileExistsError if there is one."""
    try:
        return file_system.ftp.open(path, "wxb")
    except FileNotFoundError:
        raise
    except OSError:
        # Version 3 of the protocol has no word for "exists", only "failure".
        if not _exists(file_system, path):
            raise
        raise FileExistsError(path) from None


def write(file: Any, data: Buffer) -> None:
    """Write at the end of an open file."""
    view = memoryview(data)
    for begin in range(0, len(view), _WRITE_BYTES):
        window = view[begin : begin + _WRITE_BYTES]
        # The last write of a window is made without running ahead, and that one waits for the
        # answers of all.
        file.set_pipelined(True)
        file.write(window[:-1])
        file.set_pipelined(False)
        file.write(window[-1:])


def read(file_system: Any, path: str, offset: int, length: int) -> bytes:
    """Bytes from `offset`, at most `length`; fewer, or EOFError, where the file ends before."""
    with file_system.ftp.open(path, "rb") as file:
        if length <= _ONE_REQUEST_BYTES:
            file.seek(offset)
            return bytes(file.read(length))
        # A window at a time: what paramiko does with answers that came ahead costs the square of
        # their number.
        end = offset + length
        windows = (
            (begin, min(_READ_BYTES, end - begin)) for begin in range(offset, end, _READ_BYTES)
        )
        return b"".join(piece for window in windows for piece in file.readv([window]))


def _exists(file_system: Any, path: str) -> bool:
    try:
        file_system.ftp.stat(path)
    except FileNotFoundError:
        return False
    return True
