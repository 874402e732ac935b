"""SnapshotUploader: keeps a container's metadata snapshots in Tier 2.

Each file of the catalog is put once, as an object; a small manifest, put last, names the files of
one snapshot. Rules (docs/formats/metadata-snapshot.md):

- a manifest names only files that are known to be durable: put by this owner, or named by the
  snapshot it took over and found there;
- a put of unknown outcome is repeated with the same name, unique id and bytes, so it is one object
  whatever was lost. An unconfirmed manifest is resolved before the next one is begun;
- an owner that has not taken over a snapshot puts all files anew. One that finds a snapshot damaged
  does without it, and `damage` says so.

**What stays.** A log may begin with a snapshot: recovery reads it. Each snapshot at the log's
beginning or behind it may become its beginning, by a truncation. So two kinds are kept: those whose
sequence number is not below `keep_from`, and the newest KEPT. Both of those that this owner knows
to be durable: its own, and those it took over. `keep_from` follows the truncations: it is never
ahead of the log's beginning.

**Deletion.** Nothing is deleted before there are KEPT whole ones, the newest its own. Nothing at
all is deleted while the log begins with a snapshot whose manifest could not be read: it may name
any of the files. Of one that lacks files the others stay. A pass has three steps. (1) It notes
the kept ones. (2) It asks the log whether this owner is still the primary. (3) It lists objects of
this store and of epochs up to its own. Those that neither a kept snapshot nor a put in progress
names are garbage: this owner never names them again. Manifests are deleted first, files a lag
later, because readers may be reading them.

**A stale owner harms nothing, however late the store applies its deletions.** Let A delete, and let
B be a later owner. A was the primary at (2), so B opened the log later than that, and looked after
(1). B takes over at most two snapshots:

- the one that B's log begins with. The beginning only grows, and the log truncates for its primary
  alone. So it is not below A's `keep_from` at (1). If A knew it then, A kept it. If A could not
  read it, A deleted nothing. Else A put it later;
- the newest that B's log names and that is there (`find_newest`). If A's newest at (1) is still in
  the log, it is that or a later one. If the log begins behind it, all in the log are later.

Neither names garbage of A: at (3) A spared what the kept ones name, and later snapshots of A name
only files that A had spared. What B puts, B names itself. So no manifest of B names anything that A
deletes, and recovery by B finds all that the log's beginning names. By induction the same holds for
all of B's successors. After B has opened, the log answers A that it is not the primary, and A finds
no more garbage. B's epoch is greater, so A never deletes what B put.

A may put a manifest late, after B's first one. It sorts before B's, and B may delete its files. It
is garbage that looks like a snapshot: no truncation point of B, and A truncates no more. A reader
finds it incomplete and takes the next one. The newest is B's, and what B keeps is complete.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.health import HealthNote
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.owned_tasks import gather_outcomes
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.weighted_gate import WeightedGate
from tier2.metadata_manifest import (
    FileContent,
    MetadataManifest,
    SnapshotFile,
    empty_file,
    encode_metadata_manifest,
)
from tier2.metadata_snapshots import (
    MetadataSnapshotError,
    SnapshotObjectMissingError,
    read_snapshot_manifest,
)
from tier2.object_names import (
    MetadataManifestName,
    metadata_manifest_name,
    metadata_prefix,
    parse_metadata_manifest_name,
    parse_metadata_name,
)
from tier2.object_storage import ObjectExistsError, ObjectStorage, StorageUnavailableError
from tier2.unique_ids import new_copy_id, store_tag

KEPT: Final = 2
"""Snapshots of one container that stay in any case: the newest may be damaged."""
FILES_AT_ONCE: Final = 4
BYTES_IN_FLIGHT: Final = 16 * 1024 * 1024
"""Of files being put. A file is in memory whole; one that is larger is put alone."""
PIECE_BYTES: Final = 256 * 1024
"""Read and checked in one turn of the event loop."""
PASS_INTERVAL_S: Final = 1.0
_RETRY_MIN_S: Final = 1.0
_RETRY_MAX_S: Final = 60.0

_T = TypeVar("_T")

ReadPiece = Callable[[str, int, int], Awaitable[bytes]]
"""Gives the bytes of a local file: name, offset, length; fewer only at the file's end."""


class SnapshotFileChangedError(Exception):
    """A local file is not what its size and checksum say: nothing was put of it."""


