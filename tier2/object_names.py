"""Names of Tier-2 objects: the one place that makes, parses and classifies them.

What each name looks like, and what it says, is in docs/formats/object-names.md. Rules:

- a name is never reused: the unique id has 64 random bits, and the epoch is in the name;
- a name alone distinguishes an orphan from an object in flight: it says whose work the object is;
- the unique id begins with the tag of the store that works on the object: a store deletes only
  objects that provably are its own. Names that older versions made have no tag, and prove nothing;
- each name has one spelling, lower case, of fixed widths: one that differs in a digit is foreign;
- objects without segments' bytes lie below `ENGINE_PREFIXES`, those of a container as written.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

import hashlib
import random
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias, cast

from tier2.archive_places import ArchivedName, parse_archive_place
from tier2.unique_ids import STORE_TAG_BYTES, check_unique_id, is_job_id, store_tag

ObjectKind = Literal["flush", "consolidation", "compaction"]
"""Which work made a block object."""

NAME_CHARACTERS_MAX = 512
CONTAINER_ID_MAX = 2**32 - 1
EPOCH_MAX = 2**64 - 1

CHECKPOINT_PREFIX: Final = "checkpoints/"
"""What the names of copies of the metadata begin with."""
MARKER_PREFIX: Final = "stores/"
"""What the names of stores' markers begin with."""
PROBE_PREFIX: Final = "probe/"
"""What the names of probes begin with, which an object storage puts, and deletes again, to check
itself.
"""
CATALOG_PREFIX: Final = "catalog/"
"""What the names of catalog snapshots' objects begin with."""
MAILBOX_PREFIX: Final = "mailbox/"
"""What the names of messages and their answers begin with."""
METADATA_PREFIX: Final = "metadata/"
"""What the names of metadata snapshots' files and manifests begin with."""
ENGINE_PREFIXES: Final = (
    CHECKPOINT_PREFIX,
    MARKER_PREFIX,
    PROBE_PREFIX,
    CATALOG_PREFIX,
    MAILBOX_PREFIX,
    METADATA_PREFIX,
)
"""The engine's folders: what the names of its objects begin with that hold no segment's bytes."""
MANIFEST: Final = "manifest.json"
"""The last part of the object that makes a snapshot one: it is put last and deleted first."""
CATALOG_TABLES: Final = ("segments", "chunks", "objects")
"""The tables of a snapshot, each an object of its own."""

_KINDS: frozenset[str] = frozenset(("flush", "consolidation", "compaction"))
_PART = re.compile(r"[A-Za-z0-9._-]+")
_OURS = re.compile(
    r"([0-9a-f]{2})/([0-9a-f]{8})/([0-9a-f]{16})/([a-z]+)-(?:([0-9a-f]{16})-)?([0-9a-f]{32})"
)
_MESSAGE_ID = re.compile(r"[a-z0-9-]{1,80}")
_COPY = r"([0-9a-f]{8})/([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{32})"
_CHECKPOINT = re.compile(CHECKPOINT_PREFIX + _COPY)
_MARKER = re.compile(rf"{MARKER_PREFIX}([0-9a-f]{{32}})")
_PROBE = re.compile(rf"{PROBE_PREFIX}[0-9a-f]{{32}}")
_CATALOG = re.compile(
    CATALOG_PREFIX + _COPY + rf"/({re.escape(MANIFEST)}|(?:{'|'.join(CATALOG_TABLES)})\.parquet)"
)
_MAILBOX = re.compile(
    MAILBOX_PREFIX + r"([0-9a-f]{8})/([0-9a-f]{16})/([a-z0-9-]{1,80})(\.answer)?\.json"
)
_METADATA_MANIFEST = re.compile(METADATA_PREFIX + _COPY)
_METADATA_FILE = re.compile(METADATA_PREFIX + r"([0-9a-f]{8})/files/([0-9a-f]{16})-([0-9a-f]{32})")
_FOLDER = re.compile(
    r"(?:(?:[0-9a-f]{2}/(?:[0-9a-f]{8}/(?:[0-9a-f]{16}/)?)?)|(?:"
    + "|".join(ENGINE_PREFIXES)
    + r")(?:[0-9a-f]{8}/(?:(?:[0-9a-f-]{16,}|files)/)?)?)?"
)
"""What our names have in front of each slash, and the top."""


