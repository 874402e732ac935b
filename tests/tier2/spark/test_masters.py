"""Where Spark is said to be, and that nothing answers there: said at once, in one sentence."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tier2.spark.common.masters import (
    SparkUnreachableError,
    addresses_of,
    check_master,
    named_master,
)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def closed() -> Iterator[int]:
    """A port that refuses them, and is no other process's meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.parametrize(
    ("environment", "master"),
    [
        ({}, ""),
        ({"MASTER": "spark://a:1"}, "spark://a:1"),
        ({"SPARK_REMOTE": "sc://a", "MASTER": "local"}, "sc://a"),
        ({"PYSPARK_SUBMIT_ARGS": "--master spark://a:1 pyspark-shell"}, "spark://a:1"),
        ({"PYSPARK_SUBMIT_ARGS": "--conf 'x=y z' --master=local[2] pyspark-shell"}, "local[2]"),
        ({"PYSPARK_SUBMIT_ARGS": "--remote sc://a pyspark-shell"}, "sc://a"),
        ({"PYSPARK_SUBMIT_ARGS": "pyspark-shell", "MASTER": "yarn"}, "yarn"),
        ({"PYSPARK_SUBMIT_ARGS": "--master"}, ""),
        ({"PYSPARK_SUBMIT_ARGS": "--master 'a"}, ""),
    ],
)
def test_a_master_is_found_where_pyspark_finds_it(environment: dict[str, str], master: str) -> None:
    assert named_master(environment) == master


@pytest.mark.parametrize(
    ("master", "addresses"),
    [
        ("spark://a:7077", [("a", 7077)]),
        ("spark://a:1,b:2", [("a", 1), ("b", 2)]),
        ("sc://a", [("a", 15002)]),
        ("sc://a:1/;use_ssl=true;token=x", [("a", 1)]),
        ("sc://[::1]:7", [("::1", 7)]),
        ("spark://a", []),
        ("spark://a:b", []),
        ("sc://", []),
        ("local[2]", []),
        ("k8s://https://a:1", []),
        ("", []),
    ],
)
def test_addresses_of_a_master(master: str, addresses: list[tuple[str, int]]) -> None:
    assert addresses_of(master) == addresses


def test_what_answers_is_enough(taken: int, closed: int) -> None:
    check_master({})
    check_master({"SPARK_REMOTE": f"sc://127.0.0.1:{taken}"})
    check_master({"MASTER": f"spark://127.0.0.1:{closed},127.0.0.1:{taken}"})


def test_a_server_behind_a_proxy_is_not_tried(closed: int) -> None:
    remote = f"sc://127.0.0.1:{closed}"
    check_master({"SPARK_REMOTE": remote, "https_proxy": "http://proxy:3128"})
    with pytest.raises(SparkUnreachableError):
        check_master({"SPARK_REMOTE": remote})


@pytest.mark.parametrize(
    ("scheme", "kind"), [("spark", "master of Spark"), ("sc", "Connect server of Spark")]
)
def test_where_nothing_answers_one_sentence_says_so(
    tmp_path: Path, closed: int, scheme: str, kind: str
) -> None:
    master = f"{scheme}://127.0.0.1:{closed}"
    verb = [sys.executable, "-m", "tier2.spark", "--master", master, "compact", tmp_path.as_uri()]
    ended = subprocess.run(verb, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    [_, said] = ended.stderr.splitlines()
    assert said == (
        f"no {kind} answers (127.0.0.1:{closed}: Connection refused): start it, or name another "
        "by --master"
    )
