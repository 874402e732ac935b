"""Which processes `segmentstore serve STORE --host ID --wire HOST:PORT --processes N` starts.

Host number K of N is called ID-K, and has the folder STORE/ID-K. Each of its ports is the one that
was given, and K - 1 more.
Pure.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.host_ids import HOST_ID_FORM, is_host_id
from segmentstore.settings_sources import ENVIRONMENT_PREFIX

SETTING: Final = "processes"
PROCESSES_MAX: Final = 16
_PORT_MAX: Final = 65535
_METRICS_VARIABLE: Final = ENVIRONMENT_PREFIX + "METRICS_PORT"
_CONTROLLER_VARIABLE: Final = ENVIRONMENT_PREFIX + "CONTROLLER_PORT"


class HostPlan(NamedTuple):
    """One process, which is one host."""

    host_id: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    """Beside that of the supervisor."""


class HostsWanted(NamedTuple):
    """What the command line asks for."""

    store: str
    """The folder that has a folder for each host."""
    host: str
    processes: int
    wire_host: str
    wire_port: int
    controller_host: str = ""
    controller_port: int = 0
    """0: no host has a Controller."""
    options: tuple[str, ...] = ()
    """Of `serve`, the same for each host."""


def host_folder(wanted: HostsWanted, number: int) -> str:
    """The folder of a host's store, counted from 1."""
    return str(Path(wanted.store) / _id(wanted, number))


def ports_of(wanted: HostsWanted, environment: Mapping[str, str]) -> list[int]:
    """All that the hosts open. Raises ConfigError."""
    return [
        port
        for first in (wanted.wire_port, wanted.controller_port, _metrics_port(environment))
        if first
        for port in range(first, first + wanted.processes)
    ]


def host_plans(
    wanted: HostsWanted, environment: Mapping[str, str], supervisor: int
) -> list[HostPlan]:
    """A plan for each host; `supervisor` is the process whose end is theirs.

    `environment` may name the first of their ports for metrics. Raises ConfigError: too many, a
    name that no host may have, or ports that do not exist.
    """
    if not 1 <= wanted.processes <= PROCESSES_MAX:
        detail = f"{wanted.processes} is not a number from 1 to {PROCESSES_MAX}"
        raise ConfigError(SETTING, detail)
    last = _id(wanted, wanted.processes)
    if not is_host_id(last):
        raise ConfigError("host_id", f"{last!r} is not {HOST_ID_FORM}")
    if environment.get(_CONTROLLER_VARIABLE, "") not in ("", "0"):
        detail = (
            f"{_CONTROLLER_VARIABLE} is one port, which {wanted.processes} hosts cannot share: "
            "give --controller HOST:PORT"
        )
        raise ConfigError("controller_port", detail)
    if max(ports := ports_of(wanted, environment)) > _PORT_MAX:
        detail = f"host {last} would have port {max(ports)}: begin with a lower one"
        raise ConfigError(SETTING, detail)
    if len(set(ports)) != len(ports):
        detail = (
            f"the ports of --wire, of --controller and of {_METRICS_VARIABLE} overlap, of which "
            f"each has {wanted.processes}"
        )
        raise ConfigError(SETTING, detail)
    metrics_port = _metrics_port(environment)
    plans = []
    for number in range(1, wanted.processes + 1):
        host_id = _id(wanted, number)
        listening = ["--wire", _address(wanted.wire_host, wanted.wire_port + number - 1)]
        if wanted.controller_port:
            address = _address(wanted.controller_host, wanted.controller_port + number - 1)
            listening += ["--controller", address]
        command = (
            *(sys.executable, "-m", "segmentstore", "serve", host_folder(wanted, number)),
            *("--host", host_id, *listening, "--supervisor", str(supervisor)),
            *wanted.options,
        )
        own = {_METRICS_VARIABLE: str(metrics_port + number - 1)} if metrics_port else {}
        plans.append(HostPlan(host_id, command, own))
    return plans


def _id(wanted: HostsWanted, number: int) -> str:
    return f"{wanted.host}-{number}"


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _metrics_port(environment: Mapping[str, str]) -> int:
    text = environment.get(_METRICS_VARIABLE, "")
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > len(str(_PORT_MAX)):
        raise ConfigError("metrics_port", f"{text!r} of {_METRICS_VARIABLE} is not a port")
    return int(text)
