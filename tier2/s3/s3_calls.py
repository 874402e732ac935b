"""The single calls of S3 that the adapter uses: how each is asked, and how its answer is checked.

Run in threads.

Each function makes what S3Requests.send runs. They raise botocore's exceptions, translated by their
runner. They raise our own for answers that botocore takes for good: a body that is too short, a
range that is not the requested one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

from segmentstore.contracts.checksum import Buffer
from tier2.object_storage import (
    NO_METADATA,
    InvalidRangeError,
    StorageUnavailableError,
    StoredObject,
    UnfinishedUpload,
    WholeObject,
)
from tier2.s3.s3_client import PartsBody, S3Reply, body_of, checksum_of, read_body

if TYPE_CHECKING:
    from datetime import datetime

    from types_boto3_s3 import S3Client
    from types_boto3_s3.type_defs import (
        CompletedPartTypeDef,
        CompleteMultipartUploadOutputTypeDef,
        GetObjectOutputTypeDef,
        PutObjectOutputTypeDef,
    )

UNIQUE_ID_KEY: Final = "unique-id"
"""Of the object's metadata (header x-amz-meta-unique-id): 32 hex digits."""

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,20})-([0-9]{1,20})/([0-9]{1,20}|\*)")


class SeenObject(NamedTuple):
    """An object that is there, and the unique id it was put with (empty: not one of ours)."""

    stored: StoredObject
    unique_id: str


class Where(NamedTuple):
    """An object's name, with the bucket and key it is kept under."""

    name: str
    bucket: str
    key: str


class _Condition(TypedDict, total=False):
    IfNoneMatch: str


def if_absent(*, conditional: bool) -> _Condition:
    """The condition of a put-if-absent; nothing where conditions are emulated."""
    return {"IfNoneMatch": "*"} if conditional else {}


def put_object(
    where: Where,
    parts: Sequence[Buffer],
    unique_id: bytes,
    metadata: Mapping[str, str] = NO_METADATA,
    *,
    conditional: bool,
) -> Callable[[S3Client], None]:
    """One object in one request."""

    def work(client: S3Client) -> None:
        reply = client.put_object(
            Bucket=where.bucket,
            Key=where.key,
            Body=body_of(parts),  # type: ignore[arg-type]
            ChecksumCRC32C=checksum_of(parts),
            Metadata={**metadata, UNIQUE_ID_KEY: unique_id.hex()},
            **if_absent(conditional=conditional),
        )
        _check_stored(reply)

    return work


def get_object(
    where: Where, offset: int, length: int, coming: S3Reply | None = None
) -> Callable[[S3Client], bytes]:
    """Exactly these bytes, or an error. `coming` is called when they begin to come."""

    def work(client: S3Client) -> bytes:
        reply = client.get_object(
            Bucket=where.bucket, Key=where.key, Range=f"bytes={offset}-{offset + length - 1}"
        )
        body = reply["Body"]
        if coming is not None:
            coming.begins(body)
        try:
            _check_range(where.name, reply, offset, length)
            data = read_body(body, length)
        finally:
            body.close()
        if len(data) != length:
            came = "more" if len(data) > length else f"{len(data)}"
            raise StorageUnavailableError(
                where.name,
                f"GetObject: {came} bytes came where {length} were due",
                "wrong-range" if len(data) > length else "truncated",
            )
        return data

    return work


def get_whole_object(where: Where, bytes_max: int) -> Callable[[S3Client], WholeObject]:
    """All of an object of at most `bytes_max`, and its metadata; InvalidRangeError for a larger
    one.
    """

    def work(client: S3Client) -> WholeObject:
        # A range that reaches beyond the end is answered with what there is.
        reply = client.get_object(
            Bucket=where.bucket, Key=where.key, Range=f"bytes=0-{bytes_max - 1}"
        )
        body = reply["Body"]
        try:
            data = read_body(body, bytes_max)
        finally:
            body.close()
        match = _CONTENT_RANGE.fullmatch(reply.get("ContentRange") or "")
        size = int(match[3]) if match is not None and match[3] != "*" else len(data)
        if size > bytes_max:
            raise InvalidRangeError(where.name, f"{size} bytes are more than {bytes_max}")
        if len(data) != size:
            raise StorageUnavailableError(
                where.name, f"GetObject: {len(data)} bytes came of {size}", "truncated"
            )
        return WholeObject(data, _metadata_of(reply["Metadata"]))

    return work