# --- what a name says -----------------------------------------------------------------------------


class ObjectName(NamedTuple):
    """The name of a block object; the shard follows from the unique id."""

    container_id: int
    epoch: int
    kind: ObjectKind
    unique_id: bytes
    job_id: str | None = None
    """Of a compaction: the job that made the object, 16 hex digits. None for all else."""


class CheckpointName(NamedTuple):
    """The name of a copy of the metadata. Two of one container compare as they were written."""

    container_id: int
    epoch: int
    """Of the log's owner that wrote it."""
    sequence_number: int
    """Of the last operation it contains."""
    unique_id: bytes

    @property
    def store_mark(self) -> bytes:
        """Distinguishes stores, as far as 8 bytes of a hash do."""
        return self.unique_id[:STORE_TAG_BYTES]

    def is_of(self, store_id: uuid.UUID) -> bool:
        """Whether a store of this id wrote it: stores that share a place leave each other's
        alone.
        """
        return self.store_mark == store_tag(store_id)


class SnapshotName(NamedTuple):
    """What the names of a catalog snapshot's objects have in common. Two of one container sort by
    what they contain.
    """

    container_id: int
    epoch: int
    """Of the owner whose metadata these are."""
    sequence_number: int
    """Of the last operation in them."""
    unique_id: bytes

    @property
    def prefix(self) -> str:
        """What the names of all its objects begin with."""
        return snapshot_prefix(*self)

    def is_of(self, store_id: str) -> bool:
        """Whether a store of this id took it."""
        return self.store_mark == store_tag(store_id)

    @property
    def store_mark(self) -> bytes:
        """Distinguishes stores, as far as 8 bytes of a hash do."""
        return self.unique_id[:STORE_TAG_BYTES]


class SnapshotFileName(NamedTuple):
    """The name of one object of a catalog snapshot."""

    snapshot: SnapshotName
    part: str
    """MANIFEST, or `<table>.parquet` of one of CATALOG_TABLES."""


class MetadataManifestName(NamedTuple):
    """The name of a metadata snapshot's manifest; two of one container compare as their states."""

    container_id: int
    epoch: int
    """Of the log's owner that wrote it."""
    sequence_number: int
    """Of the last operation in the state."""
    unique_id: bytes


class MetadataFileName(NamedTuple):
    """The name of a file of metadata snapshots: several manifests may name one."""

    container_id: int
    epoch: int
    """Of the log's owner that uploaded it."""
    unique_id: bytes


class MessageKey(NamedTuple):
    """Which message: its answer has the same key."""

    container_id: int
    job_id: str
    """16 lower hex digits."""
    message_id: str
    """1 to 80 of `a-z 0-9 -`; unique within the job, and the same for all attempts at one piece of
    work.
    """


class MailboxName(NamedTuple):
    """The name of a message, or of its answer."""

    key: MessageKey
    is_answer: bool


class MarkerName(NamedTuple):
    """The name of a store's marker."""

    store_id: uuid.UUID


class ProbeName(NamedTuple):
    """The name of a probe: no caller needs it after the check that put it."""

    name: str


class ForeignName(NamedTuple):
    """A name that this version of the engine does not make."""

    folder: str | None
    """Which of ENGINE_PREFIXES it begins with; None for none of them."""


AnyName: TypeAlias = (
    ObjectName
    | CheckpointName
    | SnapshotFileName
    | MetadataManifestName
    | MetadataFileName
    | MailboxName
    | MarkerName
    | ProbeName
    | ArchivedName
    | ForeignName
)
"""What an object in Tier 2 is, by its name."""