class SnapshotOwner(Protocol):
    """The container, seen from here."""

    @property
    def metadata(self) -> ContainerMetadata:
        """Read only; its id alone is used."""

    @property
    def store_id(self) -> str:
        """Of the store, a UUID."""

    @property
    def epoch(self) -> int:
        """Of the container's log."""

    async def check_primary(self) -> None:
        """As `WriterDataSource.check_primary`."""


class SnapshotUploader:
    """The metadata snapshots of one container; everything on its event loop.

    `containers` is how many the store has; `lag_s` is the deletion lag, seconds.
    """

    def __init__(
        self,
        source: SnapshotOwner,
        storage: ObjectStorage,
        containers: int,
        runtime: Runtime,
        lag_s: float,
    ) -> None:
        self._source = source
        self._storage = storage
        self._container_id = source.metadata.container_id
        self._store_id = uuid.UUID(source.store_id)
        self._containers = containers
        self._clock = runtime.clock
        self._random = runtime.random
        self._lag_s = lag_s
        self._backoff = Backoff(runtime.random, min_s=_RETRY_MIN_S, max_s=_RETRY_MAX_S)
        self._putting, self._passing = asyncio.Lock(), asyncio.Lock()
        self._wake = asyncio.Event()
        self._known: tuple[MetadataManifest, ...] = ()
        """Kept snapshots that are durable and whole, oldest first."""
        self._lacking: MetadataManifest | None = None
        """The one that the log began with, if it lacks files."""
        self._unread: MetadataManifestName | None = None
        """The one that the log began with, if its manifest could not be read."""
        self._keep_from = 0
        self._unconfirmed: MetadataManifest | None = None
        self._requested: frozenset[FileContent] = frozenset()
        """Files of the put that is in progress, or failed and will be repeated."""
        self._durable: dict[FileContent, SnapshotFile] = {}
        self._begun: dict[FileContent, SnapshotFile] = {}
        """Names given to files whose put has not succeeded yet."""
        self._unnamed: dict[str, float] = {}
        """Files to be deleted, and since when on the loop's clock."""
        self.health = HealthNote(f"metadata snapshots in tier2 {storage.url}", runtime.clock)
        self.damage = HealthNote(
            f"reading the metadata snapshots of the last owner in tier2 {storage.url}",
            runtime.clock,
        )
        """Until there is a new one, and the log begins behind those that are damaged."""
        self.bytes_put = 0
        self.deleted = 0

    def new_id(self) -> bytes:
        """A unique id for a snapshot to come: it may be logged before the snapshot is put."""
        return new_copy_id(self._store_id, self._random)

    async def find_newest(self, names: Sequence[str]) -> str | None:
        """The newest of these manifests that is there; None if none is.

        `names` are those that the log has, oldest first. One request each, from the end. Raises
        StorageUnavailableError.
        """
        for name in reversed(names):
            if await self._storage.head(name) is not None:
                return name
        return None

    async def take_over(self, newest: str, first: str | None = None) -> None:
        """Have the files of these snapshots, as far as they are there, named by those to come.

        Call it after the log was opened and before the first put. `newest` is what `find_newest`
        gives for the names in the log: a listing may lag. `first` is the manifest that the log
        begins with; None if it begins with no snapshot. They may be the same. One that is
        damaged or lacks something is done without; `damage` says so. Two requests for each, and one
        for each file. Raises StorageUnavailableError: nothing was taken over, call it again. Raises
        ValueError for a name of an epoch that is not before this owner's.
        """
        known: list[MetadataManifest] = []
        durable: dict[FileContent, SnapshotFile] = {}
        lacking: MetadataManifest | None = None
        unread: MetadataManifestName | None = None
        failed: MetadataSnapshotError | None = None
        for name in (newest,) if first in (None, newest) else (first, newest):
            assert name is not None
            named = self._predecessor(name)
            try:
                manifest = await read_snapshot_manifest(self._storage, name, self._store_id)
            except MetadataSnapshotError as error:
                failed = error
                unread = named if name == first else unread
                continue
            files = [file for file in manifest.files if file.content.size]
            there = await self._in_parallel(self._is_there, files)
            durable.update((file.content, file) for file in there)
            if len(there) == len(files):
                known.append(manifest)
                continue
            missing = f"{len(files) - len(there)} of its {len(files)} files are not there"
            failed = SnapshotObjectMissingError(name, missing)
            lacking = manifest if name == first else lacking
        self._known, self._durable = tuple(known), durable
        self._lacking, self._unread = lacking, unread
        if failed is not None:
            self.damage.failed(failed)

    def _predecessor(self, name: str) -> MetadataManifestName:
        named = parse_metadata_manifest_name(name)
        if (
            named is None
            or named.epoch >= self._source.epoch
            or named.container_id != self._container_id
        ):
            raise ValueError(f"{name} is no predecessor's in epoch {self._source.epoch}")
        return named

    def keep_from(self, sequence_number: int) -> None:
        """The log begins with the checkpoint of this sequence number: keep all from there on.

        Call it at the start and behind each truncation, once that is durable. Until the first call
        all known snapshots are kept. O(kept snapshots). Raises ValueError for a lower number than
        before.
        """
        if sequence_number < self._keep_from:
            raise ValueError(f"a log that began with {self._keep_from} never begins before that")
        self._keep_from = sequence_number
        if self._lacking is not None and self._lacking.sequence_number < sequence_number:
            self._lacking = None
        if self._unread is not None and self._unread.sequence_number < sequence_number:
            self._unread = None
        self._forget_old()

    def _forget_old(self) -> None:
        """Know only what is kept."""
        self._known = tuple(
            manifest
            for number, manifest in enumerate(self._known, KEPT - len(self._known))
            if number >= 0 or manifest.sequence_number >= self._keep_from
        )
        if self._has_own and self._lacking is None and self._unread is None:
            self.damage.succeeded()
        self._wake.set()

    @property
    def _has_own(self) -> bool:
        """Whether the newest snapshot is this owner's."""
        return bool(self._known) and self._known[-1].epoch == self._source.epoch

    @property
    def _kept(self) -> tuple[MetadataManifest, ...]:
        return self._known if self._lacking is None else (self._lacking, *self._known)

    async def put(
        self,
        files: Sequence[FileContent],
        sequence_number: int,
        unique_id: bytes,
        read: ReadPiece,
    ) -> str:
        """Make a snapshot of these files, the catalog as of `sequence_number`; return its name.

        When it returns the snapshot is durable. Only files that no snapshot has are read and put.
        After a failure call it again with the same id, or for a higher sequence number. Raises
        StorageUnavailableError, SnapshotFileChangedError, and what `read` raises. Raises ValueError
        for a sequence number that is not higher.
        """
        async with self._putting:
            await self._resolve()
            epoch = self._source.epoch
            name = metadata_manifest_name(self._container_id, epoch, sequence_number, unique_id)
            if self._known:
                newest = self._known[-1]
                if newest.name == name:
                    return name
                if (newest.epoch, newest.sequence_number) >= (epoch, sequence_number):
                    raise ValueError(f"{name} would not be behind {newest.name}")
            self._requested = frozenset(content for content in files if content.size)
            missing = sorted(self._requested - self._durable.keys())
            gate = WeightedGate(BYTES_IN_FLIGHT)
            await self._in_parallel(lambda content: self._put_file(content, read, gate), missing)
            self._unconfirmed = MetadataManifest(
                self._store_id,
                self._containers,
                self._container_id,
                epoch,
                sequence_number,
                unique_id,
                self._clock.time_ms(),
                tuple(
                    self._durable[content] if content.size else empty_file(content)
                    for content in sorted(files)
                ),
            )
            await self._resolve()
            return name

    async def run(self) -> None:
        """Delete what is old until cancelled. Raises what `check_primary` raises of an owner that
        is stale.
        """
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            try:
                found = await self.collect_now()
            except (StorageUnavailableError, TierUnavailableError) as error:
                self.health.failed(error)
                delay: float | None = self._backoff.next_s()
            else:
                self.health.succeeded()
                self._backoff.reset()
                # A store may apply a put after its deletion: another pass finds that.
                delay = max(self._lag_s, PASS_INTERVAL_S) if found else None
            timer = loop.call_later(delay, self._wake.set) if delay is not None else None
            try:
                await self._wake.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    async def collect_now(self) -> int:
        """One pass; return how much garbage it found, deleted now or later.

        A question to the log and a listing. Raises StorageUnavailableError, and what
        `check_primary` raises.
        """
        async with self._passing:
            kept = self._kept
            if len(self._known) < KEPT or not self._has_own or self._unread is not None:
                return 0
            await self._source.check_primary()
            listed = await self._list()
            manifests, files = self._find_unnamed(kept, listed)
            for name in manifests:
                await self._delete(name)
            now_s = asyncio.get_running_loop().time()
            self._unnamed = {name: self._unnamed.get(name, now_s) for name in files}
            for name, since_s in tuple(self._unnamed.items()):
                if now_s - since_s >= self._lag_s:
                    await self._delete(name)
                    del self._unnamed[name]
            return len(manifests) + len(files)

    # --- putting ----------------------------------------------------------------------------------

    async def _resolve(self) -> None:
        """Make a manifest durable whose put was begun."""
        manifest = self._unconfirmed
        if manifest is None:
            return
        data = encode_metadata_manifest(manifest)
        try:
            await self._storage.put(manifest.name, [data], manifest.unique_id)
        except ObjectExistsError:
            self._unconfirmed = None  # It is another writer's: another id is needed.
            raise
        self.bytes_put += len(data)
        self._unconfirmed = None
        self._requested = frozenset()
        self._known = (*self._known, manifest)
        self._forget_old()

    async def _put_file(self, content: FileContent, read: ReadPiece, gate: WeightedGate) -> bool:
        await gate.enter(content.size)
        try:
            pieces = await _read_whole(content, read)
            file = self._begun.get(content)
            if file is None:
                file = SnapshotFile(content, self._source.epoch, self.new_id())
                self._begun[content] = file
            name = file.object_name(self._container_id)
            assert name is not None, content
            try:
                await self._storage.put(name, pieces, file.unique_id)
            except ObjectExistsError:
                del self._begun[content]
                raise
            self._durable[content] = file
            del self._begun[content]
            self.bytes_put += content.size
        finally:
            gate.leave(content.size)
        return True

    async def _is_there(self, file: SnapshotFile) -> bool:
        name = file.object_name(self._container_id)
        assert name is not None, file
        stored = await self._storage.head(name)
        return stored is not None and stored.size == file.content.size

    async def _in_parallel(
        self, work: Callable[[_T], Awaitable[bool]], each: Sequence[_T]
    ) -> list[_T]:
        """Those for which it is true, in order; after a failure no more is begun."""
        outcomes: dict[int, bool] = {}
        left: Iterator[tuple[int, _T]] = iter(enumerate(each))
        failed: list[BaseException] = []

        async def worker() -> None:
            for number, one in left:
                try:
                    outcomes[number] = await work(one)
                except BaseException as error:
                    failed.append(error)
                    raise
                if failed:
                    return

        await gather_outcomes(*(worker() for _ in range(FILES_AT_ONCE)), name="metadata snapshot")
        if failed:
            raise failed[0]
        return [one for number, one in enumerate(each) if outcomes[number]]

    # --- deleting ---------------------------------------------------------------------------------

    async def _list(self) -> list[str]:
        """What is of this store, of epochs up to ours."""
        tag, epoch = store_tag(self._store_id), self._source.epoch
        found: list[str] = []
        async for page in self._storage.list(metadata_prefix(self._container_id)):
            for stored in page:
                named = parse_metadata_name(stored.name)
                if named is not None and named.epoch <= epoch and named.unique_id.startswith(tag):
                    found.append(stored.name)
        return found

    def _find_unnamed(
        self, kept: Sequence[MetadataManifest], listed: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """Manifests and files that are garbage; no manifest will name these files again.

        `kept` was kept before the question to the log.
        """
        spared = {*kept, *self._kept}
        if self._unconfirmed is not None:
            spared.add(self._unconfirmed)
        names = {manifest.name for manifest in spared}
        for manifest in spared:
            names |= manifest.objects
        for known in (self._durable, self._begun):
            for content, file in tuple(known.items()):
                name = file.object_name(self._container_id)
                if content in self._requested and name is not None:
                    names.add(name)
                elif name not in names:
                    del known[content]
        unwanted = [name for name in listed if name not in names]
        manifests = [
            name for name in unwanted if isinstance(parse_metadata_name(name), MetadataManifestName)
        ]
        return manifests, [name for name in unwanted if name not in set(manifests)]

    async def _delete(self, name: str) -> None:
        await self._storage.delete(name)
        self.deleted += 1


async def _read_whole(content: FileContent, read: ReadPiece) -> list[bytes]:
    """Raises SnapshotFileChangedError."""
    pieces: list[bytes] = []
    crc = 0
    for offset in range(0, content.size, PIECE_BYTES):
        length = min(PIECE_BYTES, content.size - offset)
        piece = await read(content.local_name, offset, length)
        if len(piece) != length:
            raise SnapshotFileChangedError(
                f"{content.local_name} ends before its {content.size:,} bytes"
            )
        crc = crc32c(piece, crc)
        pieces.append(piece)
    if crc != content.crc32c:
        raise SnapshotFileChangedError(
            f"{content.local_name} has checksum {crc:08x}, not {content.crc32c:08x}"
        )
    return pieces
