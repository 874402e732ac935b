"""TemporaryOwner: the owner of a stopped store for as long as a job has something to ask of one.

A job puts messages into the mailboxes of containers and waits for the answers of the owner of the
store. If no process has it open, the command line that runs the job is that owner: from the first
message without an answer to the end of the job. The owner's own code takes up the messages
(storagewriter/request_processor.py), in a store that is opened as usual. Until then the folder is
free, and a service that opens the store meanwhile answers instead.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import segmentstore
from segmentstore.contracts.errors import SegmentStoreError, StoreInUseError
from segmentstore.contracts.event_loops import new_event_loop
from segmentstore.contracts.runtime import Runtime
from tier2.locations import open_object_storage
from tier2.mailbox.mailbox import list_messages
from tier2.object_storage import StorageUnavailableError

_log = logging.getLogger(__name__)

CHECK_S: Final = 0.5
ANSWER_POLL_S: Final = 0.5
"""Of the owner for the time of the job, which waits for the answers."""


class TemporaryOwner:
    """A context manager.

    What kept it from standing in, whatever it was, is in `failure` afterwards; the messages of the
    job then get no answer from it.
    """

    def __init__(self, location: str, url: str, containers: Sequence[int]) -> None:
        self.failure: BaseException | None = None
        self._location = location
        self._url = url
        self._containers = containers
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stand-in")

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._loop is not None and self._ended is not None:
            try:
                self._loop.call_soon_threadsafe(self._ended.set)
            except RuntimeError:
                pass  # its loop has ended already
        self._thread.join()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._own_until_done())
        except BaseException as error:  # noqa: BLE001
            # No caller is notified of it, and a job that waits in vain has to say why.
            self.failure = error
            if not isinstance(error, SegmentStoreError):
                _log.error("the temporary owner of a stopped store has ended", exc_info=error)
        finally:
            self._ready.set()

    async def _own_until_done(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        while not self._ended.is_set():
            if await self._is_asked():
                await self._answer(self._ended)
            await _wait(self._ended, CHECK_S)

    async def _is_asked(self) -> bool:
        storage = open_object_storage(self._url, Runtime())
        try:
            for container_id in self._containers:
                entries = await list_messages(storage, container_id)
                if any(entry.message is not None and entry.answer is None for entry in entries):
                    return True
        except StorageUnavailableError as error:
            _log.info("polling for messages: %s", error)
        finally:
            await storage.close()
        return False

    async def _answer(self, ended: asyncio.Event) -> None:
        try:
            async with segmentstore.open(self._location, mailbox_poll_interval_s=ANSWER_POLL_S):
                await ended.wait()
        except StoreInUseError:
            pass  # its owner answers; and when that has ended, this does


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
