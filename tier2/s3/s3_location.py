"""S3Location: what a URL `s3://bucket/prefix?key=value&...` says, checked.

Every key is a field of the class; an unknown one is refused by name. Credentials never stand in a
URL: they are found by botocore's own chain (environment, files, roles). No message repeats what
might be one.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from segmentstore.contracts.byte_sizes import GIB, MIB, parse_size
from segmentstore.contracts.errors import ConfigError
from tier2.object_names import is_name_part

SETTING: Final = "tier2"


PART_BYTES_MIN: Final = 8 * MIB
"""Smaller parts cost more requests than they win in parallelism; the provider's own limit is 5
MiB.
"""
PART_BYTES_MAX: Final = 5 * GIB
"""The provider's limit of a part, and of an object put by one request."""
CONNECTIONS_MAX: Final = 256
PREFIX_CHARACTERS_MAX: Final = 500
"""A key has at most 1,024 bytes, and an object's name may take 512 of them."""

Addressing = Literal["path", "virtual"]
ConditionalWrites = Literal["required", "emulated"]

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_REGION = re.compile(r"[a-z0-9-]{1,64}")


@dataclass(frozen=True, slots=True)
class S3Location:
    """A bucket, a prefix in it, and how it is spoken to.

    All but `bucket` and `prefix` are keys of the URL's query.
    """

    bucket: str
    prefix: str = ""
    """Before every object's name: empty, or ending in a slash."""
    endpoint_url: str | None = None
    """Of a store that is not Amazon's: `http://host:port` or `https://host`."""
    region: str | None = None
    """None: as botocore finds it, else us-east-1."""
    addressing: Addressing = "virtual"
    """Whether the bucket is in the host's name or in the path; `path` is the default where
    `endpoint_url` is given.
    """
    connections: int = field(default=16, metadata={"range": (1, CONNECTIONS_MAX)})
    """Requests, threads and connections at once; 1 to 256."""
    bytes_in_flight: int = field(
        default=256 * MIB, metadata={"range": (PART_BYTES_MIN, 1024 * GIB)}
    )
    """Bytes of objects in requests under way; what is beyond waits. A larger request goes alone."""
    part_bytes: int = field(default=64 * MIB, metadata={"range": (PART_BYTES_MIN, PART_BYTES_MAX)})
    """Length of the parts of an upload in parts; the last may be shorter.

    Longer where 10,000 would not do.
    """
    multipart_bytes: int = field(default=128 * MIB, metadata={"range": (1, PART_BYTES_MAX)})
    """Objects of this size and more go up in parts."""
    payload_signing: bool = True
    """`on` or `off`: whether a body is signed over plain http.

    Over https it never is: TLS protects it.

    `off` saves a SHA-256 of every byte; an attacker that can change bytes on the way can then
    change a body together with its CRC32C.
    """
    conditional_writes: ConditionalWrites = "required"
    """`emulated` takes a store that ignores `If-None-Match`: HEAD before PUT, so two writers of one
    name may both win.
    """

    @property
    def url(self) -> str:
        """Where this is, for messages."""
        extras = [
            f"{key}={value}"
            for key in ("endpoint_url", "region")
            if (value := getattr(self, key)) is not None
        ]
        prefix = f"/{self.prefix[:-1]}" if self.prefix else ""
        return f"s3://{self.bucket}{prefix}{'?' if extras else ''}{'&'.join(extras)}"

    @property
    def connections_beside(self) -> int:
        """Second requests for reads that are late, at once: threads and connections beyond
        `connections`.
        """
        return max(1, self.connections // 4)

    @property
    def secure(self) -> bool:
        """Whether requests go over TLS."""
        return self.endpoint_url is None or self.endpoint_url.startswith("https://")


def parse_s3_url(url: str) -> S3Location:
    """What the URL says; ConfigError("tier2", ...) names what is wrong with it."""
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise _bad(
            "the s3:// URL cannot be taken apart: its query is key=value&key=value"
        ) from None
    if "@" in parts.netloc:
        raise _bad(
            "an s3:// URL holds no credentials: botocore finds them in the environment, "
            "in ~/.aws or by the machine's role"
        )
    if ":" in parts.netloc:
        raise _bad(
            f"s3://{parts.netloc} names a host: write "
            "s3://bucket/prefix?endpoint_url=http://host:port"
        )
    if parts.fragment:
        raise _bad("an s3:// URL has no fragment (#)")
    if not _BUCKET.fullmatch(parts.netloc):
        raise _bad(f"{parts.netloc!r} is not the name of a bucket, in s3://bucket/prefix")
    given: dict[str, Any] = {}
    for key, text in pairs:
        read = _READERS.get(key)
        if read is None:
            raise _bad(f"an s3:// URL has no key {key!r}, only {', '.join(_READERS)}")
        if key in given:
            raise _bad(f"the key {key!r} stands twice in the s3:// URL")
        given[key] = read(key, text)
    if "endpoint_url" in given:
        given.setdefault("addressing", "path")
    return S3Location(parts.netloc, _prefix(unquote(parts.path)), **given)


def _prefix(path: str) -> str:
    prefix = path.strip("/")
    if not prefix:
        return ""
    if len(prefix) > PREFIX_CHARACTERS_MAX or not all(
        is_name_part(part) for part in prefix.split("/")
    ):
        raise _bad(
            f"{prefix!r} is not a prefix: 1 to {PREFIX_CHARACTERS_MAX} characters of a-z "
            "A-Z 0-9 - _ . in parts between slashes"
        )
    return prefix + "/"


def _endpoint(key: str, text: str) -> str:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise _bad(f"{key} is not a URL") from None
    if parts.username is not None or parts.password is not None:
        raise _bad(f"{key} holds no credentials: botocore finds them by itself")
    if (
        parts.scheme not in {"http", "https"}
        or not parts.hostname
        or port == 0
        or parts.query
        or parts.fragment
    ):
        raise _bad(f"{key}={text!r} is not http://host:port or https://host:port")
    return text.rstrip("/")


def _region(key: str, text: str) -> str:
    if not _REGION.fullmatch(text):
        raise _bad(f"{key}={text!r} is not the name of a region, such as eu-central-1")
    return text


def _number(key: str, text: str) -> int:
    value = parse_size(text)
    takes_units = key.endswith("bytes") or key == "bytes_in_flight"
    if value is None or not (takes_units or text.isdigit()):
        raise _bad(
            f"{key}={text!r} is not a whole "
            f"number{' (of bytes, or with KiB, MiB, GiB)' if 'bytes' in key else ''}"
        )
    low, high = _RANGES[key]
    if not low <= value <= high:
        raise _bad(f"{key}={text} is not {low} to {high}")
    return value


def _choice(*values: str) -> Callable[[str, str], str]:
    def read(key: str, text: str) -> str:
        if text not in values:
            raise _bad(f"{key}={text!r} is not {' or '.join(values)}")
        return text

    return read


def _switch(key: str, text: str) -> bool:
    return _choice("on", "off")(key, text) == "on"


def _bad(detail: str) -> ConfigError:
    return ConfigError(SETTING, detail)


_RANGES: Mapping[str, tuple[int, int]] = {
    each.name: each.metadata["range"] for each in fields(S3Location) if "range" in each.metadata
}

_READERS: Mapping[str, Callable[[str, str], object]] = {
    "endpoint_url": _endpoint,
    "region": _region,
    "addressing": _choice("path", "virtual"),
    **dict.fromkeys(_RANGES, _number),
    "payload_signing": _switch,
    "conditional_writes": _choice("required", "emulated"),
}
