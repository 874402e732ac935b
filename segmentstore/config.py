"""Settings of a store: their defaults, what they may be, and what must fit together."""

from __future__ import annotations

import dataclasses
import ipaddress
import itertools
import os
import pathlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from durablelog.processor_config import ProcessorConfig
from readindex.config import ReadIndexConfig
from segmentstore.contracts.attributes import ATTRIBUTES_PER_SEGMENT_MAX
from segmentstore.contracts.byte_sizes import GIB, KIB, MIB
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.folders import checked_folder
from segmentstore.contracts.host_ids import HOST_ID_FORM, host_id_of, is_host_id
from segmentstore.contracts.settings import check_bounds, seconds, setting, settings_of, whole
from segmentstore.contracts.urls import redacted
from segmentstore.published_hosts import is_wildcard, published_hosts
from storagewriter.config import StorageWriterConfig
from tier2.archive.archive_config import ARCHIVED_FILE_BYTES, ArchiveConfig

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
    """Objects are read again and again, and checked, at this rate, for the whole store; 0: no
    scrub.
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
    """File with the users of the Controller (docs/network-security.md); empty: every client may do
    everything. It needs `token_key_file`. Read again when it changes.
    """
    token_key_file: str = setting("")
    """File with the key that delegation tokens are signed with; empty: the wire server asks for
    none. A key has 32 bytes at least; a line end behind it is not part of it.
    """
    insecure_network: bool = setting(default=False)
    """Whether ports that lack authentication or encryption may be opened to other machines."""
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
        values = (f"{name}={shown(value)}" for name, value in self.settings().items())
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


FIXED = ("containers", "tier1", "tier2")
"""Settings that belong to the store, not to the process that opens it."""
_KINDS: Mapping[type, str] = {str: "text", bool: "true or false"}
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


def shown(value: object) -> str:
    """A value as a message has it: without the password of a URL."""
    return repr(redacted(value) if isinstance(value, str) else value)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The closest of the known names as the end of a sentence; empty if none is close."""
    # Not at the top: only a mistake needs it.
    import difflib  # noqa: PLC0415

    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def typed_setting(name: str, value: object) -> object:
    """The value as the setting has it: an int as a float, a folder as its URL.

    Raises ConfigError for a name that is no setting, or a value of another type.
    """
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
