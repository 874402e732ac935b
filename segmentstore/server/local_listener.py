"""The Unix socket of a store that is open: in its folder, for its user alone (mode 0600).

The holder of the folder's lock may replace what a crash left there; no other process listens.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

from segmentstore.contracts import forks
from segmentstore.contracts.local_socket import STORE_SOCKET_NAME, socket_address

_BACKLOG: Final = 128


def socket_path(location: str) -> Path:
    """Where it is."""
    return Path(location).absolute() / STORE_SOCKET_NAME


def _leave_to_parent(listener: socket.socket) -> None:
    # An event loop may keep the socket open when it is closed here.
    forks.release_descriptor(listener.fileno())


def local_listener(location: str) -> socket.socket:
    """A listening socket in the folder, in place of whatever was there.

    The caller has the folder's lock. Raises OSError if the folder cannot hold a socket.
    """
    path = socket_path(location)
    path.unlink(missing_ok=True)
    with forks.no_fork():
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A client that connects is to find an owner or no listener: not a forked child that never
        # answers.
        forks.in_child(listener, _leave_to_parent)
    try:
        with socket_address(location) as address:
            listener.bind(address)
        # No client can connect before it listens.
        path.chmod(0o600)
        listener.listen(_BACKLOG)
        listener.settimeout(0)
    except BaseException:
        listener.close()
        raise
    return listener
