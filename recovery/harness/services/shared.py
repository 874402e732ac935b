"""One server of a kind for a whole process: started when first asked for, stopped when the process
ends.

For tests: a server costs a second, a bucket nothing. A process that is killed takes its servers
along (see `server`).
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import TypeVar

from recovery.harness.services.server import Server

_S = TypeVar("_S", bound=Server)

_running: dict[type[Server], Server] = {}


def shared_server(kind: type[_S]) -> _S:
    """The process's server of this kind, running: also if a test stopped it.

    Raises what `Server.start` raises.

    A test that makes it fail on purpose takes one of its own.
    """
    server = _running.get(kind)
    if server is None:
        folder = Path(tempfile.mkdtemp(prefix=f"segmentstore-{kind.__name__.lower()}-"))
        server = kind(folder)
        atexit.register(_end, server)
        _running[kind] = server
    assert isinstance(server, kind)
    server.start()
    return server


def _end(server: Server) -> None:
    server.stop()
    shutil.rmtree(server.folder, ignore_errors=True)
