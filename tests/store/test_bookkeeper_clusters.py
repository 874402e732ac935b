"""A store on a cluster of a flat layout, whose bookies want a password and stand in regions, zones
and racks. All real.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from durablelog.bookkeeper import bookkeeper_clients
from durablelog.bookkeeper.bookkeeper_clients import open_clients
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.cluster.settings import ClusterExtras
from durablelog.bookkeeper.ledger_store import Replication
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.runtime import Runtime
from tests.durablelog.bookkeeper.kept_gateway import kept_gateway
from tests.store.cluster_trials import ONE, refused, use, write_properties
from tests.support.suites import slow

BOOKIE_LOGINS = """
Bookie { org.apache.zookeeper.server.auth.DigestLoginModule required user_store="bookie-secret"; };
BookKeeper {
  org.apache.zookeeper.server.auth.DigestLoginModule required
  username="store" password="bookie-secret";
};
"""
PLACES = {"127.0.0.2": "/near/one", "127.0.0.3": "/near/two", "127.0.0.4": "/far/three"}
LEDGERS = 12
"""Placed without regard to regions, one in three would have both bookies in one: all of them well,
1 in 130.
"""
SASL = "org.apache.bookkeeper.sasl"
CLIENT = "org.apache.bookkeeper.client"


def cluster_in_regions(folder: Path) -> BookKeeperCluster:
    (folder / "logins").write_text(BOOKIE_LOGINS, encoding="utf-8")
    lines = "".join(f"{host}) echo {place};; " for host, place in PLACES.items())
    (folder / "places.sh").write_text(
        f"#!/bin/sh\nfor each; do case $each in {lines}esac; done\n", encoding="utf-8"
    )
    (folder / "places.sh").chmod(0o755)
    extras = ClusterExtras(
        scheme="zk+flat",
        hosts=list(PLACES),
        bookie={
            "bookieAuthProviderFactoryClass": f"{SASL}.SASLBookieAuthProviderFactory",
            "saslJaasClientAllowedIds": "store",
        },
        java=[f"-Djava.security.auth.login.config={folder / 'logins'}"],
    )
    return BookKeeperCluster(folder / "cluster", len(PLACES), extras=extras)


def regions_of_ledgers(url: str) -> list[set[str]]:
    """Of new ledgers on two bookies each."""

    async def main() -> list[set[str]]:
        clients = await open_clients(BookKeeperLocation.parse(url), {}, Runtime())
        try:
            made = [await clients.ledgers.create(Replication(2, 2, 2), {}) for _ in range(LEDGERS)]
            ensembles = [
                (await clients.ledgers.describe(writer.ledger_id)).bookies for writer in made
            ]
        finally:
            await clients.close()
        return [
            {PLACES[bookie.partition(":")[0]].split("/")[1] for bookie in bookies}
            for bookies in ensembles
        ]

    return asyncio.run(asyncio.wait_for(main(), 240))


def ask_once(url: str) -> None:
    """One attempt to connect."""

    async def main() -> None:
        clients = await open_clients(BookKeeperLocation.parse(url), {}, Runtime())
        await clients.close()

    asyncio.run(asyncio.wait_for(main(), 240))


@slow(25)
def test_a_cluster_with_the_flat_layout_bookies_that_want_a_password_and_placement_by_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "client.properties"
    usual = {
        "ensemblePlacementPolicy": f"{CLIENT}.RackawareEnsemblePlacementPolicy",
        "reppDnsResolverClass": "org.apache.bookkeeper.net.ScriptBasedMapping",
        "networkTopologyScriptFileName": str(tmp_path / "places.sh"),
        "clientAuthProviderFactoryClass": f"{SASL}.SASLClientProviderFactory",
        "java.security.auth.login.config": str(tmp_path / "logins"),
    }
    zones = {
        "ensemblePlacementPolicy": f"{CLIENT}.ZoneawareEnsemblePlacementPolicy",
        "desiredNumZonesPerWriteQuorum": "2",
        "minNumZonesPerWriteQuorum": "2",
    }
    regions = {
        "ensemblePlacementPolicy": f"{CLIENT}.RegionAwareEnsemblePlacementPolicy",
        "reppRegionsToWrite": "near;far",
        "reppMinimumRegionsForDurability": "2",
    }
    with cluster_in_regions(tmp_path) as cluster, kept_gateway():
        url = f"?session_timeout_s=4&client_settings={settings}"
        write_properties(settings, usual)
        use(tmp_path / "racks", f"{cluster.url('/racks')}{url}&ensemble=1")
        write_properties(settings, {**usual, **zones})
        use(tmp_path / "zones", f"{cluster.url('/zones')}{url}&ensemble=3")
        refused(
            tmp_path / "few",
            f"{cluster.url('/few')}{url}&ensemble=2",
            "illegal for writeQuorumSize.*quorums of the URL",
        )
        write_properties(settings, {**usual, **regions})
        use(tmp_path / "regions", f"{cluster.url('/regions')}{url}&ensemble=2")
        assert regions_of_ledgers(f"{cluster.url('/regions')}{url}") == [{"near", "far"}] * LEDGERS

        # A refusal of one bookie says nothing of one that is silent: the opening may try again.
        cluster.pause_bookie(1)
        with monkeypatch.context() as patch:
            patch.setattr(bookkeeper_clients, "OPEN_TIMEOUT_S", 0.0)
            with pytest.raises(TierUnavailableError, match="of 1 more nothing is known") as caught:
                ask_once(f"{cluster.url('/unknown')}?{ONE}")
        assert "does not let in whom it does not know" in str(caught.value)
        cluster.resume_bookie(1)

        racks = f"{cluster.url('/racks')}?{ONE}&client_settings={settings}"
        refused(
            tmp_path / "unknown",
            f"{cluster.url('/unknown')}?{ONE}",
            "does not let in whom it does not know",
        )
        for wrong, words in (
            ({"ensemblePlacementPolicy": "com.example.NoSuchPolicy"}, "NoSuchPolicy"),
            ({"delayEnsembleChange": "false"}, "delayEnsembleChange is set by the store itself"),
            ({"tlsProviderFactoryClass": "com.example.NoSuchFactory"}, "NoSuchFactory"),
            (
                {"java.security.auth.login.config": "/elsewhere"},
                "is set to another value in this gateway",
            ),
        ):
            write_properties(settings, wrong)
            refused(tmp_path / "racks", racks, words)
