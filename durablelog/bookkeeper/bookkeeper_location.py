"""BookKeeperLocation: what a URL `bookkeeper://host:2181,host:2181/path?key=value&...` says,
checked.

The hosts are ZooKeeper's, the path is the store's root node there: one root is one store. Every key
of the query is one of the table at the end; an unknown one is refused by name. No secret stands in
a URL: passwords come from files that it names, or from the environment. No message repeats what
might be one.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from durablelog.bookkeeper.bookkeeper_url import SCHEME
from durablelog.bookkeeper.ledger_store import Replication
from segmentstore.contracts.byte_sizes import GIB, KIB, parse_size
from segmentstore.contracts.errors import ConfigError

SETTING: Final = "tier1"
PREFIX: Final = SCHEME + "://"
ZOOKEEPER_SCHEME: Final = "zookeeper"

PASSWORD_VARIABLE: Final = "SEGMENTSTORE_BOOKKEEPER_PASSWORD"  # noqa: S105 - its name
ZOOKEEPER_AUTH_VARIABLE: Final = "SEGMENTSTORE_ZOOKEEPER_AUTH"
_SECRETS: Final = {
    "password_file": PASSWORD_VARIABLE,
    "zookeeper_auth_file": ZOOKEEPER_AUTH_VARIABLE,
}

PORT_DEFAULT: Final = 2181
ENSEMBLE_MAX: Final = 64
LEDGER_BYTES_DEFAULT: Final = 1 * GIB
LEDGER_BYTES_RANGE: Final = (4 * KIB, 1024 * GIB)
SESSION_TIMEOUT_RANGE: Final = (1, 600)
PATH_CHARACTERS_MAX: Final = 500

Access = Literal["open", "creator"]
Scheme = Literal["digest", "sasl"]

_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\])")
_PART = re.compile(r"[A-Za-z0-9._-]{1,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BookKeeperLocation:
    """A store's root node, and how its ledgers are made."""

    hosts: tuple[str, ...]
    """ZooKeeper's servers, `host:port` each."""
    path: str
    """Of the root node: begins with a slash, does not end in one."""
    replication: Replication = Replication()  # noqa: RUF009 - a tuple
    """Of new ledgers; those that are there keep theirs."""
    degraded: Replication | None = None
    """Of a new ledger while there are too few bookies for `replication`; None: writers wait
    instead.
    """
    ledger_bytes: int = LEDGER_BYTES_DEFAULT
    """Size at which a new ledger is begun."""
    ledgers_root: str = "/ledgers"
    """BookKeeper's own root node."""
    gateway: str | None = None
    """`host:port` of a gateway that runs already; None: this process starts its own."""
    password_file: str | None = None
    """Its first line is the password of the ledgers; None: from the environment, else none."""
    zookeeper_auth_file: str | None = None
    """Its first line is ZooKeeper's `user:password`; None: from the environment, else none."""
    zookeeper_scheme: Scheme = "digest"
    """How ZooKeeper gets them: by its scheme `digest`, or by SASL (DIGEST-MD5)."""
    client_settings: str | None = None
    """A file of Java properties with settings of BookKeeper's client; None: from the environment,
    else none.
    """
    acl: Access = "open"
    """Which clients may see and change the nodes created here: all, or their creator."""
    session_timeout_s: int = 10
    """Of the session with ZooKeeper."""

    @classmethod
    def parse(cls, url: str) -> BookKeeperLocation:
        """What the URL says; ConfigError("tier1", ...) names what is wrong with it."""
        hosts, path, given = _taken_apart(url, SCHEME, _READERS)
        given["replication"] = _replication(given)
        if "ledgers" in given:
            given["ledgers_root"] = given.pop("ledgers")
        location = cls(hosts=hosts, path=path, **given)
        location._check()
        return location

    @classmethod
    def parse_zookeeper(cls, url: str) -> BookKeeperLocation:
        """The same of `zookeeper://host:2181,host:2181/path`, which names a store's nodes alone.

        How its ledgers are made does not follow from it. The keys are those by which ZooKeeper is
        reached. Raises ConfigError("tier1", ...).
        """
        readers = {key: _READERS[key] for key in _ZOOKEEPER_KEYS}
        hosts, path, given = _taken_apart(url, ZOOKEEPER_SCHEME, readers)
        return cls(hosts=hosts, path=path, **given)

    def _check(self) -> None:
        if self.path == self.ledgers_root or self.path.startswith(self.ledgers_root + "/"):
            raise _bad(f"the path {self.path} lies in BookKeeper's own nodes, {self.ledgers_root}")
        if self.ledgers_root.startswith(self.path + "/"):
            raise _bad(f"BookKeeper's own nodes, {self.ledgers_root}, lie in the path {self.path}")
        if self.degraded is not None and self.degraded.ensemble >= self.replication.ensemble:
            raise _bad(
                f"degraded={self.degraded} does not ask for fewer bookies than {self.replication}"
            )

    @property
    def metadata_uri(self) -> str:
        """Where BookKeeper's client finds its metadata."""
        # null: of whatever layout the cluster was made.
        return f"zk+null://{';'.join(self.hosts)}{self.ledgers_root}"

    @property
    def password_from(self) -> str:
        """Where the password of the ledgers is searched for; for people."""
        if self.password_file is not None:
            return f"that in password_file, {self.password_file}"
        return (
            f"that in {PASSWORD_VARIABLE} (none, if that is not set), for the URL names no "
            "password_file"
        )

    @property
    def url(self) -> str:
        """Where this is, for messages; it names no files."""
        return f"{PREFIX}{','.join(self.hosts)}{self.path}"

    @property
    def zookeeper_url(self) -> str:
        """By which clients find the hosts of the store; it names no files."""
        return f"{ZOOKEEPER_SCHEME}://{','.join(self.hosts)}{self.path}"