def classify_name(name: str) -> AnyName:
    """What an object of this name is: every name is of exactly one class. O(1)."""
    folder = engine_folder(name)
    if folder is None:
        return parse_object_name(name) or parse_archive_place(name) or ForeignName(None)
    return _PARSERS[folder](name) or ForeignName(folder)


def engine_folder(name: str) -> str | None:
    """Which of ENGINE_PREFIXES the name begins with; None for none of them."""
    top = name[: name.find("/") + 1]
    return top if top in _PARSERS else None


def may_hold_ours(folder: str) -> bool:
    """Whether names of ours may begin with `folder`, which is empty or ends in a slash."""
    return _FOLDER.fullmatch(folder) is not None


# --- any name -------------------------------------------------------------------------------------


def check_object_name(name: str) -> str:
    """Return the name if any ObjectStorage must take it; ValueError otherwise."""
    if not 1 <= len(name) <= NAME_CHARACTERS_MAX:
        raise ValueError(
            f"an object name has 1 to {NAME_CHARACTERS_MAX} characters, not {len(name)}"
        )
    if not all(is_name_part(part) for part in name.split("/")):
        raise ValueError(f"{name!r} cannot name an object")
    return name


def is_name_part(part: str) -> bool:
    """Whether `part` may stand between the slashes of an object name."""
    return part not in {".", ".."} and _PART.fullmatch(part) is not None


def _check_container(container_id: int) -> int:
    if not 0 <= container_id <= CONTAINER_ID_MAX:
        raise ValueError(f"container id {container_id} is not 0 to {CONTAINER_ID_MAX}")
    return container_id


# --- block objects --------------------------------------------------------------------------------


def object_name(
    container_id: int, epoch: int, kind: ObjectKind, unique_id: bytes, *, job_id: str | None = None
) -> str:
    """The name of a block object; ValueError for parts out of range.

    A compaction has the id of its job, nothing else has one.
    """
    _check_container(container_id)
    if not 0 <= epoch <= EPOCH_MAX:
        raise ValueError(f"epoch {epoch} is not 0 to {EPOCH_MAX}")
    if kind not in _KINDS:
        raise ValueError(f"kind {kind!r} is not one of {', '.join(sorted(_KINDS))}")
    check_unique_id(unique_id)
    if (kind == "compaction") is (job_id is None):
        raise ValueError("an object of a compaction is named with its job, and no other is")
    if job_id is not None and not is_job_id(job_id):
        raise ValueError(f"job id {job_id!r} is not 16 hex digits")
    job = f"{job_id}-" if job_id is not None else ""
    return f"{_shard(unique_id)}/{container_id:08x}/{epoch:016x}/{kind}-{job}{unique_id.hex()}"


def parse_object_name(name: str) -> ObjectName | None:
    """The parts of a name, or None if `object_name` cannot have made it (a foreign object, or a
    later version's).
    """
    match = _OURS.fullmatch(name)
    if match is None:
        return None
    shard, container, epoch, kind, job_id, unique = match.groups()
    unique_id = bytes.fromhex(unique)
    if (
        kind not in _KINDS
        or shard != _shard(unique_id)
        or (kind == "compaction") is (job_id is None)
    ):
        return None
    return ObjectName(
        int(container, 16), int(epoch, 16), cast("ObjectKind", kind), unique_id, job_id
    )


def is_of_store(name: str, tag: bytes) -> bool:
    """Whether a block object of this name was provably made for the store of this tag.

    Of a name that is not ours: no.
    """
    parts = parse_object_name(name)
    return parts is not None and parts.unique_id.startswith(tag)


def _shard(unique_id: bytes) -> str:
    return hashlib.sha256(unique_id).hexdigest()[:2]


# --- copies of the metadata -----------------------------------------------------------------------