def _metadata_of(metadata: dict[str, str]) -> Mapping[str, str]:
    # Some stores give the keys of metadata back in another case.
    return {key.lower(): value for key, value in metadata.items() if key.lower() != UNIQUE_ID_KEY}


def _check_range(name: str, reply: GetObjectOutputTypeDef, offset: int, length: int) -> None:
    shown = reply.get("ContentRange") or ""
    match = _CONTENT_RANGE.fullmatch(shown)
    if match is None:
        # A server that sends the whole object without naming the range has done right only where
        # that is the range.
        if not shown and offset == 0 and reply.get("ContentLength") == length:
            return
        raise StorageUnavailableError(
            name, f"GetObject: the range is said to be {shown[:60]!r}", "wrong-range"
        )
    first, last = int(match[1]), int(match[2])
    if (first, last) == (offset, offset + length - 1):
        return
    if match[3] != "*" and first == offset and last == int(match[3]) - 1 < offset + length - 1:
        raise InvalidRangeError(name, f"bytes {offset} to {offset + length} of {match[3]}")
    raise StorageUnavailableError(
        name,
        f"GetObject: {shown} came where bytes {offset}-{offset + length - 1} were due",
        "wrong-range",
    )


def head_object(where: Where) -> Callable[[S3Client], SeenObject]:
    """What the store knows of an object."""

    def work(client: S3Client) -> SeenObject:
        reply = client.head_object(Bucket=where.bucket, Key=where.key)
        return _seen(where, reply["ContentLength"], reply["LastModified"], reply["Metadata"])

    return work


def peek_object(where: Where) -> Callable[[S3Client], SeenObject]:
    """As head_object, by reading the first byte: an answer to a HEAD has no body and cannot say why
    it says no.
    """

    def work(client: S3Client) -> SeenObject:
        reply = client.get_object(Bucket=where.bucket, Key=where.key, Range="bytes=0-0")
        match = _CONTENT_RANGE.fullmatch(reply.get("ContentRange") or "")
        body = reply["Body"]
        if reply["ContentLength"] <= 1:
            body.read()  # Else the connection could not be used again.
        body.close()
        size = int(match[3]) if match is not None and match[3] != "*" else reply["ContentLength"]
        return _seen(where, size, reply["LastModified"], reply["Metadata"])

    return work


def _seen(where: Where, size: int, modified: datetime, metadata: dict[str, str]) -> SeenObject:
    # Some stores give the keys of metadata back in another case.
    ids = [value for key, value in metadata.items() if key.lower() == UNIQUE_ID_KEY]
    stored = StoredObject(where.name, size, milliseconds(modified), _metadata_of(metadata))
    return SeenObject(stored, ids[0].lower() if ids else "")


def delete_object(where: Where) -> Callable[[S3Client], None]:
    """Remove an object, there or not."""

    def work(client: S3Client) -> None:
        client.delete_object(Bucket=where.bucket, Key=where.key)

    return work


class Page(NamedTuple):
    """A page of a listing: keys with size and time, and whether there are more."""

    objects: Sequence[tuple[str, int, int]]
    more: bool
    token: str = ""
    """Of the next page, behind one that has no key to go on from."""


class Level(NamedTuple):
    """A page of what is right below a prefix."""

    objects: Sequence[tuple[str, int, int]]
    """Keys with size and time."""
    prefixes: Sequence[str]
    token: str
    """Of the next page; empty: there is none."""
    last: str
    """The last of all that came so far."""


_LISTING: Final = frozenset(("IsTruncated", "KeyCount", "MaxKeys", "Name"))
"""What every listing has some of."""


def list_objects(
    bucket: str, prefix: str, start_after: str, count: int, token: str = ""
) -> Callable[[S3Client], Page]:
    """Keys that begin with `prefix` and sort behind `start_after`.

    `token` is that of the page before, mostly none: a listing outlives a restart of the server.
    What would be left out, or come again for ever, is an error.
    """

    def work(client: S3Client) -> Page:
        after: Any = {"StartAfter": start_after} if start_after else {}
        if token:
            after["ContinuationToken"] = token
        reply = client.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=count, **after)
        if _LISTING.isdisjoint(reply):
            raise LookupError("the reply is no listing: it may not be the store's")
        objects = [
            (each["Key"], each["Size"], milliseconds(each["LastModified"]))
            for each in reply.get("Contents", ())
        ]
        following = reply.get("NextContinuationToken", "")
        # One that names the page behind it is not the last, whatever it says: one wrong bit makes
        # `true` another word.
        more = bool(reply.get("IsTruncated")) or bool(objects and following)
        # What was deleted in a bucket with versions can fill a page.
        page = Page(objects, more, "" if objects else following)
        _check_page(prefix, start_after, token, page)
        return page

    return work


