"""The purpose of a file or a folder of a store, by its path; and so which effect a call on it is.

Rules of this file: every effect it names is in `fault_points.EFFECTS`. A file that is none of a
store (an application's own on the same disk) counts as the nearest there is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from durablelog.file.log_layout import (
    LOCK_NAME,
    PREPARED_SUFFIX,
    RESERVE_NAME,
    file_number,
)
from recovery.harness.simulation.disk_image import parts_of
from recovery.harness.simulation.fault_points import EFFECTS
from tier2.file_staging import FOLDER as STAGING_FOLDER

LOG: Final = "log"
PREPARED: Final = "prepare"
STATE: Final = "state"
STORE: Final = "store"
TIER2: Final = "tier2"
LOCK: Final = "lock"

_LOCK_NAMES: Final = (LOCK_NAME, "lock")
_STATE: Final = re.compile(r"state-[0-9a-f]{16}.*")
_LOCK_SUFFIX: Final = ".lock"
_UNUSUAL: Final[Mapping[str, str]] = {
    "log.create": "prepare.create",
    "log.rename": "spare.rename",
    "prepare.rename": "spare.rename",
    "prepare.link": "log.link",
}
"""Where role and call do not make the name of an effect."""


@lru_cache(maxsize=4096)
def role_of(path: str) -> str:
    """The role of a file."""
    parts = parts_of(path)
    name = parts[-1] if parts else ""
    if STAGING_FOLDER in parts:
        return LOCK if name.endswith(_LOCK_SUFFIX) else TIER2
    if TIER2 in parts[:-1]:
        return TIER2
    if name in _LOCK_NAMES or name.endswith(_LOCK_SUFFIX):
        return LOCK
    if file_number(name) is not None:
        return LOG
    if _STATE.fullmatch(name):
        return STATE
    return PREPARED if name.endswith(PREPARED_SUFFIX) or name == RESERVE_NAME else STORE


@lru_cache(maxsize=4096)
def folder_role(path: str) -> str:
    """The role of a folder: Tier 2's, a log's, or the store's."""
    parts = parts_of(path)
    if TIER2 in parts or STAGING_FOLDER in parts:
        return TIER2
    return LOG if LOG in parts[-2:] else STORE


@lru_cache(maxsize=256)
def effect_of(call: str, role: str) -> str:
    """The effect a call ("write", "sync", "create", ...) on a file of this role is; empty: none."""
    if role == LOCK:
        return ""
    kind = f"{role}.{call}"
    return kind if kind in EFFECTS else _UNUSUAL.get(kind, f"{TIER2}.{call}")
