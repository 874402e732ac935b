"""The boto3 client: how it is set up, and how what it raises becomes our errors. Runs in threads.

Rules of this file, the only one but s3_connections.py that touches boto3 and botocore:

- the client never tries twice: the sender must see whether a request took effect;
- checksums are ours: CRC32C of each body, computed here and checked by the provider;
- credentials come from botocore's own chain. A client whose credentials were refused is thrown
  away, and the next request searches for new ones: a store that runs for months outlives its keys.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import cache
from typing import TYPE_CHECKING, Final, TypeVar, cast

from botocore import exceptions as boto
from botocore.config import Config
from botocore.loaders import Loader, create_loader
from botocore.parsers import ResponseParserError
from botocore.session import Session, get_session
from urllib3.exceptions import HTTPError

from segmentstore.contracts.checksum import Buffer, crc32c_parts
from segmentstore.contracts.runtime import Runtime
from tier2.object_storage import ObjectStorageError
from tier2.s3.s3_connections import set_connections, whole_within
from tier2.s3.s3_errors import S3RefusedError, error_of
from tier2.s3.s3_location import S3Location

if TYPE_CHECKING:
    from botocore.response import StreamingBody
    from types_boto3_s3 import S3Client

CONNECT_TIMEOUT_S: Final = 5
READ_TIMEOUT_S: Final = 60
"""Between two arrivals of bytes, not of a whole request."""

PAGE_S: Final = 120.0
"""For all of a page of a listing. One of 1,000 long keys is 1 MiB, which takes 64 s of it at the
rate of the slowest line that reads are given.
"""

CUT_S: Final = 0.001
"""The socket timeout of a reply that no caller waits for."""

NEW_CLIENT_MS: Final = 5000
"""A client whose credentials were refused is kept at least so long."""

JOIN_BYTES: Final = 1024 * 1024
"""A body of many buffers up to this size is copied into one: cheaper than a system call for
each.
"""
PIECE_BYTES: Final = 1024 * 1024

_T = TypeVar("_T")


class S3Reply:
    """What comes back on one connection: made known by the thread that reads it, so that the loop
    can end that early.
    """

    def __init__(self, asked_s: float = 0.0) -> None:
        """`asked_s` is when a thread got its request, by the clock of the loop."""
        self.asked_s = asked_s
        self.sent = False
        """The request is on its way: what is needed for that, as credentials, is there."""
        self.begun = False
        self.lost = False
        """No caller waits for it any more: another had the answer, or its reader was cancelled."""
        self._body: StreamingBody | None = None

    def begins(self, body: StreamingBody) -> None:
        """The head of the reply has come. Called in the thread."""
        self._body = body
        self.begun = True

    def give_up(self) -> None:
        """End it: no caller waits for it any more."""
        self.lost = True
        self.cut()

    def cut(self) -> None:
        """End it at the next arrival of bytes, if it has begun; before that the patience of its
        socket ends it.
        """
        if self._body is not None:
            with suppress(AttributeError, OSError):
                self._body.set_socket_timeout(CUT_S)


class ClientHolder:
    """The clients of one location, one for each patience; made when they are needed, and again
    after credentials were refused.
    """

    def __init__(self, location: S3Location, runtime: Runtime) -> None:
        self._location = location
        self._clock = runtime.clock
        self._lock = runtime.lock()
        self._thread = threading.local()
        self._maker: ClientMaker | None = None
        self._clients: dict[int, S3Client] = {}
        self._created_ms = 0
        self.clients_created = 0

    def call(
        self,
        name: str,
        call: str,
        work: Callable[[S3Client], _T],
        timeout_s: int = READ_TIMEOUT_S,
        reply: S3Reply | None = None,
        *,
        now: Callable[[], float] | None = None,
    ) -> _T:
        """Run `work`, which makes the one request `call` about `name`; what it raises is an
        ObjectStorageError.

        Its connection is given up when nothing came for `timeout_s`. `reply` is notified when it is
        sent. With `now`, the time of a loop, the whole reply has PAGE_S.
        """
        client: S3Client | None = None
        self._thread.reply = reply
        try:
            client = self._get(timeout_s)
            with nullcontext() if now is None else whole_within(PAGE_S, now):
                return work(client)
        except _EXPECTED as error:
            ours = self._translated(name, call, error)
            if client is not None and isinstance(ours, S3RefusedError) and ours.credentials:
                self._drop(client)
            raise ours from error

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _get(self, timeout_s: int) -> S3Client:
        with self._lock:
            client = self._clients.get(timeout_s)
            if client is None:
                try:
                    if self._maker is None or not self._clients:
                        # One for all clients: credentials are searched for once.
                        self._maker = ClientMaker(self._location)
                        self._created_ms = self._clock.time_ms()
                    client = self._maker.make(timeout_s)
                    client.meta.events.register("before-send.s3", self._sends)
                    self._clients[timeout_s] = client
                except ValueError as error:
                    raise boto.InvalidConfigError(error_msg=str(error)) from error
                self.clients_created += 1
            return client

    def _sends(self, **_: object) -> None:
        """Called by botocore in the thread, behind the search for credentials."""
        reply: S3Reply | None = self._thread.reply
        if reply is not None:
            reply.sent = True

    def _drop(self, client: S3Client) -> None:
        with self._lock:
            # Making one takes a tenth of a second: not for each of many requests that are refused
            # together.
            is_ours = client in self._clients.values()
            if not is_ours or abs(self._clock.time_ms() - self._created_ms) < NEW_CLIENT_MS:
                return
            clients, self._clients = self._clients, {}
        # Only idle connections are closed; threads in the middle of a request keep theirs until its
        # end.
        for each in clients.values():
            each.close()

    def _translated(self, name: str, call: str, error: Exception) -> ObjectStorageError:
        code, status, detail = taken_apart(error)
        return error_of(name, call, self._location.bucket, code, status, detail)


@cache
def _loader(data_path: str | None) -> Loader:
    """What S3's model was read and parsed by: that takes six times as long as all else of a client,
    so it is kept in the process.
    """
    return create_loader(data_path)


class ClientMaker:
    """Makes the clients of one location, of a session of their own.

    Not safe among threads, as botocore's sessions are not.
    """

    def __init__(self, location: S3Location) -> None:
        self._location = location
        core = get_session()
        self._create = _client_maker(core)
        # Behind boto3, which adds a path to the loader of each session.
        core.register_component("data_loader", _loader(core.get_config_variable("data_path")))
        self._region = location.region or core.get_config_variable("region") or "us-east-1"

    def make(self, timeout_s: int = READ_TIMEOUT_S) -> S3Client:
        """A client as this engine wants it, which waits for bytes for `timeout_s`.

        Some 150 ms of CPU in a process's first, 12 ms in each later one.
        """
        client = self._client_for(timeout_s, secure=self._location.secure)
        if self._location.secure and client.meta.endpoint_url.startswith("http://"):
            # The environment, or a profile, names another endpoint than Amazon's.
            client.close()
            client = self._client_for(timeout_s, secure=False)
        return client

    def _client_for(self, timeout_s: int, *, secure: bool) -> S3Client:
        location = self._location
        client = self._create(
            "s3",
            region_name=self._region,
            endpoint_url=location.endpoint_url,
            config=Config(
                signature_version="s3v4",
                retries={"total_max_attempts": 1, "mode": "standard"},
                connect_timeout=CONNECT_TIMEOUT_S,
                read_timeout=timeout_s,
                max_pool_connections=location.connections + location.connections_beside,
                tcp_keepalive=True,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                s3={
                    "addressing_style": location.addressing,
                    "payload_signing_enabled": location.payload_signing and not secure,
                },
            ),
        )
        set_connections(client)
        return cast("S3Client", client)


def make_client(location: S3Location) -> S3Client:
    """A client as this engine wants it, of a session of its own: a shared one is not safe among
    threads.
    """
    return ClientMaker(location).make()


def _client_maker(core: Session) -> Callable[..., object]:
    """What makes clients in a session: boto3, or botocore alone where boto3 is not installed.

    An environment with aiobotocore (s3fs) pins botocore to versions that few releases of boto3 fit.
    """
    try:
        import boto3  # noqa: PLC0415
    except ModuleNotFoundError:
        return core.create_client
    return boto3.session.Session(botocore_session=core).client


def taken_apart(error: Exception) -> tuple[str, int | None, str]:
    """Code, state of the reply if there was one, and message of what botocore or the network
    raised.
    """
    if isinstance(error, boto.ClientError):
        answer = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return str(answer.get("Code", "")), status, str(answer.get("Message", ""))
    detail = str(error)
    if isinstance(error, RuntimeError) and _STILL_EXPIRED in detail:
        return "credentials", None, detail
    for kinds, code in _KINDS:
        if isinstance(error, kinds):
            torn = code == "certificate" and "CERTIFICATE_VERIFY_FAILED" not in detail
            return "connection" if torn else code, None, detail
    return type(error).__name__, None, detail


_ODD_REPLY: Final = (
    ResponseParserError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    RuntimeError,
)
"""What botocore stumbles with over a reply that no provider means: cut XML, a time or a number that
is none, a part that lacks.
"""
_EXPECTED: Final = (boto.BotoCoreError, boto.ClientError, HTTPError, OSError, *_ODD_REPLY)

_STILL_EXPIRED: Final = "refreshed credentials are still expired"
"""Said by botocore in a plain RuntimeError, where a program or a role gives what has expired."""

_KINDS: Final[tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...]] = (
    ((boto.NoCredentialsError, boto.PartialCredentialsError), "no-credentials"),
    (
        (
            boto.CredentialRetrievalError,
            boto.TokenRetrievalError,
            boto.UnauthorizedSSOTokenError,
            boto.SSOError,
            boto.NoAuthTokenError,
            boto.MetadataRetrievalError,
        ),
        "credentials",
    ),
    (boto.SSLError, "certificate"),
    ((boto.ReadTimeoutError, boto.ConnectTimeoutError), "timeout"),
    ((boto.IncompleteReadError, boto.ResponseStreamingError), "truncated"),
    (
        (
            boto.ProfileNotFound,
            boto.ConfigParseError,
            boto.ConfigNotFound,
            boto.InvalidConfigError,
            boto.EndpointProviderError,
            boto.ParamValidationError,
            boto.InvalidRegionError,
            boto.NoRegionError,
        ),
        "client",
    ),
    ((boto.ConnectionError, boto.HTTPClientError, HTTPError, OSError), "connection"),
    (_ODD_REPLY, "odd-reply"),
)
"""By the first that fits."""


class PartsBody:
    """Buffers one behind another as a body that botocore can send, and rewind, without copying
    them.

    `read` gives the rest of the buffer it is at, up to PIECE_BYTES, whatever count is asked for.
    Http clients ask for 16 KiB at a time, and a system call for so little costs more than the
    copying that is saved.
    """

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self._parts = [memoryview(part).cast("B") for part in parts if len(part)]
        self._size = sum(map(len, self._parts))
        self._at = 0
        self._pieces = self._from(0)

    def __len__(self) -> int:
        return self._size

    def read(self, count: int | None = None) -> Buffer:
        """The next piece; all that is left without a count; nothing at the end."""
        if count is None or count < 0:
            rest = b"".join(self._pieces)
            self._at = self._size
            return rest
        piece = next(self._pieces, b"")
        self._at += len(piece)
        return piece

    def seek(self, offset: int, whence: int = 0) -> int:
        """As of a file."""
        self._at = max(0, min(self._size, offset + (0, self._at, self._size)[whence]))
        self._pieces = self._from(self._at)
        return self._at

    def tell(self) -> int:
        """As of a file."""
        return self._at

    def release(self) -> None:
        """Drop the buffers: botocore's request is part of a cycle, and collected much later."""
        self._parts, self._pieces = [], iter(())

    def _from(self, skip: int) -> Iterator[memoryview]:
        for part in self._parts:
            if skip >= len(part):
                skip -= len(part)
                continue
            for start in range(skip, len(part), PIECE_BYTES):
                yield part[start : start + PIECE_BYTES]
            skip = 0


def body_of(parts: Sequence[Buffer]) -> bytes | bytearray | PartsBody:
    """The cheapest body of the concatenation of `parts`."""
    filled = [part for part in parts if len(part)]
    if sum(map(len, filled)) > JOIN_BYTES:
        return PartsBody(filled)
    if len(filled) == 1 and not isinstance(filled[0], memoryview):
        return filled[0]
    return b"".join(filled)


def read_body(body: StreamingBody, bytes_max: int) -> bytes:
    """All of a reply's body; one byte more than `bytes_max` of one that is longer."""
    data = body.read(bytes_max + 1)
    if len(data) <= bytes_max:
        body.read(1)  # Only its end is compared with the length that it was to have.
    return data


def checksum_of(parts: Sequence[Buffer]) -> str:
    """CRC32C of the concatenation of `parts` as S3 writes it: base64 of four bytes."""
    return base64.b64encode(crc32c_parts(parts).to_bytes(4, "big")).decode("ascii")
