"""Metadata of objects where files have no place for it: a JSON text below `~metadata`, a folder
that no object's name can get in the way of. Pure.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from typing import Final

from tier2.object_storage import StorageUnavailableError, check_metadata

UNREADABLE: Final = "metadata"
"""The kind of the failure to read what is no text of ours."""
METADATA_FOLDER: Final = "~metadata"
METADATA_TEXT_MAX: Final = 64 * 1024
"""More than any text of ours."""


def metadata_path(root: str, name: str) -> str:
    """Where the metadata of an object lie."""
    return posixpath.join(root, METADATA_FOLDER, name)


def metadata_text(metadata: Mapping[str, str]) -> bytes:
    """As they are kept."""
    return json.dumps(metadata, sort_keys=True).encode()


def parse_metadata_text(name: str, text: bytes) -> Mapping[str, str]:
    """What metadata_text made. Raises StorageUnavailableError of kind UNREADABLE for other text."""
    try:
        found = json.loads(text)
        return check_metadata(found)
    except (ValueError, AttributeError, TypeError) as error:
        raise StorageUnavailableError(
            name, f"its metadata cannot be read: {error}", UNREADABLE
        ) from None