def _check_page(prefix: str, start_after: str, token: str, page: Page) -> None:
    keys = [start_after, *(key for key, _, _ in page.objects)]
    for before, key in pairwise(keys):
        if not key.startswith(prefix):
            raise StorageUnavailableError(
                prefix, f"ListObjectsV2: {key} is not below {prefix}", "odd-listing"
            )
        if key <= before:
            raise StorageUnavailableError(
                prefix, f"ListObjectsV2: {key} came behind {before}", "odd-listing"
            )
    if page.more and not page.objects and page.token in {"", token}:
        raise StorageUnavailableError(
            prefix, "ListObjectsV2: more is said to follow, and not where", "odd-listing"
        )


def list_level(
    bucket: str, prefix: str, token: str = "", behind: str = ""
) -> Callable[[S3Client], Level]:
    """A page of what is right below `prefix`, objects and the prefixes of others.

    `token` and `behind` are of the page before: its token, and the last of what it has. Checked as
    the pages of `list_objects`.
    """

    def work(client: S3Client) -> Level:
        after: Any = {"ContinuationToken": token} if token else {}
        reply = client.list_objects_v2(Bucket=bucket, Prefix=prefix, Delimiter="/", **after)
        if _LISTING.isdisjoint(reply):
            raise LookupError("the reply is no listing: it may not be the store's")
        objects = [
            (each["Key"], each["Size"], milliseconds(each["LastModified"]))
            for each in reply.get("Contents", ())
        ]
        prefixes = [each["Prefix"] for each in reply.get("CommonPrefixes", ())]
        names = sorted((*(key for key, _, _ in objects), *prefixes))
        following: str | None = reply.get("NextContinuationToken", "")
        if not reply.get("IsTruncated") and not (names and following):
            following = None  # As in `list_objects`.
        is_odd = names and (names[0] <= behind or not all(map(_below(prefix), names)))
        if is_odd or following in {"", token}:
            raise StorageUnavailableError(
                prefix, "ListObjectsV2: it has no order, or no end", "odd-listing"
            )
        return Level(objects, prefixes, following or "", names[-1] if names else behind)

    return work


def _below(prefix: str) -> Callable[[str], bool]:
    return lambda name: name.startswith(prefix)


def begin_upload(
    where: Where,
    unique_id: bytes,
    metadata: Mapping[str, str] = NO_METADATA,
    *,
    checksummed: bool,
) -> Callable[[S3Client], str]:
    """Begin an upload in parts; its id.

    With `checksummed` every part carries a CRC32C that Complete names again.
    """

    def work(client: S3Client) -> str:
        extra: dict[str, Any] = {"ChecksumAlgorithm": "CRC32C"} if checksummed else {}
        reply = client.create_multipart_upload(
            Bucket=where.bucket,
            Key=where.key,
            Metadata={**metadata, UNIQUE_ID_KEY: unique_id.hex()},
            **extra,
        )
        return reply["UploadId"]

    return work


def put_part(
    where: Where, upload_id: str, number: int, parts: Sequence[Buffer]
) -> Callable[[S3Client], CompletedPartTypeDef]:
    """Upload part `number` >= 1 with its checksum."""

    def work(client: S3Client) -> CompletedPartTypeDef:
        nonlocal parts
        checksum = checksum_of(parts)
        body = body_of(parts)
        # The thread that runs this drops its reference after it has answered: a part must not stay
        # until then, for the next one is filled at once.
        parts = ()
        try:
            reply = client.upload_part(
                Bucket=where.bucket,
                Key=where.key,
                UploadId=upload_id,
                PartNumber=number,
                Body=body,  # type: ignore[arg-type]
                ChecksumCRC32C=checksum,
            )
        finally:
            if isinstance(body, PartsBody):
                body.release()
        return {"PartNumber": number, "ETag": reply["ETag"], "ChecksumCRC32C": checksum}

    return work