def check_may_follow(stored: str, wanted: str) -> None:
    """Raise ConfigError("tier1", ...) if a store made with one URL cannot be the one that another
    names.

    What stays is where the store's nodes and ledgers are, below the servers; that the servers have
    this very store is seen by its id. Everything else may change.
    """
    before, after = BookKeeperLocation.parse(stored), BookKeeperLocation.parse(wanted)
    for what, made, asked in (
        ("the path", before.path, after.path),
        ("the key 'ledgers'", before.ledgers_root, after.ledgers_root),
    ):
        if made != asked:
            raise _bad(
                f"{what} cannot change: {asked} asked for, but the store was made with {made}"
            )


def _taken_apart(
    url: str, scheme: str, readers: Mapping[str, Callable[[str, str], object]]
) -> tuple[tuple[str, ...], str, dict[str, Any]]:
    """ZooKeeper's servers, the path, and the values of the query by key."""
    if not url.isprintable():
        # It would be taken apart without them: newlines and tabs are dropped there.
        raise _bad(f"a {scheme}:// URL has printable characters alone, and no line breaks or tabs")
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise _bad(
            f"the {scheme}:// URL cannot be taken apart: its query is key=value&key=value"
        ) from None
    if parts.scheme != scheme:
        raise _bad(f"it is not a {scheme}:// URL")
    if "@" in parts.netloc:
        files = [key for key in _SECRETS if key in readers]
        raise _bad(
            f"a {scheme}:// URL holds no credentials: name files by {' and '.join(files)},"
            f" or set {' and '.join(_SECRETS[key] for key in files)}"
        )
    if parts.fragment:
        raise _bad(f"a {scheme}:// URL has no fragment (#)")
    given: dict[str, Any] = {}
    for key, text in pairs:
        read = readers.get(key)
        if read is None:
            raise _bad(f"a {scheme}:// URL has no key {key!r}, only {', '.join(readers)}")
        if key in given:
            raise _bad(f"the key {key!r} stands twice in the {scheme}:// URL")
        given[key] = read(key, text)
    return _hosts(parts.netloc, scheme), _path("the path", unquote(parts.path)), given


def _hosts(text: str, scheme: str) -> tuple[str, ...]:
    hosts = []
    for part in text.split(","):
        host, port = part, str(PORT_DEFAULT)
        if not part.endswith("]") and ":" in part:
            host, _, port = part.rpartition(":")
        if not _HOST.fullmatch(host) or not _is_port(port):
            raise _bad(
                f"{part!r} is not ZooKeeper's host or host:port, in "
                f"{scheme}://host:2181,host:2181/path"
            )
        hosts.append(f"{host}:{int(port)}")
    if len(set(hosts)) != len(hosts):
        raise _bad(f"a host stands twice in {text!r}")
    return tuple(hosts)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535


