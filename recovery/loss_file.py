"""The file that keeps what reads found lost, from one opening to the next (docs/formats/losses.md).

What is lost with the file is knowledge, never a byte: a read of a lost byte finds it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recovery.kept_file import KeptFile, load_text
from recovery.seen_losses import DETAIL_MAX, PLACES_MAX, LostPlace
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.disk import Disk

FILE_NAME = "losses.json"
_FILE = KeptFile(FILE_NAME, 1, "a list of losses")

Places = Mapping[int, Sequence[LostPlace]]
"""By container."""


def render_losses(places: Places, store_id: str) -> str:
    """The text of the file of one store."""
    containers = {str(each): list(map(_rendered, some)) for each, some in sorted(places.items())}
    return _FILE.render({"containers": containers}, store_id)


def parse_losses(text: str, store_id: str) -> dict[int, list[LostPlace]]:
    """Read the file's text. Raises ConfigError naming what is wrong: it must be this store's."""
    return _FILE.parse(text, store_id, _parsed_all)


def load_losses(path: str, disk: Disk, store_id: str) -> dict[int, list[LostPlace]]:
    """What the file holds; nothing if there is none. Raises ConfigError, OSError. Blocking."""
    text = load_text(path, disk)
    return {} if text is None else parse_losses(text, store_id)


def _parsed_all(document: Mapping[str, Any]) -> dict[int, list[LostPlace]]:
    return {
        int(each): list(map(_parsed, some[:PLACES_MAX]))
        for each, some in document["containers"].items()
    }


def _rendered(place: LostPlace) -> dict[str, Any]:
    return {**place._asdict(), "chunk": place.chunk._asdict()}


def _parsed(document: Mapping[str, Any]) -> LostPlace:
    chunk = document["chunk"]
    numbers = ("start_offset", "length", "block_offset", "block_segment_id", "block_start_offset")
    place = LostPlace(
        segment_id=int(document["segment_id"]),
        chunk=ChunkRecord(
            object_name=str(chunk["object_name"]), **{name: int(chunk[name]) for name in numbers}
        ),
        start_offset=int(document["start_offset"]),
        end_offset=int(document["end_offset"]),
        detail=str(document["detail"])[:DETAIL_MAX],
        first_seen_ms=int(document["first_seen_ms"]),
    )
    if (
        not place.chunk.start_offset
        <= place.start_offset
        < place.end_offset
        <= place.chunk.end_offset
    ):
        raise ValueError(f"bytes {place.start_offset} to {place.end_offset} are not in their chunk")
    return place
