"""Listings of S3 as Arrow tables, by obstore: botocore spends its time taking replies apart, and
lists 17 times slower.

Rules of this file, the only one that touches obstore:

- what to speak to and with which credentials is what botocore finds, so that a job sees the store
  the engine sees;
- a page for logging in is an empty listing to obstore, and a page that lost the place of the next
  one is the last. So botocore is asked behind the end, whose answers are checked. What it finds
  there follows;
- keys that obstore refuses (an empty part, `.` or `..`) or shows as others (it takes slashes off
  both ends) are no names of ours, and are to be seen. A prefix with such keys in it is listed on
  from there by botocore, slower, and each as it is;
- errors are those of the S3 adapter.

Blocking. A store made here is kept for the process: making one takes a tenth of a second.
"""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

import botocore.session
import obstore
import pyarrow as pa
import pyarrow.compute as pc
from botocore import exceptions as boto
from obstore import exceptions as obs
from obstore.store import S3Store

from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.runtime import Runtime
from tier2.object_names import is_name_part
from tier2.object_storage import (
    ObjectNotFoundError,
    ObjectStorageError,
    StorageRefusedError,
    StorageUnavailableError,
    StoredObject,
)
from tier2.s3.s3_calls import list_level, list_objects
from tier2.s3.s3_client import (
    CONNECT_TIMEOUT_S,
    READ_TIMEOUT_S,
    ClientHolder,
    make_client,
    taken_apart,
)
from tier2.s3.s3_errors import error_of
from tier2.s3.s3_location import S3Location, parse_s3_url
from tier2.spark.reconcile.listing_table import LISTING, TABLE_ROWS, listing_table

if TYPE_CHECKING:
    from obstore.store import S3Credential
    from types_boto3_s3 import S3Client

CREDENTIALS_FOR_S: Final = 900
"""After so long botocore is asked again; it renews what expires within ten minutes."""
RETRIES: Final = 5
"""Of one request, with waits that double."""
CALL: Final = "ListObjectsV2"
PAGE_KEYS: Final = 1000
"""Of one reply to botocore; more no store gives."""

_DELAY_MIN_S: Final = 0.1
_DELAY_MAX_S: Final = 5.0
_T = TypeVar("_T")

_MAKING: Final = Runtime().lock()