def _path(what: str, text: str) -> str:
    path = text.removesuffix("/")
    if not path:
        raise _bad(f"{what} is missing: it names the store's node, as in host:2181/path")
    names = path.split("/")
    if (
        names[0]
        or len(path) > PATH_CHARACTERS_MAX
        or not all(_PART.fullmatch(name) and name.strip(".") for name in names[1:])
    ):
        raise _bad(
            f"{what} {text!r} is not made of names of a-z A-Z 0-9 - _ . with slashes before them"
        )
    if names[1] == "zookeeper":
        raise _bad(f"{what} {text!r} lies in ZooKeeper's own nodes")
    return path


def _replication(given: dict[str, Any]) -> Replication:
    default = Replication()
    ensemble = given.pop("ensemble", None)
    write = given.pop("write_quorum", None)
    ack = given.pop("ack_quorum", None)
    ensemble = ensemble if ensemble is not None else max(write or 0, default.ensemble)
    write = write if write is not None else min(ensemble, max(ack or 0, default.write_quorum))
    ack = ack if ack is not None else write // 2 + 1
    return _ordered(
        Replication(ensemble, write, ack),
        f"ensemble={ensemble}, write_quorum={write}, ack_quorum={ack}",
    )


def _ordered(replication: Replication, said: str) -> Replication:
    if (
        not 1
        <= replication.ack_quorum
        <= replication.write_quorum
        <= replication.ensemble
        <= ENSEMBLE_MAX
    ):
        raise _bad(
            f"{said}: it must be 1 <= ack quorum <= write quorum <= ensemble <= {ENSEMBLE_MAX}"
        )
    return replication


def _degraded(key: str, text: str) -> Replication | None:
    if text == "none":
        return None
    numbers = text.split("/")
    if len(numbers) != 3 or not all(
        number.isascii() and number.isdigit() and len(number) <= 3 for number in numbers
    ):
        raise _bad(f"{key}={text!r} is not ensemble/write quorum/ack quorum, as 2/2/2, or none")
    ensemble, write, ack = map(int, numbers)
    return _ordered(Replication(ensemble, write, ack), f"{key}={text}")


def _number(low: int, high: int) -> Callable[[str, str], int]:
    def read(key: str, text: str) -> int:
        if (
            not (text.isascii() and text.isdigit() and len(text) <= 15)
            or not low <= int(text) <= high
        ):
            raise _bad(f"{key}={text!r} is not a whole number from {low} to {high}")
        return int(text)

    return read


def _size(key: str, text: str) -> int:
    value = parse_size(text)
    low, high = LEDGER_BYTES_RANGE
    if value is None or not low <= value <= high:
        raise _bad(
            f"{key}={text!r} is not a number of bytes (or with KiB, MiB, GiB) from {low} to {high}"
        )
    return value


def _gateway(key: str, text: str) -> str:
    host, _, port = text.rpartition(":")
    if not _HOST.fullmatch(host) or not _is_port(port):
        raise _bad(f"{key}={text!r} is not host:port")
    return text


def _file(key: str, text: str) -> str:
    if not text.startswith("/") or "\0" in text:
        raise _bad(f"{key} is not the absolute path of a file")
    return text


def _access(key: str, text: str) -> str:
    if text not in {"open", "creator"}:
        raise _bad(f"{key}={text!r} is not open or creator")
    return text


def _scheme(key: str, text: str) -> str:
    if text not in {"digest", "sasl"}:
        raise _bad(f"{key}={text!r} is not digest or sasl")
    return text


def _bad(detail: str) -> ConfigError:
    return ConfigError(SETTING, detail)


_READERS: Mapping[str, Callable[[str, str], object]] = {
    "ensemble": _number(1, ENSEMBLE_MAX),
    "write_quorum": _number(1, ENSEMBLE_MAX),
    "ack_quorum": _number(1, ENSEMBLE_MAX),
    "degraded": _degraded,
    "ledger_bytes": _size,
    "ledgers": _path,
    "gateway": _gateway,
    "password_file": _file,
    "zookeeper_auth_file": _file,
    "zookeeper_scheme": _scheme,
    "client_settings": _file,
    "acl": _access,
    "session_timeout_s": _number(*SESSION_TIMEOUT_RANGE),
}
_ZOOKEEPER_KEYS: Final = (
    "zookeeper_auth_file",
    "zookeeper_scheme",
    "client_settings",
    "session_timeout_s",
)
"""Those that say how ZooKeeper is reached."""
