"""What a host says of itself in its ephemeral node: address, weight, load, and its containers.

Pure. Format: docs/formats/cluster-nodes.md.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from segmentstore.contracts.errors import InvalidArgumentError
from segmentstore.contracts.host_ids import HOST_ID_FORM, is_host_id

VERSION: Final = 1
CAPACITY_DEFAULT: Final = 100
CAPACITY_MAX: Final = 1_000_000
CAUSE_CHARS_MAX: Final = 300
"""Of one failed container."""
CAUSES_CHARS_MAX: Final = 100_000
"""Of all of a host: where every container failed, the node must stay below ZooKeeper's limit."""
NUMBER_MAX: Final = 2**63 - 1
_TEXT_MAX: Final = 255


def check_host_id(argument: str, value: object) -> None:
    """Raise InvalidArgumentError unless `value` can be a host's id."""
    if not is_host_id(value):
        raise InvalidArgumentError(argument, value, f"it is {HOST_ID_FORM}")


def check_number(argument: str, value: object, low: int, high: int) -> None:
    """Raise InvalidArgumentError unless `value` is an int from `low` to `high`."""
    if type(value) is not int or not low <= value <= high:
        raise InvalidArgumentError(argument, value, f"it is a whole number from {low} to {high}")


def check_text(argument: str, value: object, low: int) -> None:
    """Raise InvalidArgumentError unless `value` is text of `low` to 255 printable characters."""
    if not isinstance(value, str) or not low <= len(value) <= _TEXT_MAX or not value.isprintable():
        raise InvalidArgumentError(
            argument, value, f"it is text of {low} to {_TEXT_MAX} printable characters"
        )


class ReportedState(enum.StrEnum):
    """What a host does with a container; the values are those of the registry's states."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FAILED = "failed"
    """Its start failed, or something stopped it unasked."""


@dataclass(frozen=True, slots=True)
class ContainerReport:
    """A container that the host has, or failed to start. A stopped one is not reported."""

    state: ReportedState
    since_ms: int
    """By the host's clock. Compared with other values of the same host alone."""
    cause: str = ""
    """Why it is FAILED; at most CAUSE_CHARS_MAX characters are written."""


@dataclass(frozen=True, slots=True)
class HostLoad:
    """How busy a host was in its last interval. For people; no decision depends on it."""

    bytes_in_per_s: int = 0
    bytes_out_per_s: int = 0
    unflushed_bytes: int = 0
    active_segments: int = 0

    def __post_init__(self) -> None:
        for name in ("bytes_in_per_s", "bytes_out_per_s", "unflushed_bytes", "active_segments"):
            check_number(name, getattr(self, name), 0, NUMBER_MAX)


@dataclass(frozen=True, slots=True)
class HostRecord:
    """One host. Raises InvalidArgumentError where a value is out of its range."""

    host_id: str
    """As `is_host_id` has it. The host has it again after a restart."""
    host: str
    """With `port`: where clients reach its wire server."""
    port: int
    version: str
    """Of the software."""
    started_ms: int
    """When its process started, by its own clock: a restarted host differs in it."""
    capacity: int = CAPACITY_DEFAULT
    """Its weight beside the other hosts', 1 to CAPACITY_MAX."""
    draining: bool = False
    """The host itself is about to leave: it gets no container, and its own are moved."""
    load: HostLoad = HostLoad()
    controller_host: str = ""
    """With `controller_port`: where clients reach its Controller."""
    controller_port: int = 0
    """0: it has none."""
    containers: Mapping[int, ContainerReport] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_host_id("host_id", self.host_id)
        check_text("host", self.host, 1)
        check_number("port", self.port, 1, 65535)
        check_number("controller_port", self.controller_port, 0, 65535)
        if self.controller_port:
            check_text("controller_host", self.controller_host, 1)
        elif self.controller_host != "":
            raise InvalidArgumentError(
                "controller_host", self.controller_host, "it is empty without controller_port"
            )
        check_text("version", self.version, 0)
        check_number("started_ms", self.started_ms, 0, NUMBER_MAX)
        check_number("capacity", self.capacity, 1, CAPACITY_MAX)
        if type(self.draining) is not bool:
            raise InvalidArgumentError("draining", self.draining, "it is true or false")
        for container_id, report in self.containers.items():
            check_number("container", container_id, 0, NUMBER_MAX)
            check_number("since_ms", report.since_ms, 0, NUMBER_MAX)


def encode_host_record(record: HostRecord) -> bytes:
    """The node's bytes. Causes are cut to their bounds."""
    containers: dict[str, list[object]] = {}
    left = CAUSES_CHARS_MAX
    for container_id, report in sorted(record.containers.items()):
        entry: list[object] = [report.state.value, report.since_ms]
        if cause := report.cause[: min(CAUSE_CHARS_MAX, left)]:
            entry.append(cause)
            left -= len(cause)
        containers[str(container_id)] = entry
    fields: dict[str, object] = {
        "version": VERSION,
        "host_id": record.host_id,
        "host": record.host,
        "port": record.port,
        "software": record.version,
        "started_ms": record.started_ms,
        "capacity": record.capacity,
        "draining": record.draining,
        "load": {
            "bytes_in_per_s": record.load.bytes_in_per_s,
            "bytes_out_per_s": record.load.bytes_out_per_s,
            "unflushed_bytes": record.load.unflushed_bytes,
            "active_segments": record.load.active_segments,
        },
        "containers": containers,
    }
    if record.controller_port:
        fields["controller"] = [record.controller_host, record.controller_port]
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def decode_host_record(data: bytes) -> HostRecord | None:
    """What a node holds; None of one that cannot be read, or of a later version.

    Its host is registered all the same: the node is there.
    """
    try:
        fields: Any = json.loads(data)
        if fields["version"] != VERSION:
            return None
        load = fields["load"]
        controller = fields.get("controller", ["", 0])
        return HostRecord(
            host_id=fields["host_id"],
            host=fields["host"],
            port=fields["port"],
            version=fields["software"],
            started_ms=fields["started_ms"],
            capacity=fields["capacity"],
            draining=fields["draining"],
            load=HostLoad(
                load["bytes_in_per_s"],
                load["bytes_out_per_s"],
                load["unflushed_bytes"],
                load["active_segments"],
            ),
            controller_host=controller[0],
            controller_port=controller[1],
            containers={
                int(number): _decode_report(*entry)
                for number, entry in fields["containers"].items()
            },
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _decode_report(state: Any, since_ms: Any, cause: Any = "", *_later: Any) -> ContainerReport:
    if not isinstance(state, str) or not isinstance(cause, str):
        raise TypeError(state)
    try:
        known = ReportedState(state)
    except ValueError:
        # Of later software: the host has the container, and does not say that it serves it.
        known = ReportedState.STARTING
    return ContainerReport(known, since_ms, cause[:CAUSE_CHARS_MAX])
