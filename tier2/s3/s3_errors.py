"""What a provider's answer against a request means, and in which of our errors it is said.

One table of codes, one of states of the reply, one function. Rules of this file:

- a reader of a message knows the call, the code, and whose move is next;
- an answer (absent, taken, no such upload) is distinguished from a failure: it is not counted as an
  error;
- a failure says whether the request may have taken effect: only then is it worth checking.

Pure: no await, no clock, no I/O; botocore's exceptions are taken apart by s3_client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from tier2.object_storage import ObjectStorageError, StorageRefusedError, StorageUnavailableError


class S3Verdict(Enum):
    """What an answer comes to."""

    ABSENT = auto()
    """There is no such object."""
    NO_UPLOAD = auto()
    """There is no such upload in parts: aborted, or completed."""
    BAD_RANGE = auto()
    """The range reaches beyond the object's end."""
    TAKEN = auto()
    """The name was not free, as the condition asked."""
    CONFLICT = auto()
    """Another request on the same name is under way; try again."""
    THROTTLED = auto()
    """Too many requests. This one was not carried out."""
    REFUSED = auto()
    """Will be refused until a person changes something."""
    FAILED = auto()
    """Refused for a reason of its own; it took no effect."""
    UNCERTAIN = auto()
    """It may have taken effect or not."""


class S3AnswerError(ObjectStorageError):
    """The provider answered, and the answer is no: one of the verdicts ABSENT, NO_UPLOAD,
    BAD_RANGE, TAKEN, CONFLICT.
    """

    def __init__(self, name: str, message: str, verdict: S3Verdict, code: str) -> None:
        super().__init__(name, message)
        self.verdict = verdict
        self.code = code


class S3UnavailableError(StorageUnavailableError):
    """A failure with its verdict: THROTTLED, FAILED or UNCERTAIN."""

    def __init__(self, name: str, message: str, kind: str, verdict: S3Verdict) -> None:
        super().__init__(name, message, kind)
        self.verdict = verdict


class S3RefusedError(StorageRefusedError):
    """What a person must mend.

    `credentials` says that new credentials might do it: they are searched for again.
    """

    def __init__(self, name: str, message: str, kind: str, *, credentials: bool) -> None:
        super().__init__(name, message, kind)
        self.credentials = credentials


UNCERTAIN_STATUS_MIN: Final = 500

THROTTLED_KIND: Final = "SlowDown"
"""The kind of every throttling, whatever the provider calls it."""

_ANSWERS: Final[Mapping[str, S3Verdict]] = {
    "NoSuchKey": S3Verdict.ABSENT,
    "NoSuchObject": S3Verdict.ABSENT,
    "NotFound": S3Verdict.ABSENT,
    "404": S3Verdict.ABSENT,
    "NoSuchUpload": S3Verdict.NO_UPLOAD,
    "InvalidRange": S3Verdict.BAD_RANGE,
    "416": S3Verdict.BAD_RANGE,
    "PreconditionFailed": S3Verdict.TAKEN,
    "412": S3Verdict.TAKEN,
    "ConditionalRequestConflict": S3Verdict.CONFLICT,
    "OperationAborted": S3Verdict.CONFLICT,
    "SlowDown": S3Verdict.THROTTLED,
    "SlowDownRead": S3Verdict.THROTTLED,
    "SlowDownWrite": S3Verdict.THROTTLED,
    "ServiceUnavailable": S3Verdict.THROTTLED,
    "RequestLimitExceeded": S3Verdict.THROTTLED,
    "RequestThrottled": S3Verdict.THROTTLED,
    "RequestThrottledException": S3Verdict.THROTTLED,
    "Throttling": S3Verdict.THROTTLED,
    "ThrottlingException": S3Verdict.THROTTLED,
    "ThrottledException": S3Verdict.THROTTLED,
    "TooManyRequests": S3Verdict.THROTTLED,
    "TooManyRequestsException": S3Verdict.THROTTLED,
    "BandwidthLimitExceeded": S3Verdict.THROTTLED,
    "503": S3Verdict.THROTTLED,
    "429": S3Verdict.THROTTLED,
    # Says 400, and is a connection that was too slow with its body.
    "RequestTimeout": S3Verdict.UNCERTAIN,
}

_THROTTLED_STATES: Final = (429, 503)
_REFUSING_STATES: Final = (401, 403)

_NEW_CREDENTIALS: Final = "renew the credentials where botocore finds them; they are read again"
_PERMISSION: Final = "give the credentials the permission for {call} on the bucket {bucket}"
_WHERE: Final = "the URL leads to another region or service: set region and endpoint_url"

