"""What stands in deploy/: checked by the linters of each kind, and against the program that it
runs: commands, options, settings, ports, pages and times are those of the source.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.core import TyperGroup
from typer.main import get_command

import segmentstore
from segmentstore.cli.app import app
from segmentstore.cluster.cluster_host import LEAVE_S_MAX
from segmentstore.config import StoreConfig
from segmentstore.contracts.host_ids import is_host_id
from segmentstore.metrics_endpoint import ANSWER_S
from segmentstore.probe_pages import LIVE, READY
from segmentstore.settings_sources import merge_settings, unknown_variables

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "segmentstore@.service"
CONTAINERFILE = DEPLOY / "Containerfile"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
PROGRAM = "/opt/segmentstore/bin/segmentstore"
USAGE_ERROR = typer.BadParameter.__mro__[1]
EXPOSURE_MAX = 20
"""Tenths, of what `systemd-analyze security` finds; a unit without restrictions has 96."""
CLOSE_S = 60.0
"""What a close of the logs and the uploads on their way may take, behind the moves."""


def linter(name: str) -> str:
    """A program that checks, of the environment of the tests or of the machine."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is not installed: `make setup tools` does that")
    return found


def lint(*command: str) -> str:
    """What it prints. Fails with that if it finds anything."""
    done = subprocess.run(
        [linter(command[0]), *command[1:]], capture_output=True, text=True, timeout=240, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """What the command line of these arguments is, as the program reads it; nothing is run.

    Raises USAGE_ERROR.
    """
    command: Any = get_command(app)
    name: str | None = "segmentstore"
    left = list(arguments)
    parent: Any = None
    while True:
        context = command.make_context(name, left, parent=parent)
        if not isinstance(command, TyperGroup):
            return dict(context.params)
        left = [*context._protected_args, *context.args]
        name, command, left = command.resolve_command(context, left)
        parent = context


@cache
def unit() -> dict[str, list[str]]:
    """The values of each key, in order."""
    values: dict[str, list[str]] = {}
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            values.setdefault(key, []).append(value)
    return values


@cache
def manifest(kind: str) -> dict[str, Any]:
    (found,) = [
        each
        for path in MANIFESTS
        for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        if each["kind"] == kind
    ]
    assert isinstance(found, dict)
    return found


def pod() -> dict[str, Any]:
    found: dict[str, Any] = manifest("StatefulSet")["spec"]["template"]["spec"]
    return found


def container() -> dict[str, Any]:
    (found,) = pod()["containers"]
    assert isinstance(found, dict)
    return found


def variables_of_the_unit() -> dict[str, str]:
    text = (DEPLOY / "systemd" / "host.env").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def variables_of_the_pod() -> dict[str, str]:
    named = {each["name"]: "10.0.0.7" for each in container()["env"]}
    config: dict[str, str] = manifest("ConfigMap")["data"]
    return named | config


def settings(variables: Mapping[str, str], options: Mapping[str, object]) -> StoreConfig:
    """As an opening reads them. Raises ConfigError."""
    assert unknown_variables(variables) == []
    return merge_settings(options, variables, {}, existing=False)


# --- the linters ----------------------------------------------------------------------------------


def test_the_container_file_passes_hadolint() -> None:
    lint("hadolint", "--failure-threshold", "style", str(CONTAINERFILE))


def test_the_manifests_are_what_kubernetes_expects() -> None:
    for version in ("1.30", "1.37"):
        lint("kubernetes-validate", "--strict", "--version", version, *map(str, MANIFESTS))


def test_the_unit_passes_systemd_analyze(tmp_path: Path) -> None:
    # The program must be there: here it is that of the tests.
    here = Path(sys.executable).with_name("segmentstore")
    text = UNIT.read_text(encoding="utf-8").replace(PROGRAM, str(here))
    copy = tmp_path / UNIT.name
    copy.write_text(text, encoding="utf-8")
    instance = str(copy).replace("@", "@host-7")
    assert lint("systemd-analyze", "verify", "--man=no", instance).strip() == ""
    lint(
        "systemd-analyze", "security", "--no-pager", "--offline=true",
        f"--threshold={EXPOSURE_MAX}", str(copy),
    )  # fmt: skip


# --- the program that they run --------------------------------------------------------------------


def test_an_option_that_is_none_is_noticed() -> None:
    assert issubclass(USAGE_ERROR, Exception)
    with pytest.raises(USAGE_ERROR):
        parsed(["serve", "folder", "--hots", "a"])
    with pytest.raises(USAGE_ERROR):
        parsed(["cluster", "vacate", "folder"])


def test_the_unit_runs_commands_that_there_are() -> None:
    (start,), (stop,) = unit()["ExecStart"], unit()["ExecStop"]
    program, *arguments = shlex.split(start.replace("%i", "host-7"))
    assert program == PROGRAM
    served = parsed(arguments)
    assert served["host"] == "host-7"
    assert served["create"]
    program, *arguments = shlex.split(stop.replace("%i", "host-7"))
    assert program == f"-{PROGRAM}", "SIGTERM comes all the same if it fails"
    assert parsed(arguments)["store"] == served["store"]
    (folder,) = unit()["StateDirectory"]
    assert Path(str(served["store"])).parent == Path("/var/lib") / folder
    # The gateway to BookKeeper is a child: it must not get the signal that its parent gets.
    assert unit()["KillMode"] == ["mixed"]
    (seconds,) = unit()["TimeoutStopSec"]
    assert float(seconds) >= LEAVE_S_MAX + CLOSE_S


def test_the_pod_runs_commands_that_there_are() -> None:
    served = parsed([each.replace("$(POD_NAME)", "segmentstore-0") for each in container()["args"]])
    assert served["host"] == f"{manifest('StatefulSet')['metadata']['name']}-0"
    assert is_host_id(served["host"])
    program, *arguments = container()["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "segmentstore"
    assert parsed(arguments)["store"] == served["store"]
    mounts = {each["name"]: each["mountPath"] for each in container()["volumeMounts"]}
    assert Path(str(served["store"])).parent == Path(mounts["data"])
    (claim,) = manifest("StatefulSet")["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "data"
    assert pod()["terminationGracePeriodSeconds"] >= LEAVE_S_MAX + CLOSE_S


def test_the_settings_are_those_of_a_host() -> None:
    for variables in (variables_of_the_unit(), variables_of_the_pod()):
        config = settings(variables, {"serve": "cluster", "host_id": "host-7"})
        assert config.joins_cluster
        assert (config.wire_port, config.metrics_port) == (9090, 9464)
        assert config.tier1.startswith("bookkeeper://")
        assert config.containers == 64


def test_ports_and_labels_agree() -> None:
    ports = {each["name"]: each["containerPort"] for each in container()["ports"]}
    config = settings(variables_of_the_pod(), {"serve": "cluster"})
    assert ports == {"wire": config.wire_port, "metrics": config.metrics_port}
    service = manifest("Service")["spec"]
    assert {each["name"]: each["port"] for each in service["ports"]} == ports
    assert {each["targetPort"] for each in service["ports"]} == ports.keys()
    assert service["clusterIP"] == "None"
    spec = manifest("StatefulSet")["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert labels == service["selector"]
    for kind, where in (("StatefulSet", "selector"), ("PodDisruptionBudget", "selector")):
        assert manifest(kind)["spec"][where]["matchLabels"] == labels
    assert spec["serviceName"] == manifest("Service")["metadata"]["name"]
    assert manifest("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    (reference,) = container()["envFrom"]
    assert reference["configMapRef"]["name"] == manifest("ConfigMap")["metadata"]["name"]


def test_probes_ask_pages_that_there_are_and_wait_as_long_as_an_answer_takes() -> None:
    pages = {"startupProbe": LIVE, "readinessProbe": READY, "livenessProbe": LIVE}
    for name, page in pages.items():
        probe = container()[name]
        assert probe["httpGet"] == {"path": page, "port": "metrics"}
        assert probe["timeoutSeconds"] > ANSWER_S
    assert container()["livenessProbe"]["failureThreshold"] > 1


def test_the_image_has_what_the_source_says() -> None:
    text = CONTAINERFILE.read_text(encoding="utf-8").replace("\\\n", " ")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    copied = {
        word
        for line in re.findall(r"(?m)^COPY (?!--from)(.*)$", text)
        for word in line.split()[:-1]
    }
    packages = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert copied == packages | {"constraints.txt", "pyproject.toml", "README.md", "LICENSE"}
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
    (extras,) = re.findall(r"\$\{wheel\}\[(.*?)\]", text)
    assert set(extras.split(",")) <= project["project"]["optional-dependencies"].keys()
    variables = dict(re.findall(r"(SEGMENTSTORE_\w+)=(\S+)", text))
    assert unknown_variables(variables) == []
    for line in re.findall(r"segmentstore (bookkeeper install)", text):
        parsed(line.split())
    (command,) = re.findall(r"(?m)^CMD (.*)$", text)
    assert parsed(yaml.safe_load(command))["create"]
    (user,) = re.findall(r"(?m)^USER (\d+):(\d+)$", text)
    security = pod()["securityContext"]
    assert tuple(map(int, user)) == (security["runAsUser"], security["runAsGroup"])
    assert pod()["containers"][0]["image"] == f"segmentstore:{segmentstore.__version__}"