def checkpoint_prefix(container_id: int) -> str:
    """What the names of one container's copies begin with."""
    return f"{CHECKPOINT_PREFIX}{container_id:08x}/"


def checkpoint_name(container_id: int, epoch: int, sequence_number: int, unique_id: bytes) -> str:
    """The name of a copy of the metadata; ValueError for parts out of range."""
    copy = _copy(container_id, epoch, sequence_number, unique_id)
    return checkpoint_prefix(container_id) + copy


def parse_checkpoint_name(name: str) -> CheckpointName | None:
    """The parts of a name, or None if `checkpoint_name` cannot have made it."""
    match = _CHECKPOINT.fullmatch(name)
    return None if match is None else CheckpointName(*_copied(*match.groups()))


def _copy(container_id: int, epoch: int, sequence_number: int, unique_id: bytes) -> str:
    _check_container(container_id)
    if not 0 <= epoch <= EPOCH_MAX or not 0 <= sequence_number <= EPOCH_MAX:
        raise ValueError(
            f"epoch {epoch} or sequence number {sequence_number} is not 0 to {EPOCH_MAX}"
        )
    return f"{epoch:016x}-{sequence_number:016x}-{check_unique_id(unique_id).hex()}"


def _copied(
    container: str, epoch: str, sequence_number: str, unique: str
) -> tuple[int, int, int, bytes]:
    return int(container, 16), int(epoch, 16), int(sequence_number, 16), bytes.fromhex(unique)


# --- catalog snapshots ----------------------------------------------------------------------------


def catalog_prefix(container_id: int) -> str:
    """What the names of one container's snapshots begin with."""
    return f"{CATALOG_PREFIX}{container_id:08x}/"


def snapshot_prefix(container_id: int, epoch: int, sequence_number: int, unique_id: bytes) -> str:
    """What the names of one snapshot's objects begin with, slash included; ValueError for parts out
    of range.
    """
    copy = _copy(container_id, epoch, sequence_number, unique_id)
    return f"{catalog_prefix(container_id)}{copy}/"


def manifest_name(snapshot: SnapshotName) -> str:
    """The name of a snapshot's manifest."""
    return snapshot.prefix + MANIFEST


def table_name(snapshot: SnapshotName, table: str) -> str:
    """The name of the object of one of its tables."""
    return f"{snapshot.prefix}{table}.parquet"


def parse_snapshot_file(name: str) -> SnapshotFileName | None:
    """The parts of a name, or None if it is of no snapshot's object."""
    match = _CATALOG.fullmatch(name)
    if match is None:
        return None
    *copied, part = match.groups()
    return SnapshotFileName(SnapshotName(*_copied(*copied)), part)


def parse_catalog_name(name: str) -> SnapshotName | None:
    """Which snapshot this object is of; None of what is no catalog's."""
    named = parse_snapshot_file(name)
    return None if named is None else named.snapshot


def parse_manifest_name(name: str) -> SnapshotName | None:
    """Which snapshot's manifest this is; None of any other object."""
    named = parse_snapshot_file(name)
    return named.snapshot if named is not None and named.part == MANIFEST else None


# --- metadata snapshots ---------------------------------------------------------------------------


def metadata_prefix(container_id: int) -> str:
    """What the names of one container's manifests begin with, and those of its files behind."""
    return f"{METADATA_PREFIX}{container_id:08x}/"


def metadata_manifest_name(
    container_id: int, epoch: int, sequence_number: int, unique_id: bytes
) -> str:
    """The name of a manifest; ValueError for parts out of range."""
    return metadata_prefix(container_id) + _copy(container_id, epoch, sequence_number, unique_id)


def metadata_file_name(container_id: int, epoch: int, unique_id: bytes) -> str:
    """The name of a file of metadata snapshots; ValueError for parts out of range."""
    _copy(container_id, epoch, 0, unique_id)
    return f"{metadata_prefix(container_id)}files/{epoch:016x}-{unique_id.hex()}"


