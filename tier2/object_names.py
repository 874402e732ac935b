"""Names of Tier-2 objects: what any object may be called, and what ours are called.

Ours: `<shard>/<container>/<epoch>/<kind>-<unique id>`, of a job
`.../compaction-<job id>-<unique id>` (docs/formats/object-names.md). Rules:

- a name is never reused: the unique id has 64 random bits, and the epoch is in the name;
- a name alone says who meant to write the object and for what work, so that an orphan can be told
  from an object in flight;
- the unique id begins with the tag of the store that works on the object: nobody deletes an object
  that is not provably his own. Names that older versions made have no tag, and prove nothing;
- there is one spelling of each name: lower case, fixed widths.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

import hashlib
import random
import re
import uuid
from typing import Literal, NamedTuple, cast

ObjectKind = Literal["flush", "consolidation", "compaction"]
"""Which work made an object."""

UNIQUE_ID_BYTES = 16
STORE_TAG_BYTES = 8
"""Of a unique id, from its beginning on."""
PROBE_PREFIX = "probe/"
"""What the names of probes begin with, which an object storage puts, and deletes again, to check
itself.
"""
NAME_CHARACTERS_MAX = 512
CONTAINER_ID_MAX = 2**32 - 1
EPOCH_MAX = 2**64 - 1

_KINDS: frozenset[str] = frozenset(("flush", "consolidation", "compaction"))
_PART = re.compile(r"[A-Za-z0-9._-]+")
_OURS = re.compile(
    r"([0-9a-f]{2})/([0-9a-f]{8})/([0-9a-f]{16})/([a-z]+)-(?:([0-9a-f]{16})-)?([0-9a-f]{32})"
)
_JOB_ID = re.compile(r"[0-9a-f]{16}")


class ObjectName(NamedTuple):
    """The parts of one of our names; the shard follows from the unique id."""

    container_id: int
    epoch: int
    kind: ObjectKind
    unique_id: bytes
    job_id: str | None = None
    """Of a compaction: the job that made the object, 16 hex digits. None for all else."""


def new_job_id(source: random.Random) -> str:
    """16 hex digits for a new job, from `Runtime.random`."""
    return f"{source.getrandbits(64):016x}"


def is_job_id(text: str) -> bool:
    """Whether this is how a job is called: 16 hex digits, lower case."""
    return _JOB_ID.fullmatch(text) is not None


def new_unique_id(source: random.Random) -> bytes:
    """16 bytes never drawn before, from `Runtime.random`."""
    return source.getrandbits(8 * UNIQUE_ID_BYTES).to_bytes(UNIQUE_ID_BYTES, "big")


def store_tag(store_id: str | uuid.UUID) -> bytes:
    """What the unique ids in names of a store's objects begin with; ValueError if that is no UUID.

    Tells stores apart as far as 8 bytes of a hash do.
    """
    known = store_id if isinstance(store_id, uuid.UUID) else uuid.UUID(store_id)
    return hashlib.sha256(known.bytes).digest()[:STORE_TAG_BYTES]


def new_tagged_id(tag: bytes, source: random.Random) -> bytes:
    """A unique id that shows whose it is: the store's tag, and random bits from
    `Runtime.random`.
    """
    return tag + new_unique_id(source)[len(tag) :]


def is_of_store(name: str, tag: bytes) -> bool:
    """Whether an object of this name was provably made for the store of this tag.

    Of a name that is not ours: no.
    """
    parts = parse_object_name(name)
    return parts is not None and parts.unique_id.startswith(tag)


def object_name(
    container_id: int, epoch: int, kind: ObjectKind, unique_id: bytes, *, job_id: str | None = None
) -> str:
    """The name of an object; ValueError for parts out of range.

    A compaction has the id of its job, nothing else has one.
    """
    if not 0 <= container_id <= CONTAINER_ID_MAX:
        raise ValueError(f"container id {container_id} is not 0 to {CONTAINER_ID_MAX}")
    if not 0 <= epoch <= EPOCH_MAX:
        raise ValueError(f"epoch {epoch} is not 0 to {EPOCH_MAX}")
    if kind not in _KINDS:
        raise ValueError(f"kind {kind!r} is not one of {', '.join(sorted(_KINDS))}")
    if len(unique_id) != UNIQUE_ID_BYTES:
        raise ValueError(f"a unique id has {UNIQUE_ID_BYTES} bytes, not {len(unique_id)}")
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


def check_unique_id(unique_id: bytes) -> bytes:
    """Return the id if it is one; ValueError otherwise."""
    if len(unique_id) != UNIQUE_ID_BYTES:
        raise ValueError(f"a unique id has {UNIQUE_ID_BYTES} bytes, not {len(unique_id)}")
    return unique_id


def _shard(unique_id: bytes) -> str:
    return hashlib.sha256(unique_id).hexdigest()[:2]
