"""Stores on clusters that are set up otherwise: another layout, TLS, SASL everywhere, placement by
racks. All real.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import segmentstore
from durablelog.bookkeeper.cluster.settings import ClusterExtras
from durablelog.bookkeeper.installation import java
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from segmentstore.contracts.errors import ConfigError
from tests.durablelog.bookkeeper.kept_gateway import kept_gateway
from tests.store.harness import LAZY, read_all, run
from tests.support.suites import slow

SLOW_TLS_S = 240
"""The gateway's own check of its TLS library takes long on a busy machine."""

ONE = "ensemble=1&session_timeout_s=4"
PASSWORD = "a-password"
_SASL = "org.apache.bookkeeper.sasl"
LOGINS = """
Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_store="zoo-secret"; };
Client {
  org.apache.zookeeper.server.auth.DigestLoginModule required
  username="store" password="zoo-secret";
};
"""
BOOKIE_LOGINS = """
Bookie { org.apache.zookeeper.server.auth.DigestLoginModule required user_store="bookie-secret"; };
BookKeeper {
  org.apache.zookeeper.server.auth.DigestLoginModule required
  username="store" password="bookie-secret";
};
"""


def use(folder: Path, url: str, *, lives: int = 2) -> None:
    """Some lives of a store: what one leaves the next one finds, from the log and from Tier 2."""

    async def main() -> None:
        expected = b""
        for life in range(lives):
            async with segmentstore.open(str(folder), **{**LAZY, "tier1": url}) as store:
                if not life:
                    await store.create_segment("a")
                assert await read_all(store, "a") == expected
                pieces = [b"%d.%d " % (life, number) for number in range(20)]
                await asyncio.gather(*[store.append("a", piece) for piece in pieces])
                expected += b"".join(pieces)
                assert store.stats()["health"] == []

    run(main(), limit_s=SLOW_TLS_S)


@slow(15)
def test_a_cluster_with_the_flat_layout_bookies_that_want_a_password_and_placement_by_racks(
    tmp_path: Path,
) -> None:
    settings = tmp_path / "client.properties"
    racks = {
        "ensemblePlacementPolicy": "org.apache.bookkeeper.client.RackawareEnsemblePlacementPolicy",
        "reppDnsResolverClass": "org.apache.bookkeeper.net.ScriptBasedMapping",
        "networkTopologyScriptFileName": str(tmp_path / "racks.sh"),
        "clientAuthProviderFactoryClass": f"{_SASL}.SASLClientProviderFactory",
        "java.security.auth.login.config": str(tmp_path / "logins"),
    }
    (tmp_path / "logins").write_text(BOOKIE_LOGINS, encoding="utf-8")
    extras = ClusterExtras(
        scheme="zk+flat",
        bookie={
            "bookieAuthProviderFactoryClass": f"{_SASL}.SASLBookieAuthProviderFactory",
            "saslJaasClientAllowedIds": "store",
        },
        java=[f"-Djava.security.auth.login.config={tmp_path / 'logins'}"],
    )
    (tmp_path / "racks.sh").write_text(
        "#!/bin/sh\nfor each; do echo /rack-1; done\n", encoding="utf-8"
    )
    (tmp_path / "racks.sh").chmod(0o755)

    def write(values: dict[str, str]) -> None:
        settings.write_text(
            "".join(f"{name} = {value}\n" for name, value in values.items()), encoding="utf-8"
        )

    with BookKeeperCluster(tmp_path / "cluster", 1, extras=extras) as cluster, kept_gateway():
        write(racks)
        url = f"{cluster.url('/racks')}?{ONE}&client_settings={settings}"
        use(tmp_path / "racks", url)
        for wrong, words in (
            ({"ensemblePlacementPolicy": "com.example.NoSuchPolicy"}, "NoSuchPolicy"),
            ({"delayEnsembleChange": "false"}, "delayEnsembleChange is set by the store itself"),
            ({"tlsProviderFactoryClass": "com.example.NoSuchFactory"}, "NoSuchFactory"),
            (
                {"java.security.auth.login.config": "/elsewhere"},
                "is set to another value in this gateway",
            ),
        ):
            write(wrong)
            with pytest.raises(ConfigError, match=words) as caught:
                use(tmp_path / "racks", url)
            assert caught.value.setting == "tier1"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BookKeeperCluster, Path]]:
    """A cluster where nobody comes in without a password, and bookies speak TLS.

    Its secrets are in the folder.
    """
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "logins").write_text(LOGINS, encoding="utf-8")
    (folder / "password").write_text(PASSWORD, encoding="utf-8")
    (folder / "zookeeper").write_text("store:zoo-secret\n", encoding="utf-8")
    make_key(folder / "bookie.p12")
    tls = {
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsProvider": "JDK",
    }
    extras = ClusterExtras(
        scheme="zk+longhierarchical",
        zookeeper={
            "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            "enforce.auth.enabled": "true",
            "enforce.auth.schemes": "sasl",
        },
        bookie={
            **tls,
            "tlsKeyStoreType": "PKCS12",
            "tlsKeyStore": str(folder / "bookie.p12"),
            "tlsKeyStorePasswordPath": str(folder / "password"),
        },
        java=[f"-Djava.security.auth.login.config={folder / 'logins'}"],
        look={
            "sasl_options": {
                "mechanism": "DIGEST-MD5",
                "username": "store",
                "password": "zoo-secret",
            }
        },
    )
    values = {
        **tls,
        "clientTrustStoreType": "PKCS12",
        "clientTrustStore": str(folder / "bookie.p12"),
        "clientTrustStorePasswordPath": str(folder / "password"),
        "java.security.auth.login.config": str(folder / "logins"),
    }
    text = "".join(f"{name}={value}\n" for name, value in values.items())
    (folder / "bookie.properties").write_text(text, encoding="utf-8")
    with BookKeeperCluster(folder / "cluster", 1, extras=extras) as running:
        yield running, folder


