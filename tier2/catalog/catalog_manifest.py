"""The manifest of a snapshot: what it is of, and which objects its tables are.

JSON, with a checksum of itself.

    {"version": 1, "store_id": .., "containers": .., "container_id": .., "epoch": ..,
    "sequence_number": .., "time_ms": ..,
     "tables": {name: {"object": .., "size": .., "rows": .., "schema_version": .., "crc32c": ..,
     "footer_size": .., "footer_crc32c": ..}}, "stopped": true, "crc32c": ..}

Rules of this file: unknown members are skipped, so that they can be added; a higher version is
refused. The checksum is of the document without it, written as `encode` writes: sorted, no spaces.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from segmentstore.contracts.checksum import crc32c
from tier2.catalog.catalog_format_error import CatalogFormatError
from tier2.object_names import CATALOG_TABLES, SnapshotName, manifest_name, parse_catalog_name

__all__ = ["VERSION", "CatalogFormatError", "Manifest", "TableFile", "encode", "parse"]

VERSION: Final = 1
MANIFEST_BYTES_MAX: Final = 1024 * 1024
"""A longer one is refused; the usual size is about a thousand bytes."""
_CRC: Final = "crc32c"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """The object of one table."""

    object: str
    size: int
    rows: int
    schema_version: str
    crc32c: int
    """Of all its bytes."""
    footer_size: int
    """The last of its bytes, which say where the others are."""
    footer_crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One snapshot.

    It exists by its manifest alone: tables without one are of an export that did not end.
    """

    store_id: str
    containers: int
    """Of the store: names of segments are mapped to containers by it."""
    container_id: int
    epoch: int
    sequence_number: int
    """Of the last operation that the tables contain; they contain all before it, and nothing
    after.
    """
    time_ms: int
    """Wall time, milliseconds since 1970 UTC, of a moment before which nothing was committed that
    the tables lack.
    """
    tables: Mapping[str, TableFile]
    stopped: bool = False
    """No process had the container open: no owner of a newer epoch was there before `time_ms`."""

    @property
    def snapshot(self) -> SnapshotName:
        """The parts of its name."""
        named = parse_catalog_name(self.tables[CATALOG_TABLES[0]].object)
        assert named is not None, self
        return named

    @property
    def name(self) -> str:
        """Of the manifest's own object."""
        return manifest_name(self.snapshot)


def encode(manifest: Manifest) -> bytes:
    """The document. Equal manifests make equal bytes."""
    document = {"version": VERSION, **asdict(manifest)}
    if not manifest.stopped:
        del document["stopped"]  # As all wrote it that came before this member.
    return _text({**document, _CRC: crc32c(_text(document))}) + b"\n"


def parse(data: bytes, name: str) -> Manifest:
    """The manifest in the bytes of the object `name`. Raises CatalogFormatError, which names it."""
    try:
        document = json.loads(data)
        if not isinstance(document, dict):
            raise CatalogFormatError("it is no JSON object")
        recorded = document.pop(_CRC, None)
        version = document.get("version")
        if type(version) is not int or version < 1:
            raise CatalogFormatError(f"version {version!r}")
        if version > VERSION:
            raise CatalogFormatError(
                f"version {version} is newer than {VERSION}, the newest known here"
            )
        actual = crc32c(_text(document))
        if recorded != actual:
            raise CatalogFormatError(f"checksum {actual} where {recorded} is recorded")
        manifest = _manifest(document)
        if manifest.name != name:
            raise CatalogFormatError(f"it is the manifest of {manifest.name}")
    except CatalogFormatError as error:
        raise CatalogFormatError(f"{name}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise CatalogFormatError(f"{name}: not JSON: {error}") from None
    return manifest


def _manifest(document: Mapping[str, Any]) -> Manifest:
    tables = _member(document, "tables", dict)
    manifest = Manifest(
        store_id=_store_id(document),
        containers=_number(document, "containers"),
        container_id=_number(document, "container_id"),
        epoch=_number(document, "epoch"),
        sequence_number=_number(document, "sequence_number"),
        time_ms=_number(document, "time_ms"),
        tables={name: _table(tables, name) for name in CATALOG_TABLES},
        stopped="stopped" in document and _member(document, "stopped", bool),
    )
    ours = (manifest.container_id, manifest.epoch, manifest.sequence_number)
    named = {name: parse_catalog_name(file.object) for name, file in manifest.tables.items()}
    for name, parts in named.items():
        if parts is None or parts[:3] != ours or parts != named[CATALOG_TABLES[0]]:
            raise CatalogFormatError(
                f"table {name} is {manifest.tables[name].object}, of another snapshot"
            )
    return manifest


def _table(tables: Mapping[str, Any], name: str) -> TableFile:
    fields = _member(tables, name, dict)
    if not 0 < _number(fields, "footer_size") <= _number(fields, "size"):
        raise CatalogFormatError(
            f"table {name} has a footer of {fields['footer_size']} bytes of {fields['size']}"
        )
    return TableFile(
        object=_member(fields, "object", str),
        size=_number(fields, "size"),
        rows=_number(fields, "rows"),
        schema_version=_member(fields, "schema_version", str),
        crc32c=_number(fields, "crc32c"),
        footer_size=_number(fields, "footer_size"),
        footer_crc32c=_number(fields, "footer_crc32c"),
    )


def _store_id(document: Mapping[str, Any]) -> str:
    text = _member(document, "store_id", str)
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise CatalogFormatError(f"store_id {text!r} is no UUID") from None


def _number(document: Mapping[str, Any], name: str) -> int:
    value: int = _member(document, name, int)
    if value < 0:
        raise CatalogFormatError(f"{name} is {value}")
    return value


def _member(document: Mapping[str, Any], name: str, kind: type) -> Any:
    value = document.get(name)
    if type(value) is not kind:
        raise CatalogFormatError(f"{name} is {value!r}")
    return value


def _text(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
