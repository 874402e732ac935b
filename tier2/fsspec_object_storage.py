"""FsspecObjectStorage: any file system of fsspec as Tier 2.

One object, one file, byte for byte, at root/name.

Not every back end can give what an object storage promises; docs/tier2.md says for each what it
cannot. What remains true on all of them: names are unique and the log is the only authority, so an
object is read only after its put has returned. Rules of this file:

- put-if-absent is the back end's own where it has one, else a check before writing: of two
  *processes* that put one name at the same moment the later may win. Of one process, one wins;
- "one's own object" is recognised by its size and bytes, for there is no place for the unique id.
  Where a cut upload can leave a part under the final name, a part of one's own is replaced by the
  put that is tried again. Sizes are compared after every put;
- that a put survives a crash of the server's machine is the back end's word, and nothing here can
  make it true: an SFTP server, for one, syncs nothing;
- a call is counted as one request: what fsspec makes of it is not known.
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from segmentstore.contracts.runtime import Runtime
from tier2.fsspec_files import FsspecFiles
from tier2.fsspec_location import parse_fsspec_url
from tier2.object_storage import (
    ObjectExistsError,
    StorageRefusedError,
    StorageUnavailableError,
    StoredObject,
)
from tier2.threaded_object_storage import PAGE_OBJECTS, ThreadedObjectStorage
from tier2.unique_ids import new_unique_id

THREADS: Final = 8
PROBE_FOLDER: Final = "probe"
CLOSE_TIMEOUT_S: Final = 75.0
"""At a close: not every back end gives up a server that says nothing."""

_FORBIDDEN_STATUS: Final = frozenset((401, 403))
_STATUS_FIELDS: Final = ("status", "status_code", "code")


def check_fsspec_url(url: str, *, new: bool = False) -> None:
    """Raise ConfigError("tier2", ...) unless fsspec can reach what the URL names; connects nowhere.

    Also for a scheme whose package is not installed, for S3 and folders, which have adapters of
    their own, and for an option that does not exist. With `new` also for one that would be ignored
    in silence.
    """
    parse_fsspec_url(url, new=new)


class FsspecObjectStorage(ThreadedObjectStorage[FsspecFiles]):
    """Objects below the URL's path; the query's parameters are options of the file system.

    Connects at the first call.

    Each call under way holds at most one object in memory.
    """

    def __init__(
        self,
        url: str,
        runtime: Runtime,
        *,
        page_objects: int = PAGE_OBJECTS,
        threads: int = THREADS,
    ) -> None:
        location = parse_fsspec_url(url)
        files = FsspecFiles(location, runtime)
        super().__init__(
            files,
            location.shown,
            runtime,
            "tier2-fsspec",
            threads=threads,
            page_objects=page_objects,
            close_timeout_s=CLOSE_TIMEOUT_S,
        )
        self._random = runtime.random

    async def check(self) -> None:
        """Write, write again, read, list and delete a probe.

        Raises StorageRefusedError, StorageUnavailableError.
        """
        unique_id = new_unique_id(self._random)
        name = f"{PROBE_FOLDER}/{unique_id.hex()}"
        await self.put(name, [unique_id], unique_id)
        try:
            if await self.get_range(name, 4, 8) != unique_id[4:12]:
                raise self._broken(name, "a range of an object comes back as other bytes")
            there = await self.head(name)
            if there is None or there.size != len(unique_id):
                raise self._broken(
                    name, "an object that was written is not there, or of another size"
                )
            try:
                await self.put(name, [bytes(len(unique_id))], unique_id)
            except ObjectExistsError:
                pass
            else:
                raise self._broken(name, "an object that is there is overwritten by another")
            if [each.name async for page in self.list(name) for each in page] != [name]:
                raise self._broken(name, "an object that is there is not listed")
        finally:
            await self.delete(name)
        if await self.head(name) is not None:
            raise self._broken(name, "a deleted object is still there")

    async def list_everything(
        self, folder: str, is_left_out: Callable[[str], bool], must_be_seen: Callable[[str], bool]
    ) -> AsyncIterator[Sequence[StoredObject]]:
        """As `list`, of all that lies below a folder ("" or ending in a slash), also under names
        that are none of objects.

        Folders that `is_left_out` are not inspected; of those that this process may not list only
        the ones that `must_be_seen` are an error. Names end in a slash. Never for the engine, which
        touches nothing that is foreign.
        """
        found = self._files.walk_everything(folder, is_left_out, must_be_seen)
        while page := await self._next_page(folder, found):
            yield page

    def _understood(self, name: str, error: Exception) -> StorageUnavailableError:
        number = error.errno if isinstance(error, OSError) else None
        kind = errno.errorcode.get(number or 0, type(error).__name__)
        detail = f"{self._files.scrubbed(str(error)) or 'no reason given'} ({kind})"
        if _is_refusal(error):
            return StorageRefusedError(
                name, f"{self._url} refuses: {detail}; correct its permissions or options", kind
            )
        return StorageUnavailableError(name, detail, kind)

    def _cause(self, error: Exception) -> Exception | None:
        # Some quote the URL that they asked for, with what is secret in it.
        said = (
            "".join(traceback.format_exception_only(error))
            + f"{error.__cause__} {error.__context__}"
        )
        return error if self._files.scrubbed(said) == said else None

    def _broken(self, name: str, what: str) -> StorageRefusedError:
        return StorageRefusedError(name, f"{self._url} cannot be Tier 2: {what}", "check")


def _is_refusal(error: Exception) -> bool:
    """Whether an operator has to change something: permissions, credentials, as far as back ends
    report it.
    """
    if isinstance(error, PermissionError) or any(
        "Authentication" in each.__name__ for each in type(error).__mro__
    ):
        return True
    return any(getattr(error, field, None) in _FORBIDDEN_STATUS for field in _STATUS_FIELDS)