def put_plain_part(
    where: Where, upload_id: str, number: int, data: bytes, md5: str
) -> Callable[[S3Client], CompletedPartTypeDef]:
    """As put_part for an upload begun without checksums: a CRC32C would not be taken there, MD5 is
    everywhere.
    """

    def work(client: S3Client) -> CompletedPartTypeDef:
        reply = client.upload_part(
            Bucket=where.bucket,
            Key=where.key,
            UploadId=upload_id,
            PartNumber=number,
            Body=body_of([data]),  # type: ignore[arg-type]
            ContentMD5=md5,
        )
        return {"PartNumber": number, "ETag": reply["ETag"]}

    return work


def copy_part(
    where: Where, upload_id: str, number: int, source: Where, offset: int, length: int
) -> Callable[[S3Client], CompletedPartTypeDef]:
    """Part `number` >= 1 from a range of another object."""

    def work(client: S3Client) -> CompletedPartTypeDef:
        reply = client.upload_part_copy(
            Bucket=where.bucket,
            Key=where.key,
            UploadId=upload_id,
            PartNumber=number,
            CopySource={"Bucket": source.bucket, "Key": source.key},
            CopySourceRange=f"bytes={offset}-{offset + length - 1}",
        )
        return {"PartNumber": number, "ETag": reply["CopyPartResult"]["ETag"]}

    return work


def complete_upload(
    where: Where, upload_id: str, parts: Sequence[CompletedPartTypeDef], *, conditional: bool
) -> Callable[[S3Client], None]:
    """Make the parts the object."""

    def work(client: S3Client) -> None:
        reply = client.complete_multipart_upload(
            Bucket=where.bucket,
            Key=where.key,
            UploadId=upload_id,
            MultipartUpload={"Parts": parts},
            **if_absent(conditional=conditional),
        )
        _check_stored(reply)

    return work


def _check_stored(reply: PutObjectOutputTypeDef | CompleteMultipartUploadOutputTypeDef) -> None:
    # A proxy, or a page for logging in, may say 200 to anything. The log is truncated on this word.
    if not reply.get("ETag"):
        raise LookupError("the reply has no ETag: it may not be the store's")


def abort_upload(where: Where, upload_id: str) -> Callable[[S3Client], None]:
    """Throw an upload and its parts away."""

    def work(client: S3Client) -> None:
        client.abort_multipart_upload(Bucket=where.bucket, Key=where.key, UploadId=upload_id)

    return work


class UploadsPage(NamedTuple):
    """A page of a listing of uploads in parts; `name` of each is its key."""

    uploads: Sequence[UnfinishedUpload]
    following: tuple[str, str] | None
    """Key and id of the upload behind which the next page begins; None: there is none."""


def list_uploads(
    bucket: str, prefix: str, after: tuple[str, str], count: int
) -> Callable[[S3Client], UploadsPage]:
    """Uploads in parts under way, of keys that begin with `prefix`, behind `after`."""

    def work(client: S3Client) -> UploadsPage:
        named = zip(("KeyMarker", "UploadIdMarker"), after, strict=True)
        markers: Any = {name: marker for name, marker in named if marker}
        reply = client.list_multipart_uploads(
            Bucket=bucket, Prefix=prefix, MaxUploads=count, **markers
        )
        uploads = [
            UnfinishedUpload(each["Key"], each["UploadId"], milliseconds(each["Initiated"]))
            for each in reply.get("Uploads", ())
        ]
        if not reply.get("IsTruncated"):
            return UploadsPage(uploads, None)
        # The last key comes again as a whole: not every server finds the place of an upload's id.
        before = [each for each in uploads if each.name < uploads[-1].name]
        if before:
            page = UploadsPage(before, (before[-1].name, ""))
        else:
            following = reply.get("NextKeyMarker", ""), reply.get("NextUploadIdMarker", "")
            page = UploadsPage(uploads, following)
        _check_uploads(prefix, after, page)
        return page

    return work


def _check_uploads(prefix: str, after: tuple[str, str], page: UploadsPage) -> None:
    assert page.following is not None
    keys = [after[0], *(each.name for each in page.uploads), page.following[0]]
    if keys != sorted(keys) or page.following == after:
        raise StorageUnavailableError(
            prefix, "ListMultipartUploads: what is said to follow does not", "odd-listing"
        )


def milliseconds(moment: datetime) -> int:
    """Since 1970 UTC."""
    return round(moment.timestamp() * 1000)