def parse_metadata_manifest_name(name: str) -> MetadataManifestName | None:
    """The parts of a name, or None if it is of no metadata snapshot's manifest."""
    match = _METADATA_MANIFEST.fullmatch(name)
    return None if match is None else MetadataManifestName(*_copied(*match.groups()))


def parse_metadata_file_name(name: str) -> MetadataFileName | None:
    """The parts of a name, or None if it is of no metadata snapshot's file."""
    match = _METADATA_FILE.fullmatch(name)
    if match is None:
        return None
    container, epoch, unique = match.groups()
    return MetadataFileName(int(container, 16), int(epoch, 16), bytes.fromhex(unique))


def parse_metadata_name(name: str) -> MetadataManifestName | MetadataFileName | None:
    """The parts of the name of a metadata snapshot's manifest or file; None of any other."""
    return parse_metadata_manifest_name(name) or parse_metadata_file_name(name)


# --- messages of jobs -----------------------------------------------------------------------------


def mailbox_prefix(container_id: int) -> str:
    """What all names of one container's mailbox begin with; ValueError for no container id."""
    return f"{MAILBOX_PREFIX}{_check_container(container_id):08x}/"


def mailbox_job_prefix(container_id: int, job_id: str) -> str:
    """What all names of one job in one container's mailbox begin with; ValueError for no ids."""
    if not is_job_id(job_id):
        raise ValueError(f"job id {job_id!r} is not 16 hex digits")
    return f"{mailbox_prefix(container_id)}{job_id}/"


def message_name(key: MessageKey) -> str:
    """The object a message is put into; ValueError for a key that breaks its rules."""
    return f"{mailbox_job_prefix(key.container_id, key.job_id)}{_checked_id(key.message_id)}.json"


def answer_name(key: MessageKey) -> str:
    """The object its answer is put into; it sorts right before the message. ValueError as above."""
    prefix = mailbox_job_prefix(key.container_id, key.job_id)
    return f"{prefix}{_checked_id(key.message_id)}.answer.json"


def parse_mailbox_name(name: str) -> MailboxName | None:
    """The parts of a name, or None if it is no message's and no answer's."""
    match = _MAILBOX.fullmatch(name)
    if match is None:
        return None
    container, job_id, message_id, answer = match.groups()
    return MailboxName(MessageKey(int(container, 16), job_id, message_id), answer is not None)


def _checked_id(message_id: str) -> str:
    if _MESSAGE_ID.fullmatch(message_id) is None:
        raise ValueError(f"message id {message_id!r} is not 1 to 80 of a-z, 0-9 and -")
    return message_id


# --- markers and probes ---------------------------------------------------------------------------


def marker_name(store_id: str) -> str:
    """The name of a store's marker; ValueError if that is no UUID."""
    return MARKER_PREFIX + uuid.UUID(store_id).hex


def parse_marker_name(name: str) -> MarkerName | None:
    """Whose marker this is; None if it is none."""
    match = _MARKER.fullmatch(name)
    return None if match is None else MarkerName(uuid.UUID(match[1]))


def new_probe_name(source: random.Random) -> str:
    """The name of a probe never put before, from the storage's own random source."""
    return f"{PROBE_PREFIX}{source.getrandbits(128):032x}"


def parse_probe_name(name: str) -> ProbeName | None:
    """The name, or None if it is no probe's."""
    return ProbeName(name) if _PROBE.fullmatch(name) is not None else None


_PARSERS: Final[Mapping[str, Callable[[str], AnyName | None]]] = {
    CHECKPOINT_PREFIX: parse_checkpoint_name,
    MARKER_PREFIX: parse_marker_name,
    PROBE_PREFIX: parse_probe_name,
    CATALOG_PREFIX: parse_snapshot_file,
    MAILBOX_PREFIX: parse_mailbox_name,
    METADATA_PREFIX: parse_metadata_name,
}
