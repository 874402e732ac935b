"""Settings that were each found necessary: the author of a change finds the reason in
docs/bookkeeper.md first.
"""

from __future__ import annotations

import re
from pathlib import Path

from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.cluster.settings import bookie_settings, zookeeper_settings
from durablelog.bookkeeper.gateway import gateway_settings
from durablelog.bookkeeper.gateway.gateway_settings import GatewaySettings
from durablelog.bookkeeper.ledger_store import Replication
from durablelog.bookkeeper.log_options import BookKeeperLogOptions

GIB = 1024 * 1024 * 1024
LOCATION = BookKeeperLocation.parse("bookkeeper://zoo:2181/store")
JAVA = Path(gateway_settings.__file__).parent / "java"


def test_the_gateways_client_learns_what_was_found_necessary() -> None:
    told = GatewaySettings(metadata_uri=LOCATION.metadata_uri).client_settings().splitlines()
    assert {
        "metadataServiceUri=zk+null://zoo:2181/ledgers",
        "delayEnsembleChange=true",
        "speculativeReadTimeout=200",
        "addEntryTimeoutSec=5",
        "addEntryQuorumTimeoutSec=10",
        "throttle=0",
    } <= set(told)


def test_bookies_sync_what_they_acknowledge_and_survive_an_outage_of_zookeeper() -> None:
    bookie = bookie_settings(Path("bookie"), 3181, LOCATION.metadata_uri)
    expected = {
        "journalFlushWhenQueueEmpty": "true",
        "journalSyncData": "true",
        "journalWriteData": "true",
        "zkTimeout": "20000",
    }
    assert {name: bookie[name] for name in expected} == expected


def test_zookeeper_grants_the_sessions_that_bookies_ask_for() -> None:
    bookie = bookie_settings(Path("bookie"), 3181, LOCATION.metadata_uri)
    zookeeper = zookeeper_settings(Path("zookeeper"), 2181)
    assert not {"minSessionTimeout", "maxSessionTimeout"} & set(zookeeper), (
        "else those count, and not the ticks"
    )
    tick_ms = int(zookeeper["tickTime"])
    assert 2 * tick_ms <= int(bookie["zkTimeout"]) <= 20 * tick_ms


def test_three_copies_two_acknowledged_and_another_ledger_at_a_gibibyte() -> None:
    assert (LOCATION.replication, LOCATION.degraded, LOCATION.ledger_bytes) == (
        Replication(3, 3, 2),
        None,
        GIB,
    )
    options = BookKeeperLogOptions()
    assert (options.replication, options.degraded_replication, options.ledger_bytes) == (
        Replication(3, 3, 2),
        None,
        GIB,
    )


def test_every_ledger_is_created_and_opened_with_crc32c() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(JAVA.rglob("*.java")))
    calls = re.findall(r"new(?:Create|Open)LedgerOp\(\)(.*?)\.execute\(\)", text, flags=re.DOTALL)
    assert (
        len(calls)
        == len(re.findall(r"new(?:Create|Open)LedgerOp|(?:create|open)Ledger\w*\(", text))
        > 2
    )
    assert [re.findall(r"DigestType\.(\w+)", call) for call in calls] == [["CRC32C"]] * len(calls)
