"""Options of `spark.read.format("segmentstore")`: their names, defaults and bounds. Pure.

Names are taken in any mixture of upper and lower case, as Spark hands them over. One that is
unknown is refused: a misspelt `startOffset` would read everything. The page: docs/spark-source.md.
"""

from __future__ import annotations

import fnmatch
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, cast, get_args

from segmentstore.contracts.byte_sizes import MIB, parse_spark_size
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.urls import redacted
from tier2.credentials import refuse_secrets
from tier2.spark.common.command_options import checked_store_id
from tier2.spark.source.framing import RECORD_BYTES_LIMIT

Format = Literal["raw", "lines", "events"]
INT64_MAX: Final = 2**63 - 1

TRANSACTION: Final = re.compile(r"#trans(?:action|ient)\.[0-9a-fA-F]{32,}\Z")
"""Ends the name of a segment that will be merged into the one whose name stands before it."""

_STARTS_LIKE: Final = '{"logs/a": 4096, "logs/b": 0}'
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a read was asked for. Sizes in bytes; offsets are places in each segment."""

    tier2: str
    """URL of the object storage."""
    store_id: str | None = None
    """Which store, if several keep their snapshots at the URL."""
    segment: str | None = None
    prefix: str | None = None
    pattern: str | None = None
    """Exactly one of these three says which segments; a pattern as in a shell: `*`, `?`, `[a-z]`;
    `/` is nothing special.
    """
    transactions: bool = False
    """Whether prefix and pattern also find transactions' and transient segments, whose bytes come
    again in the segment they are merged into.
    """
    format: Format = "raw"
    start_offset: int | None = None
    end_offset: int | None = None
    columns: tuple[str, ...] = ()
    """Empty: the default ones."""
    piece_bytes: int = MIB
    """A row of format `raw`."""
    partition_bytes: int = 128 * MIB
    min_partitions: int = 4
    record_bytes_max: int = 64 * MIB
    incomplete_tail: bool = False
    """Whether a batch gives the last line of a segment that is not sealed although no newline ends
    it yet.
    """
    event_borders: Literal["segment", "chunks"] = "segment"
    fail_on_data_loss: bool = True
    filter_pushdown: Literal["auto", "true", "false"] = "auto"
    max_bytes_per_trigger: int | None = None
    """Streams only; None: everything there is."""
    max_rows_per_trigger: int | None = None
    """The same in rows."""
    starting_offsets: Literal["earliest", "latest"] = "earliest"
    """Streams only."""
    starts: Mapping[str, int] = field(default_factory=dict)
    """Where to begin in segments, by name; the others are read from where all are."""
    starting_ms: int | None = None
    """Only bytes in objects made since then, in milliseconds since 1970 UTC, and what follows them
    in their segment.
    """
    invalid_utf8: Literal["fail", "replace", "binary"] = "fail"
    """What becomes of a row in column `value` that is no UTF-8; `binary`: the column is one of
    bytes.
    """

    def selects(self, name: str) -> bool:
        """Whether a segment of this name is asked for."""
        if self.segment is not None:
            return name == self.segment
        if not self.transactions and TRANSACTION.search(name):
            return False
        if self.prefix is not None:
            return name.startswith(self.prefix)
        assert self.pattern is not None, self
        return fnmatch.fnmatchcase(name, self.pattern)


def parse_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a read.

    Raises ConfigError naming the option that is unknown, malformed or missing.
    """
    values: dict[str, object] = {}
    for key, text in given.items():
        known = _PARSERS.get(key.lower())
        if known is None:
            raise ConfigError(
                key, f"no option of this data source; there are {', '.join(sorted(_SPELLINGS))}"
            )
        name, parse = known
        if name in values:
            raise ConfigError(key, "given twice")
        values[name] = parse(key, text)
    if "tier2" not in values:
        raise ConfigError(
            "tier2", "where is Tier 2? Name its URL by load(url), or by option tier2 or path"
        )
    chosen = [name for name in ("segment", "prefix", "pattern") if name in values]
    if len(chosen) != 1:
        said = " and ".join(chosen) or "none"
        raise ConfigError(
            "segment",
            f"exactly one of segment, prefix and pattern says what is read; given: {said}",
        )
    for name in _STREAM_ONLY if not streaming else _BATCH_ONLY:
        if name in values:
            kind = "a stream" if not streaming else "a batch"
            raise ConfigError(_spelling(name), f"only for {kind}")
    _take_start(values, streaming=streaming)
    # Each value was made by its field's parser.
    options = SourceOptions(**values)  # type: ignore[arg-type]
    if (
        options.start_offset is not None
        and options.end_offset is not None
        and options.end_offset < options.start_offset
    ):
        raise ConfigError(
            "endOffset", f"{options.end_offset} is below startOffset, {options.start_offset}"
        )
    if options.event_borders == "chunks" and options.format != "events":
        raise ConfigError("eventBorders", f"format {options.format} has no events")
    return options


def _take_start(values: dict[str, object], *, streaming: bool) -> None:
    """One word for where to begin, and what it may be."""
    said = [
        _spelling(name)
        for name in ("start_offset", "starting_offsets", "starting_ms")
        if name in values
    ]
    if len(said) > 1:
        raise ConfigError(said[1], f"{' and '.join(said)} both say where to begin: give one")
    start = values.get("starting_offsets")
    if isinstance(start, dict):
        del values["starting_offsets"]
        values["starts"] = start
    elif start == "latest" and not streaming:
        raise ConfigError("startingOffsets", "latest is only for a stream: a batch ends there")