_CODE = re.compile(r"<Code>([A-Za-z0-9]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_STATUS = re.compile(r"status code: ([0-9]{3})")
_VIRTUAL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
"""Buckets that can be the first part of a host's name, under a certificate too."""
_VIRTUAL_OVER_HTTP = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def list_prefix(url: str, prefix: str) -> Iterator[pa.Table]:
    """LISTING of the keys below `prefix`, which ends in a slash; by key.

    Raises ConfigError, ObjectStorageError.
    """
    location = parse_s3_url(url)
    last = ""
    if is_name_part(prefix[:-1]):
        try:
            for batch in obstore.list(
                s3_store(location), prefix, chunk_size=TABLE_ROWS, return_arrow=True
            ):
                table = _listing(pa.table(batch))
                if _is_perhaps_trimmed(table, prefix):
                    break
                check_order(prefix, last, table["key"])
                if table.num_rows:
                    yield table
                    last = table["key"][-1].as_py() or ""
        except obs.InvalidPathError:
            pass
        except _ERRORS as error:
            raise _translated(location, prefix, error) from error
    yield from _list_exactly(location, prefix, last)


def list_top(url: str, is_known_prefix: Callable[[str], bool]) -> Iterator[pa.Table]:
    """LISTING of all but what is below a known prefix; the top is checked with a delimiter.

    Raises as `list_prefix`.
    """
    location = parse_s3_url(url)
    table, prefixes = _top(location)
    if table.num_rows:
        yield table
    for prefix in prefixes:
        if not is_known_prefix(prefix):
            yield from list_prefix(url, prefix)


def check_order(prefix: str, last: str, keys: pa.ChunkedArray[Any]) -> None:
    """Raise StorageUnavailableError unless the keys come one behind another, and behind `last`."""
    every = pa.concat_arrays([pa.array([last], pa.string()), *keys.cast(pa.string()).chunks])
    if not pc.all(pc.less(every[:-1], every[1:]), min_count=0).as_py():
        raise StorageUnavailableError(
            prefix, f"{CALL}: keys came that are not behind those before", "odd-listing"
        )


def _is_perhaps_trimmed(table: pa.Table, prefix: str) -> bool:
    """Whether a slash may be missing at the end of a key: what is a folder to a console is an
    object of no bytes, as none of ours.
    """
    begins = pc.starts_with(table["key"], prefix)
    return not pc.all(pc.and_(begins, pc.greater(table["size"], pa.scalar(0))), min_count=0).as_py()


def _list_exactly(location: S3Location, prefix: str, last: str) -> Iterator[pa.Table]:
    """As `list_prefix`, of keys behind `last`."""
    under = location.prefix
    after = f"{under}{last}" if last else ""
    more, token = True, ""
    while more:
        work = list_objects(location.bucket, under + prefix, after, PAGE_KEYS, token)
        objects, more, token = _asked(location, prefix, work)
        if objects:
            yield listing_table(
                [StoredObject(key[len(under) :], size, ms) for key, size, ms in objects]
            )
            after = objects[-1][0]


def _top(location: S3Location) -> tuple[pa.Table, list[str]]:
    """Objects and prefixes at the top.

    A key that is the prefix of the store's URL is the store's own folder, and no object in it.
    """
    under = location.prefix
    objects: list[StoredObject] = []
    prefixes: list[str] = []
    token = behind = ""
    while True:
        work = list_level(location.bucket, under, token, behind)
        found, more, token, behind = _asked(location, "", work)
        objects += [
            StoredObject(key[len(under) :], size, ms) for key, size, ms in found if key != under
        ]
        prefixes += [prefix[len(under) :] for prefix in more]
        if not token:
            return listing_table(objects), prefixes


def _asked(location: S3Location, prefix: str, work: Callable[[S3Client], _T]) -> _T:
    """What one request of botocore's gives; as often as obstore asks, while there is no answer."""
    holder = _holder(location)
    runtime = Runtime()

    async def ask() -> _T:
        backoff = Backoff(runtime.random, min_s=_DELAY_MIN_S, max_s=_DELAY_MAX_S)
        now = asyncio.get_running_loop().time
        for _ in range(RETRIES):
            try:
                return holder.call(prefix, CALL, work, now=now)
            except StorageRefusedError:
                raise
            except StorageUnavailableError:
                await asyncio.sleep(backoff.next_s())
        return holder.call(prefix, CALL, work, now=now)

    return asyncio.run(ask())


def _holder(location: S3Location) -> ClientHolder:
    with _MAKING:
        return kept_holder(location)


@lru_cache(maxsize=8)
def kept_holder(location: S3Location) -> ClientHolder:
    """botocore's clients of a place, by one thread at a time."""
    return ClientHolder(location, Runtime())


def keys_below(url: str) -> list[str]:
    """Keys of a bucket below `s3://bucket/folder?...`, whole, sorted.

    For the few files of an inventory.
    """
    location, folder = _bucket_and_key(url)
    prefix = f"{folder.rstrip('/')}/"
    try:
        found: list[str] = []
        for batch in obstore.list(s3_store(location), prefix, return_arrow=True):
            keys: list[Any] = pa.table(batch)["path"].to_pylist()
            found += keys
    except _ERRORS as error:
        raise _translated(location, prefix, error) from error
    return sorted(found)


class _Readable(io.RawIOBase):
    """A reader of obstore as Python's files are."""

    def __init__(self, reader: obstore.ReadableFile) -> None:
        super().__init__()
        self._reader = reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._reader.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._reader.seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        return bytes(self._reader.read(size) if size >= 0 else self._reader.readall())


def open_key(url: str) -> io.RawIOBase:
    """The object `s3://bucket/key?...` as a file that can be sought in. Raises as `list_prefix`."""
    location, key = _bucket_and_key(url)
    try:
        return _Readable(obstore.open_reader(s3_store(location), key))
    except FileNotFoundError as error:
        raise ObjectNotFoundError(key, f"no such object in bucket {location.bucket}") from error
    except _ERRORS as error:
        raise _translated(location, key, error) from error


def _bucket_and_key(url: str) -> tuple[S3Location, str]:
    """A location without a prefix: keys of others have characters that no prefix of ours has."""
    parts = urlsplit(url)
    location = parse_s3_url(urlunsplit(parts._replace(path="")))
    return location, unquote(parts.path).lstrip("/")


def s3_store(location: S3Location) -> S3Store:
    """Speaks to where botocore would, with the credentials that botocore's chain finds.

    For any thread; kept.
    """
    with _MAKING:  # Many threads ask at once, and each would make one.
        return kept_store(location)


@lru_cache(maxsize=8)
def kept_store(location: S3Location) -> S3Store:
    """As `s3_store`, by one thread at a time."""
    client = make_client(location)
    try:
        endpoint, region = client.meta.endpoint_url, client.meta.region_name
    finally:
        client.close()
    credentials = botocore.session.get_session().get_credentials()
    if credentials is None:
        raise boto.NoCredentialsError
    clock = Runtime().clock

    def find() -> S3Credential:
        frozen = credentials.get_frozen_credentials()
        if frozen.access_key is None or frozen.secret_key is None:
            raise boto.NoCredentialsError
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.fromtimestamp(clock.time_ms() / 1000 + CREDENTIALS_FOR_S, UTC),
        }

    find()
    virtual = _is_virtual(location, endpoint)
    return S3Store(
        location.bucket,
        prefix=location.prefix or None,
        config={
            # Every one of these would be taken from the environment otherwise, where botocore may
            # see something else.
            "endpoint": _with_bucket(endpoint, location.bucket) if virtual else endpoint,
            "region": region,
            "virtual_hosted_style_request": virtual,
            "skip_signature": False,
            "s3_express": False,
        },
        client_options={
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
            "timeout": f"{READ_TIMEOUT_S}s",
        },
        retry_config={"max_retries": RETRIES},
        credential_provider=find,
    )


