"""What ZooKeeper and the bookies of a local cluster get: their settings and the commands
that run them.

The values are those of docs/bookkeeper.md: made for two cores and a gigabyte of memory, with
journals that are really synced. Where a value is not BookKeeper's default, the reason stands beside
it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from durablelog.bookkeeper.installation.programs import LATE_OPTIMIZATION
from segmentstore.contracts.errors import ConfigError

HOST: Final = "127.0.0.1"
LEDGERS_ROOT: Final = "/ledgers"
AVAILABLE: Final = f"{LEDGERS_ROOT}/available"
READ_ONLY: Final = f"{AVAILABLE}/readonly"
COOKIES: Final = f"{LEDGERS_ROOT}/cookies"
_UNNAMEABLE: Final = re.compile(r"[\\,\x00-\x1f\x7f\ud800-\udfff\U00010000-\U0010ffff]|\$\{")
"""What separates, escapes or stands for other text there, bytes that are no UTF-8, and what RocksDB
does not find again: characters beyond 16 bits.
"""
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")
LOGGING: Final = Path(__file__).resolve().parent / "log4j2.properties"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterExtras:
    """The settings of a cluster beside the usual ones: its layout, encryption, authentication.

    For tests and trials.
    """

    scheme: str = "zk+hierarchical"
    """Of the metadata service's URI: the layout of ledgers."""
    zookeeper: Mapping[str, str] = field(default_factory=dict)
    """More lines of zoo.cfg."""
    bookie: Mapping[str, str] = field(default_factory=dict)
    """More lines of bookie.conf."""
    hosts: Sequence[str] = (HOST,)
    """Loopback addresses by which bookies are known, in turn: what distinguishes machines
    distinguishes these.
    """
    java: Sequence[str] = ()
    """Options of every Java process."""
    registry_client: Mapping[str, Any] = field(default_factory=dict)
    """How ZooKeeper is asked who serves: arguments of kazoo's client."""


SHORT_LIVED: Final = ("-XX:TieredStopAtLevel=1",)
"""For processes that live for seconds: the second compiler would cost more than it brings, 40 % of
a start.
"""
_COMMON_OPTIONS: Final = ("-XX:+UseSerialGC", "-XX:-UsePerfData", "-Djava.awt.headless=true")


def zookeeper_settings(folder: Path, port: int) -> Mapping[str, str]:
    """zoo.cfg of a server that stands alone."""
    return {
        # Sessions last 2 to 20 of these: as long as the bookies ask for, see zkTimeout.
        "tickTime": "1000",
        "dataDir": str(folder / "data"),
        "clientPort": str(port),
        "clientPortAddress": HOST,
        # Else it wants port 8080 as well.
        "admin.enableServer": "false",
        "maxClientCnxns": "0",
        "4lw.commands.whitelist": "ruok",
        # Else its logs of transactions grow for ever, each of 64 MiB.
        "autopurge.purgeInterval": "1",
        "autopurge.snapRetainCount": "3",
        "preAllocSize": "4096",
    }


def bookie_settings(folder: Path, port: int, metadata_uri: str) -> Mapping[str, str]:
    """bookie.conf."""
    return {
        "bookiePort": str(port),
        "metadataServiceUri": metadata_uri,
        # A bookie refuses to serve on loopback unless asked to; its name becomes this address and
        # the port.
        "advertisedAddress": HOST,
        "allowLoopback": "true",
        "journalDirectory": str(folder / "journal"),
        "ledgerDirectories": str(folder / "ledgers"),
        "indexDirectories": str(folder / "index"),
        "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
        "dbStorage_writeCacheMaxSizeMb": "32",
        "dbStorage_readAheadCacheMaxSizeMb": "16",
        # By default 100 entries are read ahead, of any size: 100 MiB for a cache of 16, which is
        # read again for each of the next entries.
        "dbStorage_readAheadCacheBatchBytesSize": str(2 * 1024 * 1024),
        "dbStorage_rocksDB_blockCacheSize": str(8 * 1024 * 1024),
        "journalSyncData": "true",
        "journalWriteData": "true",
        # Without it a single entry waits 2 ms for company.
        "journalFlushWhenQueueEmpty": "true",
        "journalMaxSizeMB": "128",
        "journalPreAllocSizeMB": "16",
        "logSizeLimit": str(128 * 1024 * 1024),
        # Room of deleted ledgers comes back within minutes.
        "gcWaitTime": "60000",
        "diskUsageThreshold": "0.98",
        "diskUsageWarnThreshold": "0.97",
        # A bookie whose session ends is read-only, and may end itself: with 6 s one outage of
        # ZooKeeper of 4 s did that.
        "zkTimeout": "20000",
        "httpServerEnabled": "false",
        "enableStatistics": "false",
        "numAddWorkerThreads": "1",
        "numReadWorkerThreads": "1",
        "numLongPollWorkerThreads": "1",
        "numHighPriorityWorkerThreads": "1",
        "serverNumIOThreads": "1",
    }


def zookeeper_command(java: str, classpath: str, folder: Path, *more: str) -> Sequence[str]:
    """Runs ZooKeeper in the foreground; `more` are options of Java."""
    options = _options(folder, "-Xmx128m", *LATE_OPTIMIZATION, *more)
    return [
        java, *options, "-cp", classpath, "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        str(folder / "zoo.cfg"),
    ]  # fmt: skip


def bookie_command(java: str, classpath: str, folder: Path, *more: str) -> Sequence[str]:
    """Runs a bookie in the foreground; `more` are options of Java."""
    direct = "-XX:MaxDirectMemorySize=256m"
    options = _options(folder, "-Xmx256m", direct, *LATE_OPTIMIZATION, *more)
    return [
        java, *options, "-cp", classpath, "org.apache.bookkeeper.server.Main", "--conf",
        str(folder / "bookie.conf"),
    ]  # fmt: skip


def format_command(java: str, classpath: str, folder: Path, *more: str) -> Sequence[str]:
    """Makes the cluster's tree of nodes in ZooKeeper, with the settings of a bookie, and ends;
    `more` as above.
    """
    options = _options(folder, "-Xmx128m", *SHORT_LIVED, *more)
    shell = "org.apache.bookkeeper.bookie.BookieShell"
    return [
        java,
        *options,
        "-cp",
        classpath,
        shell,
        "-conf",
        str(folder / "bookie.conf"),
        "initnewcluster",
    ]


def require_nameable(folder: Path) -> None:
    """Raises ConfigError for a folder whose name a value of these files cannot hold: they would
    keep their data in others.
    """
    name = str(folder)
    found = _UNNAMEABLE.search(name)
    if found is not None:
        raise ConfigError(
            "cluster",
            f"the name of {name!r} has {found[0]!r}, which BookKeeper's configuration cannot hold: "
            "use another folder",
        )


def write_settings(path: Path, settings: Mapping[str, str]) -> None:
    """A file of `name=value` lines."""
    lines = "".join(f"{name}={value}\n" for name, value in settings.items())
    # Java takes these files for Latin-1.
    path.write_text(_NOT_ASCII.sub(_escape, lines), encoding="ascii")


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _options(folder: Path, *more: str) -> Sequence[str]:
    return [
        *more,
        *_COMMON_OPTIONS,
        # RocksDB and netty unpack their native libraries there, 15 MB at every start, and a killed
        # one leaves them.
        f"-Djava.io.tmpdir={folder / 'tmp'}",
        f"-Dlog4j2.configurationFile={LOGGING}",
        f"-Dcluster.log={folder / 'server.log'}",
    ]
