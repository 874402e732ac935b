"""The connections of a client: botocore's, but with time of its own for a body to be taken.

urllib3 has one timeout for all that happens before a reply is awaited: that of connecting. It holds
while the body is sent, also on a connection that is used again, for each buffer as a whole. A few
seconds, which find a dead endpoint soon, are too few for a buffer on a slow line. The upload would
be begun again and again, and never end.

botocore has no setting for it, and no public name for where its connections come from.
"""

from __future__ import annotations

from typing import Any, Final

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)

SEND_TIMEOUT_S: Final = 60
"""For the server to take one buffer of a body."""


class _PlainConnection(AWSHTTPConnection):
    def send(self, data: Any) -> None:
        # The first one, the head, opens the connection.
        if self.sock is not None:
            self.sock.settimeout(SEND_TIMEOUT_S)
        super().send(data)


class _SecureConnection(AWSHTTPSConnection):
    def send(self, data: Any) -> None:
        if self.sock is not None:
            self.sock.settimeout(SEND_TIMEOUT_S)
        super().send(data)


class _PlainPool(AWSHTTPConnectionPool):
    ConnectionCls: type[AWSHTTPConnection] = _PlainConnection


class _SecurePool(AWSHTTPSConnectionPool):
    ConnectionCls: type[AWSHTTPSConnection] = _SecureConnection


def set_send_timeout(client: Any) -> None:
    """Have the connections of a client wait for SEND_TIMEOUT_S while they send.

    For a client that has sent nothing yet.
    """
    client._endpoint.http_session._pool_classes_by_scheme.update(http=_PlainPool, https=_SecurePool)
