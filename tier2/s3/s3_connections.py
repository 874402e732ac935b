"""The connections of a client: botocore's, but with time of its own for a body to be taken, and a
bound for a whole reply where one is asked for.

urllib3 has one timeout for all that happens before a reply is awaited: that of connecting. It holds
while the body is sent, also on a connection that is used again, for each buffer as a whole. A few
seconds, which find a dead endpoint soon, are too few for a buffer on a slow line. The upload would
be begun again and again, and never end.

The timeout of a read is between two arrivals of bytes. A reply that trickles never meets it.

botocore has no setting for either, and no public name for where its connections come from.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from http.client import HTTPResponse
from socket import socket
from typing import Any, Final

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)

SEND_TIMEOUT_S: Final = 60
"""For the server to take one buffer of a body."""


_LEFT_S: ContextVar[Callable[[], Callable[[], float]] | None] = ContextVar("_LEFT_S", default=None)
"""Begins the time of a reply that this thread is about to read; what it gives says how much is
left.
"""


@contextmanager
def whole_within(seconds: float, now: Callable[[], float]) -> Iterator[None]:
    """Each reply that this thread reads meanwhile has so many seconds, from when it is awaited to
    its end. Then it ends as by the timeout of its socket.
    """

    def begin() -> Callable[[], float]:
        until_s = now() + seconds
        return lambda: until_s - now()

    token = _LEFT_S.set(begin)
    try:
        yield
    finally:
        _LEFT_S.reset(token)


class _BoundedReader(io.RawIOBase):
    """The bytes of a reply, as long as there is time left."""

    def __init__(self, sock: socket, left_s: Callable[[], float]) -> None:
        super().__init__()
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._left_s = left_s
        self._timeout_s = sock.gettimeout()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._left_s()
        if left_s <= 0:
            raise TimeoutError
        timeout_s = self._timeout_s
        self._sock.settimeout(left_s if timeout_s is None else min(timeout_s, left_s))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _BoundedReply(HTTPResponse):
    def __init__(
        self, sock: socket, *args: Any, left_s: Callable[[], float], **kwargs: Any
    ) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self.fp = io.BufferedReader(_BoundedReader(sock, left_s))


def _bound_reply(connection: Any) -> None:
    """Before it is read. What answers before the body was sent keeps its own class."""
    begin = _LEFT_S.get()
    if begin is not None and connection.response_class is HTTPResponse:
        connection.response_class = partial(_BoundedReply, left_s=begin())


class _PlainConnection(AWSHTTPConnection):
    def getresponse(self) -> Any:
        _bound_reply(self)
        return super().getresponse()

    def send(self, data: Any) -> None:
        # The first one, the head, opens the connection.
        if self.sock is not None:
            self.sock.settimeout(SEND_TIMEOUT_S)
        super().send(data)


class _SecureConnection(AWSHTTPSConnection):
    def getresponse(self) -> Any:
        _bound_reply(self)
        return super().getresponse()

    def send(self, data: Any) -> None:
        if self.sock is not None:
            self.sock.settimeout(SEND_TIMEOUT_S)
        super().send(data)


class _PlainPool(AWSHTTPConnectionPool):
    ConnectionCls: type[AWSHTTPConnection] = _PlainConnection


class _SecurePool(AWSHTTPSConnectionPool):
    ConnectionCls: type[AWSHTTPSConnection] = _SecureConnection


def set_connections(client: Any) -> None:
    """Have the connections of a client wait for SEND_TIMEOUT_S while they send, and heed
    `whole_within`.

    For a client that has sent nothing yet.
    """
    client._endpoint.http_session._pool_classes_by_scheme.update(http=_PlainPool, https=_SecurePool)
