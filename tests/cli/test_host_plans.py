"""The plan of `serve --processes`: names, folders and ports of the hosts, and what is refused."""

from __future__ import annotations

import sys

import pytest

from segmentstore.cli.host_plans import (
    PROCESSES_MAX,
    HostsWanted,
    host_folder,
    host_plans,
    ports_of,
)
from segmentstore.contracts.errors import ConfigError

WANTED = HostsWanted("/stores/one", "a", 3, "10.0.0.7", 9090)


def test_each_host_has_a_name_a_folder_and_a_port_of_its_own() -> None:
    plans = host_plans(WANTED._replace(options=("--create", "--json")), {}, supervisor=77)
    assert [plan.host_id for plan in plans] == ["a-1", "a-2", "a-3"]
    assert [plan.command for plan in plans] == [
        (
            *(sys.executable, "-m", "segmentstore", "serve", f"/stores/one/a-{number}"),
            *("--host", f"a-{number}", "--wire", f"10.0.0.7:{9089 + number}"),
            *("--supervisor", "77", "--create", "--json"),
        )
        for number in (1, 2, 3)
    ]
    assert [plan.environment for plan in plans] == [{}] * 3
    assert host_folder(WANTED, 2) == plans[1].command[4]


def test_the_port_for_metrics_is_the_first_of_as_many() -> None:
    environment = {"SEGMENTSTORE_METRICS_PORT": "8000"}
    given = [plan.environment for plan in host_plans(WANTED, environment, supervisor=1)]
    assert given == [{"SEGMENTSTORE_METRICS_PORT": str(port)} for port in (8000, 8001, 8002)]
    assert ports_of(WANTED, environment) == [9090, 9091, 9092, 8000, 8001, 8002]


def test_controllers_have_ports_in_the_same_way() -> None:
    wanted = WANTED._replace(controller_host="::1", controller_port=9100)
    commands = [plan.command for plan in host_plans(wanted, {}, supervisor=1)]
    assert [command[command.index("--controller") + 1] for command in commands] == [
        "[::1]:9100",
        "[::1]:9101",
        "[::1]:9102",
    ]
    assert ports_of(wanted, {}) == [9090, 9091, 9092, 9100, 9101, 9102]
    with pytest.raises(ConfigError, match="overlap"):
        host_plans(wanted._replace(controller_port=9092), {}, supervisor=1)


def test_an_address_with_colons_stands_in_brackets() -> None:
    (plan,) = host_plans(WANTED._replace(processes=1, wire_host="::1"), {}, supervisor=1)
    assert "[::1]:9090" in plan.command


@pytest.mark.parametrize(
    ("wanted", "environment", "why"),
    [
        (WANTED._replace(processes=0), {}, "0 is not a number from 1 to 16"),
        (WANTED._replace(processes=PROCESSES_MAX + 1), {}, "17 is not a number from 1 to 16"),
        (WANTED._replace(host="a/b"), {}, "'a/b-3' is not"),
        (WANTED._replace(wire_port=65534), {}, "host a-3 would have port 65536"),
        (WANTED, {"SEGMENTSTORE_METRICS_PORT": "9092"}, "overlap"),
        (WANTED, {"SEGMENTSTORE_METRICS_PORT": "65534"}, "would have port 65536"),
        (WANTED, {"SEGMENTSTORE_METRICS_PORT": "x"}, "'x' of SEGMENTSTORE_METRICS_PORT"),
        (WANTED, {"SEGMENTSTORE_METRICS_PORT": "9" * 5000}, "is not a port"),
        (WANTED, {"SEGMENTSTORE_CONTROLLER_PORT": "9091"}, "3 hosts cannot share"),
    ],
)
def test_what_cannot_be_is_refused(
    wanted: HostsWanted, environment: dict[str, str], why: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        host_plans(wanted, environment, supervisor=1)
    assert why in str(refused.value)