def _is_virtual(location: S3Location, endpoint: str) -> bool:
    """Whether the bucket is in the host's name: botocore falls back to the path where it cannot
    be.
    """
    host = urlsplit(endpoint).hostname or ""
    try:
        ip_address(host)
    except ValueError:
        named = _VIRTUAL_OVER_HTTP if endpoint.startswith("http://") else _VIRTUAL
        return location.addressing == "virtual" and named.fullmatch(location.bucket) is not None
    return False


def _with_bucket(endpoint: str, bucket: str) -> str:
    parts = urlsplit(endpoint)
    return urlunsplit(parts._replace(netloc=f"{bucket}.{parts.netloc}"))


def _listing(found: pa.Table) -> pa.Table:
    times = found["last_modified"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    columns = {
        "key": found["path"],
        "size": found["size"],
        "modified_ms": times,
        "etag": found["e_tag"],
    }
    return pa.table(
        {field.name: columns[field.name].cast(field.type) for field in LISTING}, schema=LISTING
    )


def _translated(location: S3Location, prefix: str, error: Exception) -> ObjectStorageError:
    """What a failed listing means.

    The message of obstore holds the reply, and a dump of its own state behind it.
    """
    if isinstance(error, boto.BotoCoreError):
        code, status, detail = taken_apart(error)
    else:
        said = str(error).partition("\n\nDebug source")[0]
        found_code, found_status, found_message = (
            each.search(said) for each in (_CODE, _STATUS, _MESSAGE)
        )
        status = int(found_status[1]) if found_status else None
        code = found_code[1] if found_code else str(status or "connection")
        detail = found_message[1] if found_message else said
    return error_of(prefix, CALL, location.bucket, code, status, detail)


_ERRORS: Final = (obs.BaseError, FileNotFoundError, OSError, boto.BotoCoreError)