def make_key(path: Path) -> None:
    """A key store with a certificate that signed itself."""
    keytool = str(Path(java()).with_name("keytool"))
    subprocess.run(
        [keytool, "-genkeypair", "-alias", "bookie", "-keyalg", "EC", "-dname", "CN=localhost",
        "-ext",
         "SAN=ip:127.0.0.1", "-storetype", "PKCS12", "-keystore", str(path), "-storepass",
         PASSWORD],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip


@slow(15)
def test_a_cluster_with_long_ids_tls_and_sasl_everywhere(
    guarded: tuple[BookKeeperCluster, Path], tmp_path: Path
) -> None:
    cluster, folder = guarded
    bare = f"{cluster.url('/guarded')}?{ONE}&zookeeper_auth_file={folder}/zookeeper"
    sasl = f"{bare}&zookeeper_scheme=sasl&acl=creator"
    use(tmp_path / "one", f"{sasl}&client_settings={folder}/bookie.properties")


# kazoo's thread ends by the refusal, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@slow(10)
def test_who_does_not_know_the_passwords_is_told_that_it_is_a_setting(
    guarded: tuple[BookKeeperCluster, Path], tmp_path: Path
) -> None:
    cluster, folder = guarded
    (tmp_path / "guess").write_text("store:barley\n", encoding="utf-8")
    (tmp_path / "trust").write_text(
        (folder / "bookie.properties")
        .read_text(encoding="utf-8")
        .replace(f"{folder}/password", f"{tmp_path}/guess"),
        encoding="utf-8",
    )
    known = f"&zookeeper_scheme=sasl&zookeeper_auth_file={folder}/zookeeper"
    unknown = f"&zookeeper_scheme=sasl&zookeeper_auth_file={tmp_path}/guess"
    for query, words in (
        ("", "client cannot be made with its settings"),
        (f"{known}&client_settings={tmp_path}/trust", "client cannot be made with its settings"),
        (f"{unknown}&client_settings={folder}/bookie.properties", "SASL authentication failed"),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            use(tmp_path / "refused", f"{cluster.url('/guarded')}?{ONE}{query}", lives=1)
        assert "barley" not in str(caught.value)
        assert not (tmp_path / "refused" / "store.toml").exists()
