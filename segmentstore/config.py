"""Settings of a store: what they are, where they come from, and the file they are kept in.

A value comes from the first of: the option given to `open`, the environment
(`SEGMENTSTORE_<NAME>`), `store.toml` in the store's folder, the default. What is fixed at creation
is written to `store.toml` then; naming another value later is refused. The file's page:
docs/formats/store-toml.md.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import itertools
import os
import pathlib
import tomllib
import uuid
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from durablelog.bookkeeper.bookkeeper_location import check_may_follow, is_bookkeeper_url
from durablelog.processor_config import ProcessorConfig
from readindex.config import ReadIndexConfig
from segmentstore.contracts.attributes import ATTRIBUTES_PER_SEGMENT_MAX
from segmentstore.contracts.byte_sizes import GIB, KIB, MIB
from segmentstore.contracts.errors import ConfigError, DeprecatedSettingWarning
from segmentstore.contracts.folders import checked_folder
from segmentstore.contracts.host_ids import HOST_ID_FORM, host_id_of, is_host_id
from segmentstore.contracts.settings import check_bounds, seconds, setting, settings_of, whole
from segmentstore.contracts.urls import redacted
from segmentstore.deprecated_settings import (
    CURRENT_NAMES,
    deprecation_notes,
    with_current_names,
)
from segmentstore.published_hosts import is_wildcard, published_hosts
from storagewriter.config import StorageWriterConfig
from tier2.archive.archive_config import ARCHIVED_FILE_BYTES, ArchiveConfig
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
        "GATEWAY",
        "GATEWAY_LOG",
        "GATEWAY_TOKEN",
        "SERVICES",
        "ZOOKEEPER_AUTH",
    )
)
"""Variables of ours that are no settings; a test finds them in the sources."""
CLUSTER = "cluster"
PRAVEGA = "pravega:"
"""As `serve`: what the leader of the store's hosts assigns."""
APPEND_BYTES_LIMIT = 1 * GIB
"""No setting may allow larger appends: lengths in the formats are 32-bit with room to spare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """All settings with their defaults; those of a part are in its own configuration.

    Sizes in bytes, times in seconds. Byte bounds are for each container. Options, variables and
    `store.toml` name them flat, without the part: `from_settings`.
    """

    processor: ProcessorConfig = field(default_factory=ProcessorConfig)
    """Of the operation processor: the queue, frames in flight, checkpoints."""
    read_index: ReadIndexConfig = field(default_factory=ReadIndexConfig)
    """Of the read index: memory, cache, reading ahead."""
    archiving: ArchiveConfig = field(default_factory=ArchiveConfig)
    """Of the archive of the logs."""
    writer: StorageWriterConfig = field(default_factory=StorageWriterConfig)
    """Of the storage writer: flushes, uploads, consolidation, deletion, mailbox.

    What is said here of listings and downloads is the store's; its containers share it.
    """

    # Fixed when the store is made.
    containers: int = whole(1, 1, 65536)
    """Segment containers: each has a log, a sequencer and a storage writer of its own."""
    tier1: str = setting("file")
    """Where the log is: "file" (in the store's folder), "memory" (lost when the store is closed),
    or on BookKeeper (`bookkeeper://host:2181,host:2181/path?...`), where several processes may open
    one store.
    """
    tier2: str = setting("")
    """Where objects go: a URL (`file:///path`, `memory://name`); empty = the folder `tier2` in the
    store's. `open` takes a `pathlib.Path` too, and makes it absolute.
    """

    # What this process does.
    serve: str = setting("all")
    """Containers that are opened here: "all", or as "0,2-3"; "cluster": those that the leader of
    the store's hosts assigns to this one (docs/cluster.md). "pravega:NAME": those that Pravega's
    Controller assigns, of the cluster of that name. Both need BookKeeper and `wire_port`.
    """
    host_id: str = setting("")
    """Name of this host among those of the store, with `serve="cluster"`; empty: the machine's
    name and `wire_port`. Two processes never have the same.
    """
    host_capacity: int = whole(100, 1, 1_000_000)
    """Weight of this host: one with twice as much is given twice the containers."""
    take_over: bool = setting(default=False)
    """Whether containers on BookKeeper are taken from an owner that was seen alive, which fences
    it. One that has ended is followed without this.
    """

    # What callers may do.
    append_bytes_max: int = whole(16 * MIB, 1, APPEND_BYTES_LIMIT)
    """The largest append or batch."""
    attributes_per_segment_max: int = whole(ATTRIBUTES_PER_SEGMENT_MAX, 1, 100_000_000)
    """Attributes of one segment. One that has more, from a time with a higher bound, keeps them."""

    # Tier 1.
    frame_bytes_max: int = whole(1 * MIB - 1 * KIB, 64, 1 * MIB - 1 * KIB)
    """Payload of one DataFrame."""
    log_file_bytes: int = whole(0, 0, 4 * GIB - 1)
    """Size of one log file, at least 8 KiB: preallocated, deleted whole. 0: 64 MiB, or 120 MiB
    with an archive, which costs two requests for each.
    """

    # Tier 2.
    unflushed_bytes_max: int = whole(4 * GIB)
    """Writers are slowed towards, and held at, so many un-flushed bytes: bounds the log when Tier 2
    is away.
    """
    shared_tier2: bool = setting(default=False)
    """Whether other stores are meant to keep their objects where this one does.

    Else it is not made, nor opened for the first time, where another one is; and where one came
    later no orphans are searched for.
    """

    # Watching.
    catalog_export_interval_s: float = seconds(0.0)
    """The catalog of each container is exported to Tier 2 once in so much time, for jobs; 0: only
    when asked for.
    """
    scrub_bytes_per_s: int = whole(0, 0)
    """Objects are read again and again, and checked, at this rate, for the whole store; 0: nobody
    does it.
    """
    metrics_port: int = whole(0, 0, 65535)
    """TCP port on which Prometheus finds the numbers of the store; 0: none."""
    metrics_host: str = setting("127.0.0.1")
    """Address that port is opened on."""
    wire_port: int = whole(0, 0, 65535)
    """TCP port on which Pravega's clients reach the segments; 0: none."""
    wire_host: str = setting("127.0.0.1")
    """Address that port is opened on."""
    controller_port: int = whole(0, 0, 65535)
    """TCP port of the Controller, which Pravega's clients ask for streams; 0: none. It needs
    `wire_port`, for its clients are sent there.
    """
    controller_host: str = setting("127.0.0.1")
    """Address that port is opened on."""
    wire_hosts: str = setting("")
    """Where clients reach the containers: `0-1=HOST:PORT,2-3=HOST:PORT`, each container once.

    The Controller sends clients there. Empty: `wire_host` and `wire_port`, for all of them.
    """
    tls_certificate_file: str = setting("")
    """PEM file with the certificate of both ports, and those that lead to its authority; empty:
    connections are not encrypted. Read again when it changes.
    """
    tls_key_file: str = setting("")
    """PEM file with the key of that certificate, without a password."""
    users_file: str = setting("")
    """File with the users of the Controller (docs/network-security.md); empty: everybody may do
    everything. It needs `token_key_file`. Read again when it changes.
    """
    token_key_file: str = setting("")
    """File with the key that delegation tokens are signed with; empty: the wire server asks for
    none. A key has 32 bytes at least; a line end behind it is not part of it.
    """
    insecure_network: bool = setting(default=False)
    """Whether ports that everybody may use, or that are not encrypted, may be opened to other
    machines.
    """
    local_server: bool = setting(default=True)
    """Whether other processes of this machine, of the same user, may use the store through a socket
    in its folder.
    """

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """The configuration with these settings, by their flat names; the others have defaults.

        Every name is one of `SETTINGS`. Raises ConfigError for a value that may not be.
        """
        own: dict[str, Any] = {}
        parts: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
        for name, value in settings.items():
            check_bounds(SETTINGS[name], value)
            (parts[PART_OF[name]] if name in PART_OF else own)[name] = value
        return cls(**own, **{part: PARTS[part](**values) for part, values in parts.items()})

    def settings(self) -> dict[str, Any]:
        """The value of every setting, by its flat name."""
        return {
            name: getattr(getattr(self, PART_OF[name]) if name in PART_OF else self, name)
            for name in SETTINGS
        }

    def __repr__(self) -> str:
        values = (f"{name}={_shown(value)}" for name, value in self.settings().items())
        return f"StoreConfig({', '.join(values)})"

    def __post_init__(self) -> None:
        for name, value in self.settings().items():
            check_bounds(SETTINGS[name], value)
        served_ranges(self.serve, self.containers)
        self._check_host()
        if self.append_bytes_max > self.processor.queue_bytes_max:
            raise ConfigError(
                "append_bytes_max",
                f"{self.append_bytes_max} is more than queue_bytes_max, "
                f"{self.processor.queue_bytes_max}",
            )
        if self.controller_port and not self.wire_port:
            raise ConfigError("controller_port", "it needs wire_port: clients are sent there")
        if self.wire_hosts:
            published_hosts(self.wire_hosts, self.containers)
        elif self.joins_cluster:
            pass  # hosts say where they are
        elif self.controller_port and self.served_count < self.containers:
            raise ConfigError("wire_hosts", "the Controller needs it, since serve has some alone")
        elif self.controller_port and is_wildcard(self.wire_host):
            raise ConfigError(
                "wire_hosts", f"the Controller needs it: no client can connect to {self.wire_host}"
            )
        self._check_network()
        self.archiving.check(self.tier1, self.unflushed_bytes_max)
        if 0 < self.log_file_bytes < 8 * KIB:
            raise ConfigError("log_file_bytes", f"{self.log_file_bytes} is less than {8 * KIB}")
        if self.file_bytes < self.frame_bytes_max + 8 * KIB:
            raise ConfigError(
                "log_file_bytes",
                f"it must hold a frame of {self.frame_bytes_max} bytes and 8 KiB more",
            )

    @property
    def file_bytes(self) -> int:
        """Size of one log file."""
        unset = ARCHIVED_FILE_BYTES if self.archiving.place else 64 * MIB
        return self.log_file_bytes or unset

    def _check_host(self) -> None:
        if self.host_id and not is_host_id(self.host_id):
            raise ConfigError("host_id", f"{self.host_id!r} is not {HOST_ID_FORM}")
        if not self.joins_cluster:
            return
        if self.pravega_cluster is not None:
            self._check_pravega_cluster(self.pravega_cluster)
        if not self.wire_port or is_wildcard(self.wire_host):
            raise ConfigError(
                "serve", '"cluster" needs wire_port, and an address as wire_host: clients go there'
            )
        if self.wire_hosts:
            raise ConfigError(
                "wire_hosts", 'serve="cluster" moves containers, and this names places'
            )
        if self.controller_port and is_wildcard(self.controller_host):
            raise ConfigError(
                "controller_host", 'serve="cluster" needs an address: the other hosts connect to it'
            )

    def _check_pravega_cluster(self, name: str) -> None:
        if not is_host_id(name):
            raise ConfigError("serve", f"{name!r} is not {HOST_ID_FORM}")
        if self.controller_port:
            raise ConfigError("controller_port", "Pravega's Controller assigns the containers")
        expected = host_id_of(self.wire_host, self.wire_port)
        if self.host_id not in ("", expected):
            raise ConfigError(
                "host_id", f"where Pravega's Controller assigns it is {expected}, by the address"
            )

    def _check_network(self) -> None:
        for given, missing in (
            ("tls_certificate_file", "tls_key_file"),
            ("tls_key_file", "tls_certificate_file"),
            ("users_file", "token_key_file"),
        ):
            if getattr(self, given) and not getattr(self, missing):
                raise ConfigError(missing, f"{given} is set, and needs it")
        if self.token_key_file and self.controller_port and not self.users_file:
            raise ConfigError(
                "users_file", "token_key_file is set, and the Controller would give all a token"
            )
        for host, needed in (
            ("wire_host", ("tls_key_file", "token_key_file")),
            ("controller_host", ("tls_key_file", "token_key_file", "users_file")),
        ):
            open_to_all = not all(getattr(self, each) for each in needed)
            if open_to_all and not (self.insecure_network or _is_loopback(getattr(self, host))):
                raise ConfigError(
                    host,
                    f"{getattr(self, host)!r} is not an address of this machine alone, and every "
                    f"program that reaches it may read and write: set {', '.join(needed)}, or "
                    "insecure_network if that is meant",
                )

    @property
    def joins_cluster(self) -> bool:
        """Whether this process serves what is assigned to it."""
        return self.serve == CLUSTER or self.pravega_cluster is not None

    @property
    def pravega_cluster(self) -> str | None:
        """The cluster of Pravega whose Controller says what is served; None: none does."""
        begins = self.serve.startswith(PRAVEGA)
        return self.serve.removeprefix(PRAVEGA) if begins else None

    @property
    def served(self) -> list[int]:
        """The containers that an opening starts here, ascending."""
        return [
            container_id
            for part in served_ranges(self.serve, self.containers)
            for container_id in part
        ]

    @property
    def viewed(self) -> list[int]:
        """The containers of a view, which owns none: all, where hosts divide them by themselves."""
        return list(range(self.containers)) if self.joins_cluster else self.served

    @property
    def served_count(self) -> int:
        """How many they are."""
        return sum(map(len, served_ranges(self.serve, self.containers)))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def served_ranges(text: str, containers: int) -> list[range]:
    """What a setting `serve` says, ascending and apart. Raises ConfigError."""
    if text == "all":
        return [range(containers)]
    if text == CLUSTER or text.startswith(PRAVEGA):
        return []
    found = []
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        numbers = (first, last) if dash else (first, first)
        if not all(
            number.isascii() and number.isdigit() and len(number) <= 5 for number in numbers
        ):
            raise ConfigError(
                "serve", f"{text!r} is not all, cluster, pravega:NAME, or numbers as 0,2-3"
            )
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


_URLS = ("tier1", "tier2", "archive")
FIXED = ("containers", "tier1", "tier2")
"""Settings that belong to the store, not to the process that opens it."""
_KINDS: Mapping[type, str] = {str: "text", bool: "true or false"}
_TRUTH = {"true": True, "false": False, "1": True, "0": False}
"""What the environment may say for a setting that is on or off."""
PARTS: Mapping[str, type] = {
    "processor": ProcessorConfig,
    "read_index": ReadIndexConfig,
    "writer": StorageWriterConfig,
    "archiving": ArchiveConfig,
}
"""The nested configurations, by the field of StoreConfig."""
PART_OF: Mapping[str, str] = {
    name: part for part, config in PARTS.items() for name in settings_of(config)
}
"""The part of each setting that is a part's."""
SETTINGS: Mapping[str, dataclasses.Field[Any]] = {
    **settings_of(StoreConfig),
    **{name: each for config in PARTS.values() for name, each in settings_of(config).items()},
}
"""All settings by their flat names, which are unique."""


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

    Of a `tier1` on BookKeeper it is fixed which store it names; an opening of the store sees
    whether the servers have it.
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
                asked, created = _shown(value), _shown(values[name])
                raise ConfigError(name, f"{asked} asked for, but the store was made with {created}")
            values[name] = value
    return StoreConfig.from_settings(values)


def _shown(value: object) -> str:
    return repr(redacted(value) if isinstance(value, str) else value)


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, text in environment.items():
        name = key.removeprefix(ENVIRONMENT_PREFIX).lower()
        current = CURRENT_NAMES.get(name, name)
        if key.startswith(ENVIRONMENT_PREFIX) and current in SETTINGS:
            values[name] = _parsed(current, text, key)
    return with_current_names(values)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that looks like one of ours and is none.

    Cheap: called at each opening.
    """
    names = (*SETTINGS, *CURRENT_NAMES)
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
    default: Any = SETTINGS[name].default
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
    setting = SETTINGS.get(name)
    if setting is None:
        raise ConfigError(name, f"there is no such setting{did_you_mean(name, SETTINGS)}")
    kind = type(setting.default)
    if name in {"tier2", "archive"} and isinstance(value, os.PathLike):
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