Parser = Callable[[str, str], object]


def _text(key: str, text: str) -> str:
    if not text:
        raise ConfigError(key, "it is empty")
    return text


def _any_text(_: str, text: str) -> str:
    return text


def _url(key: str, text: str) -> str:
    if text.startswith("/"):
        # As a URL: what means something else there is written so that it does not.
        return "file://" + text.replace("%", "%25").replace("?", "%3F").replace("#", "%23")
    if not _SCHEME.match(text):
        raise ConfigError(
            key,
            f"{redacted(text)!r} is no URL (file:///folder, s3://bucket/prefix), nor a "
            "folder's absolute path",
        )
    # Options stand in Spark's plans, logs and pages.
    refuse_secrets(text, setting=key)
    return text


def _store_id(key: str, text: str) -> str:
    return checked_store_id(text, key)


def _size(low: int, high: int) -> Parser:
    def parse(key: str, text: str) -> int:
        value = parse_spark_size(text)
        if value is None:
            raise ConfigError(key, f"{text!r} is not a number of bytes, as 1048576 or 64m")
        if not low <= value <= high:
            raise ConfigError(key, f"{value} is outside {low} to {high}")
        return value

    return parse


def _choice(names: tuple[str, ...]) -> Parser:
    def parse(key: str, text: str) -> str:
        if text.lower() not in names:
            raise ConfigError(key, f"{text!r} is not one of {', '.join(names)}")
        return text.lower()

    return parse


def _starting_offsets(key: str, text: str) -> str | dict[str, int]:
    if text.lower() in {"earliest", "latest"}:
        return text.lower()
    try:
        given = json.loads(text, object_pairs_hook=_once_each)
    except ValueError as error:
        raise ConfigError(
            key,
            "it is earliest, latest, or a JSON object with offsets by segment, as "
            f"{_STARTS_LIKE}: {error}",
        ) from None
    if not isinstance(given, dict):
        raise ConfigError(
            key, f"{text!r} is no JSON object with offsets by segment, as {_STARTS_LIKE}"
        )
    for name, offset in given.items():
        if type(offset) is not int or not 0 <= offset <= INT64_MAX:
            raise ConfigError(
                key, f"{offset!r}, of segment {name!r}, is no offset: a whole number from 0 on"
            )
    return given


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a segment is named twice")
    return found


def _time(key: str, text: str) -> int:
    if re.fullmatch(r"\d{1,15}", text.strip()):
        return int(text)
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ConfigError(
            key,
            f"{text!r} is no time: milliseconds since 1970 UTC, or as "
            "2026-01-31T12:00:00+00:00, with its zone",
        )
    return max(0, math.floor(time.timestamp() * 1000))


def _flag(key: str, text: str) -> bool:
    return cast("str", _choice(("true", "false"))(key, text)) == "true"


def _columns(key: str, text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise ConfigError(key, f"{text!r} is not a list of different names, as segment,offset")
    return names


_SPELLINGS: Final[Mapping[str, tuple[str, Parser]]] = {
    "path": ("tier2", _url),
    "tier2": ("tier2", _url),
    "storeId": ("store_id", _store_id),
    "segment": ("segment", _text),
    "prefix": ("prefix", _any_text),
    "pattern": ("pattern", _text),
    "transactions": ("transactions", _flag),
    "format": ("format", _choice(get_args(Format))),
    "startOffset": ("start_offset", _size(0, INT64_MAX)),
    "endOffset": ("end_offset", _size(0, INT64_MAX)),
    "columns": ("columns", _columns),
    "pieceBytes": ("piece_bytes", _size(1, RECORD_BYTES_LIMIT)),
    "partitionBytes": ("partition_bytes", _size(1, INT64_MAX)),
    "minPartitions": ("min_partitions", _size(1, 1 << 20)),
    "recordBytesMax": ("record_bytes_max", _size(1, RECORD_BYTES_LIMIT)),
    "incompleteTail": ("incomplete_tail", _flag),
    "eventBorders": ("event_borders", _choice(("segment", "chunks"))),
    "failOnDataLoss": ("fail_on_data_loss", _flag),
    "filterPushdown": ("filter_pushdown", _choice(("auto", "true", "false"))),
    "maxBytesPerTrigger": ("max_bytes_per_trigger", _size(1, INT64_MAX)),
    "maxRowsPerTrigger": ("max_rows_per_trigger", _size(1, INT64_MAX)),
    "startingOffsets": ("starting_offsets", _starting_offsets),
    "startingTimestamp": ("starting_ms", _time),
    "invalidUtf8": ("invalid_utf8", _choice(("fail", "replace", "binary"))),
}
_PARSERS: Final = {spelling.lower(): known for spelling, known in _SPELLINGS.items()}
_STREAM_ONLY: Final = ("max_bytes_per_trigger", "max_rows_per_trigger")
_BATCH_ONLY: Final = ("start_offset", "end_offset", "incomplete_tail", "filter_pushdown")


def _spelling(name: str) -> str:
    return next(spelling for spelling, (known, _) in _SPELLINGS.items() if known == name)
