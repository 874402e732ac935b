"""Ids in the names of Tier-2 objects: drawn once, never again, some with the tag of a store.

Pure: no await, no clock, no I/O; random bits come from the caller.
"""

from __future__ import annotations

import hashlib
import random
import re
import uuid
from typing import Final

UNIQUE_ID_BYTES: Final = 16
STORE_TAG_BYTES: Final = 8
"""Of a unique id, from its beginning on."""
_JOB_ID: Final = re.compile(r"[0-9a-f]{16}")


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

    Distinguishes stores as far as 8 bytes of a hash do.
    """
    known = store_id if isinstance(store_id, uuid.UUID) else uuid.UUID(store_id)
    return hashlib.sha256(known.bytes).digest()[:STORE_TAG_BYTES]


def new_tagged_id(tag: bytes, source: random.Random) -> bytes:
    """A unique id that shows whose it is: the store's tag, and random bits from
    `Runtime.random`.
    """
    return tag + new_unique_id(source)[len(tag) :]


def new_copy_id(store_id: str | uuid.UUID, source: random.Random) -> bytes:
    """A unique id for a copy of the metadata or a catalog snapshot: 8 bytes made of the store's id,
    and 8 never drawn before. ValueError if that is no UUID.
    """
    drawn = source.getrandbits(8 * (UNIQUE_ID_BYTES - STORE_TAG_BYTES))
    return store_tag(store_id) + drawn.to_bytes(UNIQUE_ID_BYTES - STORE_TAG_BYTES, "big")


def check_unique_id(unique_id: bytes) -> bytes:
    """Return the id if it is one; ValueError otherwise."""
    if len(unique_id) != UNIQUE_ID_BYTES:
        raise ValueError(f"a unique id has {UNIQUE_ID_BYTES} bytes, not {len(unique_id)}")
    return unique_id
