"""A job notifies the owner on its own machine that it has put messages, over the store's socket
(docs/formats/store-commands.md).

Without it the owner finds them at its next check, `mailbox_poll_interval_s` later. So any failure
here costs that time and nothing else, and is no error. There may be no listener, one that does not
answer, or another user's socket.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

from segmentstore.client.connecting import connect
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.local_socket import STORE_SOCKET_NAME
from segmentstore.contracts.runtime import Runtime
from tier2.file_object_storage import FileObjectStorage
from tier2.object_storage import ObjectStorage

STORE_FILE: Final = "store.toml"
"""What makes a folder a store; the engine's settings, which have the name, are above the jobs."""
TIMEOUT_S: Final = 2.0


def folder_of(storage: ObjectStorage, runtime: Runtime) -> str | None:
    """The folder of the store that keeps its objects in it, if this is such a place."""
    folder = os.path.dirname(storage.root) if isinstance(storage, FileObjectStorage) else None
    return (
        folder
        if folder is not None and runtime.disk.exists(os.path.join(folder, STORE_FILE))
        else None
    )


async def wake_owner(folder: str, runtime: Runtime) -> bool:
    """Ask the owner of the store in `folder` to poll its mailbox now; whether it was reached.

    Never raises for what the owner does or does not do. At most TIMEOUT_S, and one connection.
    """
    try:
        if not runtime.disk.exists(os.path.join(folder, STORE_SOCKET_NAME)):
            return False
        async with asyncio.timeout(TIMEOUT_S), connect(folder) as store:
            store.wake_mailbox()
    except (SegmentStoreError, OSError):
        return False
    return True
