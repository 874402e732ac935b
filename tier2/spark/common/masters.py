"""Whether anything answers where Spark's master, or its Connect server, is said to be. No pyspark.

Spark itself waits long for nothing: some 90 s for a master, 200 s for a Connect server, and says
nothing until then.

Rules of this file: one connection to each address, closed at once; what a program has from other
places than the environment is not known here, and not checked.
"""

from __future__ import annotations

import shlex
import socket
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from segmentstore.contracts.errors import SegmentStoreError

CONNECT_S: Final = 10.0
"""For the connection to each address."""
_CONNECT: Final = "sc://"
_STANDALONE: Final = "spark://"
_CONNECT_PORT: Final = 15002
_PROXIES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
"""By one of these gRPC goes to another address than the server's."""


class SparkUnreachableError(SegmentStoreError):
    """Nothing answers where Spark is said to be. The operator's move: start it, or name another."""


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
    """Raise SparkUnreachableError if the environment names addresses and none takes a connection.

    Of several masters one is enough. Takes CONNECT_S for each at most.
    """
    master = named_master(environment)
    if master.startswith(_CONNECT) and any(environment.get(name) for name in _PROXIES):
        return
    failures = []
    for host, port in addresses_of(master):
        try:
            with socket.create_connection((host, port), timeout=CONNECT_S):
                return
        except OSError as error:
            failures.append(f"{host}:{port}: {error.strerror or error}")
    if failures:
        kind = "Connect server" if master.startswith(_CONNECT) else "master"
        raise SparkUnreachableError(
            f"no {kind} of Spark answers ({'; '.join(failures)}): start it, or name another by "
            "--master"
        )


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
