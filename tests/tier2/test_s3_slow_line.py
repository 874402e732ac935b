"""A line that is slow: bodies have other time than the opening of a connection."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recovery.harness.services.s3_servers import credentials
from tests.store.certificates import make_certificates
from tier2.s3 import s3_client
from tier2.s3.s3_calls import Where, put_object
from tier2.s3.s3_client import PIECE_BYTES, make_client
from tier2.s3.s3_location import parse_s3_url

CONNECT_S = 0.5
LATE_S = 2 * CONNECT_S
BODY = [bytes(PIECE_BYTES)] * 16
"""More than the buffers of both sockets hold."""
REPLY = b'HTTP/1.1 200 OK\r\nETag: "x"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n'


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in credentials().items():
        monkeypatch.setenv(key, value)


@contextmanager
def late_server(
    wrap: Callable[[socket.socket], socket.socket] = lambda plain: plain,
) -> Iterator[tuple[int, list[int]]]:
    """It takes the head of one request, and its body later: its port, and how much came."""
    came: list[int] = []
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            with wrap(listener.accept()[0]) as connection:
                data = b""
                while b"\r\n\r\n" not in data:
                    data += connection.recv(1024)
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                select.select([], [], [], LATE_S)
                left = sum(map(len, BODY)) - len(data.split(b"\r\n\r\n", 1)[1])
                while left and (more := connection.recv(PIECE_BYTES)):
                    left -= len(more)
                came.append(sum(map(len, BODY)) - left)
                connection.sendall(REPLY)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1], came
        finally:
            thread.join()


def put(endpoint_url: str) -> None:
    client = make_client(parse_s3_url(f"s3://bucket/prefix?endpoint_url={endpoint_url}"))
    try:
        put_object(Where("x", "bucket", "prefix/x"), BODY, bytes(16), conditional=True)(client)
    finally:
        client.close()


def test_a_body_may_take_longer_than_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_client, "CONNECT_TIMEOUT_S", CONNECT_S)
    with late_server() as (port, came):
        put(f"http://127.0.0.1:{port}")
    assert came == [sum(map(len, BODY))]


def test_so_it_may_over_tls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_certificates(tmp_path / "keys")
    monkeypatch.setattr(s3_client, "CONNECT_TIMEOUT_S", CONNECT_S)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "keys" / "ca.crt"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "keys" / "server.pem")
    with late_server(lambda plain: context.wrap_socket(plain, server_side=True)) as (port, came):
        put(f"https://127.0.0.1:{port}")
    assert came == [sum(map(len, BODY))]