MOVES: Final[Mapping[str, str]] = {
    "AccessDenied": _PERMISSION,
    "AllAccessDisabled": _PERMISSION,
    "MethodNotAllowed": _PERMISSION,
    "403": _PERMISSION,
    "401": "the credentials are not known there: " + _NEW_CREDENTIALS,
    "NoSuchBucket": "the bucket {bucket} does not exist: create it, or correct the URL",
    "InvalidBucketName": "no bucket can be called {bucket}: correct the URL",
    "InvalidAccessKeyId": "the access key is unknown there: " + _NEW_CREDENTIALS,
    "InvalidClientTokenId": "the access key is unknown there: " + _NEW_CREDENTIALS,
    "XAdminUserNotFound": "the access key is unknown there: " + _NEW_CREDENTIALS,
    "SignatureDoesNotMatch": "the secret key is wrong for this access key: " + _NEW_CREDENTIALS,
    "ExpiredToken": "the session token has expired: " + _NEW_CREDENTIALS,
    "ExpiredTokenException": "the session token has expired: " + _NEW_CREDENTIALS,
    "TokenRefreshRequired": "the session token has expired: " + _NEW_CREDENTIALS,
    "InvalidToken": "the session token is wrong: " + _NEW_CREDENTIALS,
    "InvalidSecurity": "the credentials are not valid: " + _NEW_CREDENTIALS,
    "RequestTimeTooSkewed": "this machine's clock is off by more than the provider allows: set it",
    "RequestExpired": "this machine's clock is off by more than the provider allows: set it",
    "AccountProblem": "the provider has closed the account: ask them",
    "NotSignedUp": "the account is not signed up for this service: ask the provider",
    "QuotaExceeded": "the bucket {bucket} is full: raise its quota",
    "StorageFull": "the store is full: give it room",
    "XMinioStorageFull": "the store is full: give it room",
    "InvalidObjectState": "the object is archived: keep lifecycle rules of the bucket {bucket} "
    "from "
    "moving "
    "objects",
    "KMS.DisabledException": "the key that encrypts the bucket {bucket} is disabled: enable it",
    "PermanentRedirect": _WHERE,
    "TemporaryRedirect": _WHERE,
    "AuthorizationHeaderMalformed": _WHERE,
    "IllegalLocationConstraintException": _WHERE,
    "301": _WHERE,
    "307": _WHERE,
    "NotImplemented": "the store has no such call: it cannot be used",
    "501": "the store has no such call: it cannot be used",
    # Not codes of a provider, but names of what happened on this side.
    "no-credentials": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give ~/.aws or the "
    "machine "
    "a "
    "role; they are read again",
    "credentials": _NEW_CREDENTIALS,
    "certificate": "the server's certificate is not trusted here: correct endpoint_url or install "
    "its authority",
    "client": "correct the settings of botocore that the message names",
}
"""Codes that a person must deal with, and what to do. `{call}` and `{bucket}` are filled in."""

_SAYS_ABSENT: Final = "GetObject"
"""The call that decides whether an object is absent: each store answers it with a code."""
_NAMELESS = re.compile(r"[0-9]*|Unknown")
_KIND = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def verdict_of(code: str, status: int | None) -> S3Verdict:
    """What an answer with this code means; `status` is that of the reply, None if there was
    none.
    """
    known = _ANSWERS.get(code)
    if known is not None:
        return known
    if move_of(code, status) is not None:
        return S3Verdict.REFUSED
    if status is None or status >= UNCERTAIN_STATUS_MIN:
        return S3Verdict.THROTTLED if status in _THROTTLED_STATES else S3Verdict.UNCERTAIN
    return S3Verdict.THROTTLED if status in _THROTTLED_STATES else S3Verdict.FAILED


def move_of(code: str, status: int | None) -> str | None:
    """What a person must do about it, `{call}` and `{bucket}` to be filled in; None if there is
    nothing to be done.

    Servers have codes of their own for "who are you" and "you may not": the state says as much.
    """
    if code in MOVES:
        return MOVES[code]
    return MOVES[str(status)] if status in _REFUSING_STATES and code not in _ANSWERS else None


def error_of(
    name: str, call: str, bucket: str, code: str, status: int | None, detail: str
) -> ObjectStorageError:
    """Our error for an answer about `name`.

    `detail` is the provider's message, or what the network said.
    """
    if _NAMELESS.fullmatch(code):
        code = str(status) if status is not None else "unknown"
    verdict = verdict_of(code, status)
    if verdict is S3Verdict.ABSENT and code == str(status) and call == _SAYS_ABSENT:
        # A proxy that does not find the store has answered.
        verdict = S3Verdict.FAILED
    # A proxy's page of HTML is no message, and a strange code is no kind: errors are counted by it.
    detail = " ".join(detail.split())[:200]
    kind = code if _KIND.fullmatch(code) else "other"
    if verdict is S3Verdict.REFUSED:
        move = (move_of(code, status) or "").format(call=call, bucket=bucket)
        said = f" ({detail})" if detail else ""
        credentials = "they are read again" in move
        return S3RefusedError(
            name, f"{call} is refused with {kind}{said}: {move}", kind, credentials=credentials
        )
    message = f"{call}: {kind}{f', {detail}' if detail else ''}"
    if verdict is S3Verdict.THROTTLED:
        kind = THROTTLED_KIND
    if verdict in {S3Verdict.THROTTLED, S3Verdict.FAILED, S3Verdict.UNCERTAIN}:
        return S3UnavailableError(name, message, kind, verdict)
    return S3AnswerError(name, message, verdict, code)
