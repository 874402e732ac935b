"""The boto3 client: how it is set up, and how what it raises becomes our errors. Runs in threads.

Rules of this file, the only one that touches boto3:

- the client never tries twice: whether a request took effect must be seen by who sent it;
- checksums are ours: CRC32C of each body, computed here and checked by the provider;
- credentials come from boto3's own chain. A client whose credentials were refused is thrown away, and the next request
  looks for new ones: a store that runs for months outlives its keys.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final, TypeVar

import boto3
from botocore import exceptions as boto
from botocore.config import Config
from botocore.loaders import Loader, create_loader
from botocore.parsers import ResponseParserError
from botocore.session import get_session
from urllib3.exceptions import HTTPError

from segmentstore.contracts.checksum import Buffer, crc32c_parts
from segmentstore.contracts.runtime import Runtime
from tier2.object_storage import ObjectStorageError
from tier2.s3.s3_errors import S3RefusedError, error_of
from tier2.s3.s3_location import S3Location

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

CONNECT_TIMEOUT_S: Final = 5
READ_TIMEOUT_S: Final = 60
"""Between two arrivals of bytes, not of a whole request."""

NEW_CLIENT_MS: Final = 5000
"""A client whose credentials were refused is kept at least so long."""

JOIN_BYTES: Final = 1024 * 1024
"""A body of many buffers up to this size is copied into one: cheaper than a system call for each."""
PIECE_BYTES: Final = 1024 * 1024

_T = TypeVar("_T")


class ClientHolder:
    """The client of one location, made when it is first needed and again after its credentials were refused."""

    def __init__(self, location: S3Location, runtime: Runtime) -> None:
        self._location = location
        self._clock = runtime.clock
        self._lock = runtime.lock()
        self._client: S3Client | None = None
        self._made_ms = 0
        self.clients_made = 0

    def call(self, name: str, call: str, work: Callable[[S3Client], _T]) -> _T:
        """Run `work`, which makes the one request `call` about `name`; what it raises is an ObjectStorageError."""
        client: S3Client | None = None
        try:
            client = self._get()
            return work(client)
        except (boto.BotoCoreError, boto.ClientError, HTTPError, OSError, *_ODD_REPLY) as error:
            ours = self._translated(name, call, error)
            if client is not None and isinstance(ours, S3RefusedError) and ours.credentials:
                self._drop(client)
            raise ours from error

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _get(self) -> S3Client:
        with self._lock:
            if self._client is None:
                try:
                    self._client = make_client(self._location)
                except ValueError as error:
                    raise boto.InvalidConfigError(error_msg=str(error)) from error
                self._made_ms = self._clock.time_ms()
                self.clients_made += 1
            return self._client

    def _drop(self, client: S3Client) -> None:
        with self._lock:
            # Making one takes a tenth of a second: not for each of many requests that are refused together.
            if self._client is not client or abs(self._clock.time_ms() - self._made_ms) < NEW_CLIENT_MS:
                return
            self._client = None
        # Only idle connections are closed; threads in the middle of a request keep theirs until its end.
        client.close()

    def _translated(self, name: str, call: str, error: Exception) -> ObjectStorageError:
        code, status, detail = taken_apart(error)
        return error_of(name, call, self._location.bucket, code, status, detail)


@cache
def _loader(data_path: str | None) -> Loader:
    """What S3's model was read and parsed by: that takes six times as long as all else of a client, so it is kept in the process."""
    return create_loader(data_path)


def make_client(location: S3Location) -> S3Client:
    """A client as this engine wants it; a session of its own, for boto3's shared one is not safe among threads.

    Some 150 ms of CPU in a process's first, 12 ms in each later one.
    """
    core = get_session()
    session = boto3.session.Session(botocore_session=core)
    # Behind boto3, which adds a path to the loader of each session.
    core.register_component("data_loader", _loader(core.get_config_variable("data_path")))
    region = location.region or session.region_name or "us-east-1"
    return session.client(
        "s3",
        region_name=region,
        endpoint_url=location.endpoint_url,
        config=Config(
            signature_version="s3v4",
            retries={"total_max_attempts": 1, "mode": "standard"},
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            max_pool_connections=location.connections,
            tcp_keepalive=True,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={
                "addressing_style": location.addressing,
                "payload_signing_enabled": location.payload_signing and not location.secure,
            },
        ),
    )


def taken_apart(error: Exception) -> tuple[str, int | None, str]:
    """Code, state of the reply if there was one, and message of what boto3 or the network raised."""
    if isinstance(error, boto.ClientError):
        answer = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return str(answer.get("Code", "")), status, str(answer.get("Message", ""))
    detail = str(error)
    for kinds, code in _KINDS:
        if isinstance(error, kinds):
            torn = code == "certificate" and "CERTIFICATE_VERIFY_FAILED" not in detail
            return "connection" if torn else code, None, detail
    return type(error).__name__, None, detail


_ODD_REPLY: Final = (ResponseParserError, LookupError, ValueError, TypeError, AttributeError)
"""What boto3 stumbles with over a reply that no provider means: cut XML, a time or a number that is none, a part that lacks."""

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
    """Buffers one behind another as a body that boto3 can send, and rewind, without copying them.

    `read` gives the rest of the buffer it is at, up to PIECE_BYTES, whatever count is asked for: http clients ask for
    16 KiB at a time, and a system call for so little costs more than the copying that is saved.
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
    if len(filled) == 1 and not isinstance(filled[0], memoryview):
        return filled[0]
    if sum(map(len, filled)) <= JOIN_BYTES:
        return b"".join(filled)
    return PartsBody(filled)


def checksum_of(parts: Sequence[Buffer]) -> str:
    """CRC32C of the concatenation of `parts` as S3 writes it: base64 of four bytes."""
    return base64.b64encode(crc32c_parts(parts).to_bytes(4, "big")).decode("ascii")
