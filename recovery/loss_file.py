"""The file that keeps what reads found lost, from one opening to the next (docs/formats/losses.md).

What is lost with the file is knowledge, never a byte: who reads a lost byte finds it again. So a
file that is not understood, was damaged or is another store's is refused with its reason, and its
reader begins anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from recovery.seen_losses import DETAIL_MAX, PLACES_MAX, LostPlace
from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.disk import Disk
from segmentstore.contracts.errors import ConfigError

FILE_NAME = "losses.json"
FILE_VERSION = 1

Places = Mapping[int, Sequence[LostPlace]]
"""By container."""


def render_losses(places: Places, store_id: str) -> str:
    """The text of the file of one store."""
    document: dict[str, Any] = {
        "version": FILE_VERSION,
        "store": store_id,
        "containers": {
            str(container_id): list(map(_rendered, some))
            for container_id, some in sorted(places.items())
        },
    }
    document["checksum"] = _checksum(document)
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def parse_losses(text: str, store_id: str) -> dict[int, list[LostPlace]]:
    """Read the file's text. Raises ConfigError naming what is wrong: it must be this store's."""
    try:
        document = json.loads(text)
        version = document["version"]
        if version != FILE_VERSION:
            raise ConfigError(
                FILE_NAME, f"version {version!r}; this program knows version {FILE_VERSION}"
            )
        recorded, actual = document.pop("checksum"), _checksum(document)
        if recorded != actual:
            raise ConfigError(
                FILE_NAME, f"it was changed: checksum {actual} where {recorded!r} is recorded"
            )
        if document["store"] != store_id:
            raise ConfigError(
                FILE_NAME, f"it is of store {document['store']!r}, not of {store_id!r}"
            )
        return {
            int(each): list(map(_parsed, some[:PLACES_MAX]))
            for each, some in document["containers"].items()
        }
    except (
        ValueError,
        TypeError,
        KeyError,
        OverflowError,
        AttributeError,
        RecursionError,
    ) as error:
        raise ConfigError(FILE_NAME, f"it is not a list of losses: {error!r}") from None


def load_losses(path: str, disk: Disk, store_id: str) -> dict[int, list[LostPlace]]:
    """What the file holds; nothing if there is none. Raises ConfigError, OSError. Blocking."""
    if not disk.exists(path):
        return {}
    file = disk.open(path)
    try:
        return parse_losses(file.pread(0, file.size()).decode(errors="replace"), store_id)
    finally:
        file.close()


def _rendered(place: LostPlace) -> dict[str, Any]:
    return {**place._asdict(), "chunk": place.chunk._asdict()}


def _parsed(document: Mapping[str, Any]) -> LostPlace:
    chunk = document["chunk"]
    numbers = ("start_offset", "length", "block_offset", "block_segment_id", "block_start_offset")
    return LostPlace(
        segment_id=int(document["segment_id"]),
        chunk=ChunkRecord(
            object_name=str(chunk["object_name"]), **{name: int(chunk[name]) for name in numbers}
        ),
        start_offset=int(document["start_offset"]),
        end_offset=int(document["end_offset"]),
        detail=str(document["detail"])[:DETAIL_MAX],
        first_seen_ms=int(document["first_seen_ms"]),
    )


def _checksum(document: dict[str, Any]) -> str:
    text = json.dumps(document, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return f"{crc32c(text.encode()):08x}"
