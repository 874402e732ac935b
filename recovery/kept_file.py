"""Small JSON files that a store keeps for itself: with version, store and checksum, written whole
or not at all.

Nothing is needed from such a file to open a store. So one that is not understood, was damaged or is
another store's is refused with its reason, and its reader decides what to do without it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.disk import Disk
from segmentstore.contracts.errors import ConfigError

_T = TypeVar("_T")


class KeptFile(NamedTuple):
    """One kind of these files."""

    name: str
    version: int
    what: str
    """What it holds, for people: "the state of a scrub"."""

    def render(self, content: Mapping[str, Any], store_id: str) -> str:
        """The text of the file of one store."""
        document = {"version": self.version, "store": store_id, **content}
        document["checksum"] = _checksum(document)
        return json.dumps(document, ensure_ascii=False, indent=1) + "\n"

    def parse(self, text: str, store_id: str, content: Callable[[Mapping[str, Any]], _T]) -> _T:
        """What `content` makes of the document. Raises ConfigError naming what is wrong."""
        try:
            document = json.loads(text)
            version = document["version"]
            if version != self.version:
                detail = f"version {version!r}; this program knows version {self.version}"
                raise ConfigError(self.name, detail)
            recorded, actual = document.pop("checksum"), _checksum(document)
            if recorded != actual:
                detail = f"it was changed: checksum {actual} where {recorded!r} is recorded"
                raise ConfigError(self.name, detail)
            if document["store"] != store_id:
                raise ConfigError(
                    self.name, f"it is of store {document['store']!r}, not of {store_id!r}"
                )
            return content(document)
        except (
            ValueError,
            TypeError,
            KeyError,
            OverflowError,
            AttributeError,
            RecursionError,
        ) as error:
            raise ConfigError(self.name, f"it is not {self.what}: {error!r}") from None


def load_text(path: str, disk: Disk) -> str | None:
    """What the file holds; None if there is none. Raises OSError. Blocking."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.pread(0, file.size()).decode(errors="replace")
    finally:
        file.close()


def save_text(path: str, text: str, disk: Disk) -> None:
    """Put the text in place of what is there, whole or not at all. Raises OSError. Blocking.

    What is no UTF-8 (half a surrogate pair, from a name that was none) is escaped as JSON escapes
    it.
    """
    file = disk.open(path + ".new", write=True, create=True)
    try:
        file.truncate(0)
        file.pwrite([text.encode(errors="backslashreplace")], 0)
        file.sync()
    finally:
        file.close()
    disk.rename(path + ".new", path)


def _checksum(document: dict[str, Any]) -> str:
    text = json.dumps(document, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return f"{crc32c(text.encode()):08x}"
