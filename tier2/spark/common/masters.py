"""Whether Spark answers where its master, or its Connect server, is said to be. No pyspark.

Spark itself waits long for nothing: some 90 s for a master, ten minutes and more for a Connect
server, and says nothing until then.

Rules of this file:

- one connection to each address, closed at once; what a program has from other places than the
  environment is not known here, and not checked;
- a port that takes connections may be of another program, or of a process that is stopped. So it is
  asked for what any master, and any Connect server, answers to any client. What may be Spark behind
  TLS is left to Spark.
"""

from __future__ import annotations

import re
import shlex
import socket
import struct
import time
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from segmentstore.contracts.errors import SegmentStoreError

CONNECT_S: Final = 10.0
"""For the connection to each address."""
ANSWER_S: Final = 20.0
"""For the answer there: as long as Spark gives a master before it asks again."""
_CONNECT: Final = "sc://"
_STANDALONE: Final = "spark://"
_CONNECT_PORT: Final = 15002
_PROXIES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
"""By one of these gRPC goes to another address than the server's."""


_SECURE: Final = re.compile(r"[;/](use_ssl=true|token=)", re.IGNORECASE)
_SECURED_BY: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""What gives a client its token: with one it speaks TLS."""

_STREAM: Final = b"files/segmentstore"
"""A file that no master has for its workers."""
_STREAM_REQUEST: Final = 6
_ANSWER_BYTES: Final = 9


class _Question(NamedTuple):
    """What is sent, and the first _ANSWER_BYTES of what Spark says to it."""

    sent: bytes
    answer: re.Pattern[bytes]


_OF_MASTER: Final = _Question(
    struct.pack(">QBI", 13 + len(_STREAM), _STREAM_REQUEST, len(_STREAM)) + _STREAM,
    # The length of a frame and its type, a StreamFailure. Or an end, or an alert of TLS.
    re.compile(rb"\0{4}.{4}\x08|\x15|\Z", re.DOTALL),
)
_OF_SERVER: Final = _Question(
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)),
    # The head of a SETTINGS frame of HTTP/2, with which each server begins.
    re.compile(rb".{3}\x04.\0{4}", re.DOTALL),
)


class SparkUnreachableError(SegmentStoreError):
    """Spark does not answer where it is said to be. The operator's move: start it, or name
    another.
    """


def named_master(environment: Mapping[str, str]) -> str:
    """What the environment names as the master of a session, or as its Connect server; else ""."""
    remote = environment.get("SPARK_REMOTE", "")
    if remote:
        return remote
    try:
        words = shlex.split(environment.get("PYSPARK_SUBMIT_ARGS", ""))
    except ValueError:
        return ""  # Spark says what is wrong with it.
    for option in ("--remote", "--master"):
        for place, word in enumerate(words):
            if word == option and place + 1 < len(words):
                return words[place + 1]
            if word.startswith(option + "="):
                return word.partition("=")[2]
    return environment.get("MASTER", "")


def check_master(environment: Mapping[str, str]) -> None:
    """Raise SparkUnreachableError if the environment names addresses and Spark is at none of them.

    Of several masters one is enough. Takes CONNECT_S and ANSWER_S for each at most.
    """
    master = named_master(environment)
    question: _Question | None = _OF_MASTER
    if master.startswith(_CONNECT):
        if any(environment.get(name) for name in _PROXIES):
            return
        is_secure = _SECURE.search(master) is not None or environment.get(_SECURED_BY)
        question = None if is_secure else _OF_SERVER
    failures = []
    for host, port in addresses_of(master):
        failure = _failure(host, port, question)
        if failure is None:
            return
        failures.append(f"{host}:{port}: {failure}")
    if failures:
        kind = "Connect server" if master.startswith(_CONNECT) else "master"
        raise SparkUnreachableError(
            f"no {kind} of Spark answers ({'; '.join(failures)}): start it, or name another by "
            "--master"
        )


def _failure(host: str, port: int, question: _Question | None) -> str | None:
    """Why this is not where Spark is; None if it is, or may be."""
    try:
        connection = socket.create_connection((host, port), timeout=CONNECT_S)
    except OSError as error:
        return error.strerror or str(error)
    with connection:
        if question is None:
            return None
        try:
            answer = _answer(connection, question.sent)
        except TimeoutError:
            return f"it takes connections, and says nothing within {ANSWER_S:g} s"
    return None if question.answer.match(answer) else "what answers there is another program"


def _answer(connection: socket.socket, sent: bytes) -> bytes:
    """The first bytes that come; fewer if the connection ends. Raises TimeoutError after ANSWER_S
    in all.
    """
    end, answer = time.monotonic() + ANSWER_S, b""
    connection.settimeout(ANSWER_S)
    try:
        connection.sendall(sent)
        while len(answer) < _ANSWER_BYTES:
            connection.settimeout(max(0.001, end - time.monotonic()))
            more = connection.recv(_ANSWER_BYTES - len(answer))
            if not more:
                break
            answer += more
    except ConnectionError:
        pass  # as an end
    return answer


def addresses_of(master: str) -> list[tuple[str, int]]:
    """Hosts and ports of a standalone master or a Connect server; none of another, or of one that
    is not well written, of which Spark says so at once.
    """
    if master.startswith(_CONNECT):
        given, default = [master.removeprefix(_CONNECT).partition("/")[0]], _CONNECT_PORT
    elif master.startswith(_STANDALONE):
        given, default = master.removeprefix(_STANDALONE).split(","), None
    else:
        return []
    found = []
    for each in given:
        try:
            parts = urlsplit("//" + each)
            host, port = parts.hostname, parts.port or default
        except ValueError:
            return []
        if not host or port is None:
            return []
        found.append((host, port))
    return found
