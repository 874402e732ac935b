"""Where Spark is said to be, and that nothing answers there: said at once, in one sentence."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recovery.harness.services.spark_cluster import driver_environment
from tests.support.suites import slow
from tier2.spark.common import masters
from tier2.spark.common.masters import (
    SparkUnreachableError,
    addresses_of,
    check_master,
    named_master,
)

MASTER = struct.pack(">QB", 77, 8)
"""How a master of Spark 4.3 begins its answer."""
SERVER = b"\0\0\x12\4\0\0\0\0\0\0\4"
"""How a Connect server of Spark 4.3 begins it."""
HTTP = b"HTTP/1.1 400 Bad Request\r\n\r\n"


@contextmanager
def program(answer: bytes) -> Iterator[int]:
    """A port where this is said to whatever is asked first, and the connection ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                connection, _ = listener.accept()
                with connection:
                    if not connection.recv(4096):
                        return
                    connection.sendall(answer)

        port = listener.getsockname()[1]
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield port
        finally:
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join()


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that takes connections, as that of a process that is stopped."""
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


def test_what_answers_is_enough(closed: int) -> None:
    check_master({})
    with program(MASTER) as master, program(SERVER) as server:
        check_master({"SPARK_REMOTE": f"sc://127.0.0.1:{server}"})
        check_master({"MASTER": f"spark://127.0.0.1:{closed},127.0.0.1:{master}"})


@pytest.mark.parametrize("answer", [b"", b"\x15\3\1\0\2\2\x28"])
def test_what_may_be_a_master_behind_tls_is_left_to_spark(answer: bytes) -> None:
    with program(answer) as port:
        check_master({"MASTER": f"spark://127.0.0.1:{port}"})


@pytest.mark.parametrize("more", ["/;use_ssl=true", "/;token=x", "/;user_id=x;token=x"])
def test_a_server_behind_tls_is_asked_nothing(silent: int, more: str) -> None:
    check_master({"SPARK_REMOTE": f"sc://127.0.0.1:{silent}{more}"})
    token = {"SPARK_CONNECT_AUTHENTICATE_TOKEN": "x"}
    check_master({"SPARK_REMOTE": f"sc://127.0.0.1:{silent}", **token})


@pytest.mark.parametrize(
    ("scheme", "answer"),
    [
        ("spark", HTTP),
        ("spark", SERVER),
        ("spark", MASTER[:4]),
        ("sc", HTTP),
        ("sc", MASTER),
        ("sc", b""),
    ],
)
def test_another_program_is_no_spark(scheme: str, answer: bytes) -> None:
    name = "SPARK_REMOTE" if scheme == "sc" else "MASTER"
    with program(answer) as port:
        named = {name: f"{scheme}://127.0.0.1:{port}"}
        with pytest.raises(SparkUnreachableError, match="another program"):
            check_master(named)


@pytest.mark.parametrize("name", ["SPARK_REMOTE", "MASTER"])
def test_silence_is_no_answer(silent: int, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(masters, "ANSWER_S", 0.1)
    named = f"{'sc' if name == 'SPARK_REMOTE' else 'spark'}://127.0.0.1:{silent}"
    with pytest.raises(SparkUnreachableError, match=r"says nothing within 0\.1 s"):
        check_master({name: named})


@slow(20)
def test_a_master_that_spark_gives_up_is_said_in_one_sentence(tmp_path: Path) -> None:
    with program(b"") as port:
        verb = [sys.executable, "-m", "tier2.spark", "compact", tmp_path.as_uri()]
        environment = driver_environment(f"spark://127.0.0.1:{port}", {"spark.log.level": "OFF"})
        ended = subprocess.run(
            verb, capture_output=True, text=True, timeout=240, check=False, env=environment
        )
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("no master of Spark has taken the job up")


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
