"""Settings of a store: what they are, where they come from, and the file they are kept in.

A value comes from the first of: the option given to `open`, the environment
(`SEGMENTSTORE_<NAME>`), `store.toml` in the store's folder, the default. What is fixed at creation
is written to `store.toml` then; naming another value later is refused. The file's page:
docs/formats/store-toml.md.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import os
import pathlib
import tomllib
import uuid
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from durablelog.bookkeeper.bookkeeper_location import check_may_follow, is_bookkeeper_url
from segmentstore.contracts.byte_sizes import GIB, KIB, MIB
from segmentstore.contracts.errors import ConfigError, DeprecatedSettingWarning
from segmentstore.contracts.folders import checked_folder
from segmentstore.contracts.urls import redacted
from segmentstore.deprecated_settings import (
    CURRENT_NAMES,
    deprecation_notes,
    with_current_names,
)
from tier2.credentials import refuse_secrets, stands_for

FILE_NAME = "store.toml"
FILE_VERSION = 1
ENVIRONMENT_PREFIX = "SEGMENTSTORE_"
OTHER_VARIABLES = frozenset(
    ENVIRONMENT_PREFIX + name
    for name in (
        "BOOKKEEPER_CLIENT_SETTINGS",
        "BOOKKEEPER_JARS",
        "BOOKKEEPER_PASSWORD",
        "GATEWAY_LOG",
        "GATEWAY_TOKEN",
        "SERVICES",
        "ZOOKEEPER_AUTH",
    )
)
"""Variables of ours that are no settings; a test finds them in the sources."""
APPEND_BYTES_LIMIT = 1 * GIB
"""No setting may allow larger appends: lengths in the formats are 32-bit with room to spare."""


def _setting(
    default: object, low: float, high: float
) -> object:  # a dataclass field's declared type is what mypy checks
    return field(default=default, metadata={"low": low, "high": high})


def _bytes(default: int, low: int = 1, high: int = 1 << 50) -> int:
    return _setting(default, low, high)  # type: ignore[return-value]


def _seconds(default: float, low: float = 0.0, high: float = 10.0**9) -> float:
    return _setting(default, low, high)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """All settings with their defaults.

    Sizes in bytes, times in seconds. Byte bounds are for each container.
    """

    # Fixed when the store is made.
    containers: int = _bytes(1, 1, 65536)
    """Segment containers: each has a log, a sequencer and a storage writer of its own."""
    tier1: str = "file"
    """Where the log is: "file" (in the store's folder), "memory" (gone when the store is closed),
    or on BookKeeper (`bookkeeper://host:2181,host:2181/path?...`), where several processes may open
    one store.
    """
    tier2: str = ""
    """Where objects go: a URL (`file:///path`, `memory://name`); empty = the folder `tier2` in the
    store's. `open` takes a `pathlib.Path` too, and makes it absolute.
    """

    # What this process does.
    serve: str = "all"
    """Containers that are opened here: "all", or as "0,2-3"."""
    take_over: bool = False
    """Whether containers on BookKeeper are taken from an owner that was seen alive, which fences
    it. One that has ended is followed without this.
    """

    # What callers may do.
    append_bytes_max: int = _bytes(8 * MIB, 1, APPEND_BYTES_LIMIT)
    """The largest append or batch."""
    queue_bytes_max: int = _bytes(64 * MIB)
    """Appends that may wait to be written; beyond it they are refused with TierUnavailableError."""

    # Tier 1.
    frame_bytes_max: int = _bytes(1 * MIB - 1 * KIB, 64, 1 * MIB - 1 * KIB)
    """Payload of one DataFrame."""
    in_flight_bytes_max: int = _bytes(16 * MIB)
    """Frames on their way to the log."""
    log_file_bytes: int = _bytes(64 * MIB, 8 * KIB, 4 * GIB - 1)
    """Size of one log file: preallocated, deleted whole."""
    checkpoint_operations: int = _bytes(200_000)
    """A metadata checkpoint after so many operations: bounds what recovery replays."""
    checkpoint_bytes: int = _bytes(64 * MIB)
    """A metadata checkpoint after so many bytes of log."""

    # Tier 2.
    flush_bytes: int = _bytes(64 * MIB)
    """A segment is flushed when it has so many un-flushed bytes."""
    flush_age_s: float = _seconds(30.0)
    """A segment is flushed when its oldest un-flushed byte is so old."""
    object_bytes: int = _bytes(64 * MIB, 1, 4 * GIB)
    """Largest object one flush makes; small segments share one up to this size."""
    extent_bytes: int = _bytes(64 * KIB, 16, 16 * MIB)
    """Unit of checksums in a block: the least that is fetched to serve one byte."""
    compression: str = "none"
    """What becomes of bytes on their way to Tier 2: "none" or "zstd".

    Each block says its own; readers know both.
    """
    unflushed_target_bytes: int = _bytes(64 * MIB)
    """Everything pending is flushed when it adds up to so much."""
    unflushed_bytes_max: int = _bytes(4 * GIB)
    """Writers are slowed towards, and held at, so many un-flushed bytes: bounds the log when Tier 2
    is away.
    """
    uploads_max: int = _bytes(4, 1, 256)
    """Objects uploaded at the same time."""
    upload_bytes_max: int = _bytes(256 * MIB)
    """Bytes held by uploads at the same time."""
    consolidation: bool = True
    """Whether small and mostly dead objects are made into large ones, in the background."""
    consolidation_bytes: int = _bytes(256 * MIB, 1, 4 * GIB)
    """What is made of them has about so many bytes; 64 to 512 MiB is sensible.

    Held in memory, where the store cannot copy.
    """
    consolidation_download_bytes_per_s: int = _bytes(0, 0)
    """Bytes a second that consolidation of the store may download where Tier 2 cannot copy, on the
    average; 0: no bound.
    """
    shared_tier2: bool = False
    """Whether other stores are meant to keep their objects where this one does.

    Else it is not made, nor opened for the first time, where another one is; and where one came
    later no orphans are looked for.
    """
    deletion_lag_s: float = _seconds(4 * 3600.0)
    """Objects nothing refers to stay so long before they are deleted."""
    orphan_sweep_interval_s: float = _seconds(60.0)
    """One listing request of the store in so much time looks for objects that a crash left in Tier
    2; 0: nobody looks.
    """
    mailbox_poll_interval_s: float = _seconds(30.0)
    """One listing request of each container in so much time looks for messages of jobs; 0: nobody
    looks.
    """

    # Reading.
    tail_bytes_max: int = _bytes(256 * MIB)
    """Recent appends held in memory."""
    cache_bytes_max: int = _bytes(2 * GIB)
    """RocksDB cache of the store, for all containers together."""
    piece_bytes: int = _bytes(1 * MIB)
    """Unit of reading from Tier 2 in sequence; other reads fetch the extents they touch."""
    read_ahead_bytes_max: int = _bytes(64 * MIB, 0)
    """What is fetched ahead of one sequential reader at most; 0 turns read-ahead off."""
    fetched_bytes_max: int = _bytes(128 * MIB)
    """Bytes read from Tier 2 held in memory; sequential readers share three quarters of it."""
    catch_up_bytes_per_s: int = _bytes(0, 0)
    """What sequential readers may fetch from Tier 2 in a second, all together; 0 sets no bound."""

    # Watching.
    catalog_export_interval_s: float = _seconds(0.0)
    """The catalog of each container is exported to Tier 2 once in so much time, for jobs; 0: only
    when asked for.
    """
    scrub_bytes_per_s: int = _bytes(0, 0)
    """Objects are read again and again, and checked, at this rate, for the whole store; 0: nobody
    does it.
    """
    metrics_port: int = _bytes(0, 0, 65535)
    """TCP port on which Prometheus finds the numbers of the store; 0: none."""
    metrics_host: str = "127.0.0.1"
    """Address that port is opened on."""
    local_face: bool = False
    """Whether other processes of this machine may append through a socket in the store's folder."""

    def __repr__(self) -> str:
        values = (
            (setting.name, getattr(self, setting.name)) for setting in dataclasses.fields(self)
        )
        return f"StoreConfig({', '.join(f'{name}={_shown(value)}' for name, value in values)})"

    def __post_init__(self) -> None:
        for setting in dataclasses.fields(self):
            value = getattr(self, setting.name)
            low, high = setting.metadata.get("low"), setting.metadata.get("high")
            if low is not None and not low <= value <= high:
                raise ConfigError(setting.name, f"{value} is outside {low} to {high}")
        served_ranges(self.serve, self.containers)
        if self.compression not in COMPRESSIONS:
            raise ConfigError(
                "compression", f"{self.compression!r} is not one of {', '.join(COMPRESSIONS)}"
            )
        for small, large in (
            ("append_bytes_max", "queue_bytes_max"),
            ("flush_bytes", "object_bytes"),
            ("object_bytes", "upload_bytes_max"),
        ):
            if getattr(self, small) > getattr(self, large):
                raise ConfigError(
                    small, f"{getattr(self, small)} is more than {large}, {getattr(self, large)}"
                )
        if self.fetched_bytes_max < 2 * self.piece_bytes:
            raise ConfigError(
                "fetched_bytes_max", f"it must hold two pieces of {self.piece_bytes} bytes"
            )
        if self.log_file_bytes < self.frame_bytes_max + 8 * KIB:
            raise ConfigError(
                "log_file_bytes",
                f"it must hold a frame of {self.frame_bytes_max} bytes and 8 KiB more",
            )

    @property
    def served(self) -> list[int]:
        """The containers that are opened here, ascending."""
        return [
            container_id
            for part in served_ranges(self.serve, self.containers)
            for container_id in part
        ]

    @property
    def served_count(self) -> int:
        """How many they are."""
        return sum(map(len, served_ranges(self.serve, self.containers)))


def served_ranges(text: str, containers: int) -> list[range]:
    """What a setting `serve` says, ascending and apart. Raises ConfigError."""
    if text == "all":
        return [range(containers)]
    found = []
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        numbers = (first, last) if dash else (first, first)
        if not all(
            number.isascii() and number.isdigit() and len(number) <= 5 for number in numbers
        ):
            raise ConfigError("serve", f"{text!r} is not all, or numbers of containers as 0,2-3")
        low, high = map(int, numbers)
        if not low <= high < containers:
            raise ConfigError(
                "serve", f"{part.strip()} is not in 0 to {containers - 1}, the store's containers"
            )
        found.append(range(low, high + 1))
    found.sort(key=lambda part: part.start)
    for before, after in itertools.pairwise(found):
        if after.start < before.stop:
            raise ConfigError("serve", f"{text!r} names container {after.start} twice")
    return found


COMPRESSIONS = ("none", "zstd")
_URLS = ("tier1", "tier2")
FIXED = ("containers", *_URLS)
"""Settings that belong to the store, not to the process that opens it."""
_KINDS: Mapping[type, str] = {str: "text", bool: "true or false"}
_TRUTH = {"true": True, "false": False, "1": True, "0": False}
"""What the environment may say for a setting that is on or off."""
_FIELDS = {setting.name: setting for setting in dataclasses.fields(StoreConfig)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFile:
    """What `store.toml` says."""

    store_id: str
    settings: Mapping[str, object] = field(repr=False)
    """As they stand there: a store of old may have a URL with a password."""


def parse_store_file(text: str) -> StoreFile:
    """Read `store.toml`. Raises ConfigError naming what is wrong.

    Warns of deprecated names (DeprecatedSettingWarning).
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(FILE_NAME, f"not TOML: {error}") from None
    version = document.pop("version", None)
    if version != FILE_VERSION:
        raise ConfigError(
            FILE_NAME, f"version {version!r}; this program knows version {FILE_VERSION}"
        )
    store_id = document.pop("store_id", None)
    try:
        store_id = str(uuid.UUID(store_id))
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(FILE_NAME, f"store_id {store_id!r} is not a UUID") from None
    for name in FIXED:
        if name not in document:
            raise ConfigError(FILE_NAME, f"{name} is missing")
    for note in deprecation_notes(document):
        warnings.warn(f"{FILE_NAME}: {note}", DeprecatedSettingWarning, stacklevel=2)
    settings = with_current_names(document)
    return StoreFile(
        store_id=store_id, settings={name: _typed(name, value) for name, value in settings.items()}
    )


def render_store_file(store_id: str, config: StoreConfig) -> str:
    """The text of a new store's `store.toml`."""
    lines = [
        (
            "# A segment store. What stands here was fixed when it was made; "
            "other settings may be added below"
        ),
        "# and are then the defaults of whoever opens it (docs/formats/store-toml.md).",
        f"version = {FILE_VERSION}",
        f'store_id = "{store_id}"',
    ]
    for name in FIXED:
        value = getattr(config, name)
        lines.append(f"{name} = {value}" if isinstance(value, int) else f"{name} = {quoted(value)}")
    if config.shared_tier2:
        lines.append("shared_tier2 = true")
    return "\n".join(lines) + "\n"


def merge_settings(
    options: Mapping[str, object],
    environment: Mapping[str, str],
    file: Mapping[str, object],
    *,
    existing: bool,
) -> StoreConfig:
    """The settings in force.

    Raises ConfigError for an unknown or malformed one, or a fixed one that differs.

    Of a `tier1` on BookKeeper it is fixed which store it names; who opens the store sees whether
    the servers have it.
    """
    values: dict[str, object] = dict(file)
    stored = values.get("tier2")
    for source in (
        _from_environment(environment),
        {name: _typed(name, value) for name, value in with_current_names(options).items()},
    ):
        for name, value in source.items():
            if name in _URLS:
                refuse_secrets(str(value), file.get(name), setting=name)
            fixed = (
                existing and name in FIXED and not (name == "tier2" and stands_for(value, stored))
            )
            if (
                fixed
                and name == "tier1"
                and is_bookkeeper_url(str(value))
                and is_bookkeeper_url(str(values[name]))
            ):
                check_may_follow(str(values[name]), str(value))
                fixed = False
            if fixed and value != values[name]:
                asked, made = _shown(value), _shown(values[name])
                raise ConfigError(name, f"{asked} asked for, but the store was made with {made}")
            values[name] = value
    return StoreConfig(**values)  # type: ignore[arg-type] # each value was checked against its field


def _shown(value: object) -> str:
    return repr(redacted(value) if isinstance(value, str) else value)


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, text in environment.items():
        name = key.removeprefix(ENVIRONMENT_PREFIX).lower()
        current = CURRENT_NAMES.get(name, name)
        if key.startswith(ENVIRONMENT_PREFIX) and current in _FIELDS:
            values[name] = _parsed(current, text, key)
    return with_current_names(values)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that looks like one of ours and is none.

    Cheap: called at each opening.
    """
    names = (*_FIELDS, *CURRENT_NAMES)
    known = {ENVIRONMENT_PREFIX + name.upper() for name in names} | OTHER_VARIABLES
    return [
        f"{key} in the environment is no setting of a segment store, and is "
        f"ignored{did_you_mean(key, known)}"
        for key in environment
        if key.startswith(ENVIRONMENT_PREFIX) and key not in known
    ]


def deprecated_variables(environment: Iterable[str]) -> list[str]:
    """A sentence for each variable that sets something by its deprecated name."""
    return deprecation_notes(environment, ENVIRONMENT_PREFIX)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The closest of the known names as the end of a sentence; empty if none is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _parsed(name: str, text: str, key: str) -> object:
    default: Any = _FIELDS[name].default
    kind = type(default)
    if kind is bool:
        if text not in _TRUTH:
            raise ConfigError(key, f"{text!r} is not one of {', '.join(_TRUTH)}")
        return _TRUTH[text]
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(key, f"{text!r} is not a number") from None


def _typed(name: str, value: object) -> object:
    setting = _FIELDS.get(name)
    if setting is None:
        raise ConfigError(name, f"there is no such setting{did_you_mean(name, _FIELDS)}")
    kind = type(setting.default)
    if name == "tier2" and isinstance(value, os.PathLike):
        return pathlib.Path(checked_folder(value, name)).absolute().as_uri()
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ConfigError(name, f"{value!r} is not {_KINDS.get(kind, 'a number')}")
    return value


def quoted(text: str) -> str:
    """A string as it stands in the file."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
