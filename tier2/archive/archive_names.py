"""Names and user metadata of an archived ledger's two objects. Pure."""

from __future__ import annotations

import re
import uuid
from typing import Final, NamedTuple

from tier2.unique_ids import check_unique_id

VERSION_KEY: Final = "s3managedledgeroffloaderformatversion"
"""Of both objects' metadata; Pulsar writes it with capitals, and its stores lower it."""
FORMAT_VERSION: Final = "1"
ROLE_KEY: Final = "role"
DATA_ROLE: Final = "data"
INDEX_ROLE: Final = "index"
STORE_KEY: Final = "segmentstore-store"
CONTAINER_KEY: Final = "segmentstore-container"
PROGRAM_KEY: Final = "segmentstore-version"

LEDGER_ID_MAX: Final = 2**63 - 1

_NAME: Final = re.compile(
    r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-ledger-(0|[1-9][0-9]{0,18})(-index)?"
)


class ArchivedObjectName(NamedTuple):
    """What the name of one of the two objects says."""

    uid: bytes
    ledger_id: int
    is_index: bool


def archived_data_name(ledger_id: int, uid: bytes) -> str:
    """The name of the data object. ValueError for what is no id."""
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise ValueError(f"{ledger_id} is no id of a ledger")
    return f"{uuid.UUID(bytes=check_unique_id(uid))}-ledger-{ledger_id}"


def archived_index_name(ledger_id: int, uid: bytes) -> str:
    """The name of the index object. ValueError for what is no id."""
    return f"{archived_data_name(ledger_id, uid)}-index"


def parse_archived_name(name: str) -> ArchivedObjectName | None:
    """What archived_data_name or archived_index_name made; None for another name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return ArchivedObjectName(uuid.UUID(match[1]).bytes, int(match[2]), match[3] is not None)
