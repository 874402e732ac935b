"""A store on a cluster that takes no client without a certificate and a password. All real."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

import segmentstore
from durablelog.bookkeeper.bookkeeper_clients import open_clients
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.cluster.settings import ClusterExtras
from durablelog.bookkeeper.gateway.gateway_settings import TOKEN_VARIABLE
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from recovery.harness.services.server import free_port
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from tests.durablelog.bookkeeper.kept_gateway import kept_gateway
from tests.store.certificates import make_certificates
from tests.store.cluster_trials import SLOW_TLS_S, refused, use, write_properties
from tests.store.harness import LAZY, read_all, run, until
from tests.support.suites import slow

LOGINS = """
Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_store="zoo-secret"; };
Client {
  org.apache.zookeeper.server.auth.DigestLoginModule required
  username="store" password="zoo-secret";
};
"""
PATIENT = "ensemble=1&session_timeout_s=30"
"""A server's first handshake takes seconds on a busy machine."""
TLS = {
    "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
    "tlsProvider": "JDK",
}


class Guarded(NamedTuple):
    """The cluster, and the folder of its secrets."""

    cluster: BookKeeperCluster
    folder: Path
    secure: int
    """Port where ZooKeeper speaks TLS."""

    def settings(self, path: Path, **other: str | None) -> Path:
        """What lets a client in, with other values; None for none.

        In place of the dots of names stand underscores.
        """
        folder = self.folder
        values: dict[str, str | None] = {
            **TLS,
            "tlsClientAuthentication": "true",
            "clientTrustStoreType": "PEM",
            "clientTrustStore": f"{folder}/pem/ca.crt",
            "clientKeyStoreType": "PEM",
            "clientKeyStore": f"{folder}/pem/client.key",
            "tlsCertificatePath": f"{folder}/pem/client.crt",
            "zkTimeout": "30000",
            "java.security.auth.login.config": f"{folder}/logins",
            "zookeeper.client.secure": "true",
            "zookeeper.ssl.trustStore.location": f"{folder}/pem/ca.crt",
            "zookeeper.ssl.trustStore.type": "PEM",
            "zookeeper.ssl.keyStore.location": f"{folder}/pem/client.pem",
            **{name.replace("_", "."): value for name, value in other.items()},
        }
        return write_properties(
            path, {name: value for name, value in values.items() if value is not None}
        )

    def url(self, settings: Path | None, *, known: bool = True, port: int | None = None) -> str:
        auth = (
            f"&zookeeper_auth_file={self.folder}/zookeeper&zookeeper_scheme=sasl&acl=creator"
            if known
            else ""
        )
        given = f"&client_settings={settings}" if settings is not None else ""
        return f"bookkeeper://127.0.0.1:{port or self.secure}/guarded?{PATIENT}{auth}{given}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "logins").write_text(LOGINS, encoding="utf-8")
    (folder / "zookeeper").write_text("store:zoo-secret\n", encoding="utf-8")
    pem = folder / "pem"
    make_certificates(pem)
    port = free_port()
    extras = ClusterExtras(
        scheme="zk+longhierarchical",
        zookeeper={
            "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            "enforce.auth.enabled": "true",
            "enforce.auth.schemes": "sasl",
            "secureClientPort": str(port),
            "secureClientPortAddress": "127.0.0.1",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": f"{pem}/server.pem",
            "ssl.trustStore.location": f"{pem}/ca.crt",
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "need",
        },
        bookie={
            **TLS,
            "tlsKeyStoreType": "PEM",
            "tlsKeyStore": f"{pem}/server.key",
            "tlsCertificatePath": f"{pem}/server.crt",
            "tlsTrustStoreType": "PEM",
            "tlsTrustStore": f"{pem}/ca.crt",
            "tlsClientAuthentication": "true",
        },
        java=[f"-Djava.security.auth.login.config={folder / 'logins'}"],
        registry_client={
            "sasl_options": {
                "mechanism": "DIGEST-MD5",
                "username": "store",
                "password": "zoo-secret",
            }
        },
    )
    with BookKeeperCluster(folder / "cluster", 1, extras=extras) as running:
        yield Guarded(running, folder, port)


# kazoo's thread ends by the refusal, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@slow(25)
def test_who_has_certificates_and_passwords_comes_in_and_who_lacks_one_learns_which(
    guarded: Guarded, tmp_path: Path
) -> None:
    pem, given = guarded.folder / "pem", tmp_path / "client.properties"
    stranger = {
        "clientKeyStore": f"{pem}/stranger.key",
        "tlsCertificatePath": f"{pem}/stranger.crt",
    }
    (tmp_path / "guess").write_text("store:barley\n", encoding="utf-8")
    with kept_gateway():
        plain = guarded.url(
            None, known=False, port=int(guarded.cluster.zookeeper.rpartition(":")[2])
        )
        refused(
            tmp_path / "nobody",
            plain,
            "see .*zookeeper_scheme|client cannot be made with its settings",
        )
        use(tmp_path / "store", guarded.url(guarded.settings(given)))
        for other, words in (
            ({"tlsClientAuthentication": None}, "refuses this client: see tlsClientAuthentication"),
            (stranger, "refuses this client: see tlsClientAuthentication"),
            ({"clientTrustStore": f"{pem}/other.crt"}, "does not trust it: see clientTrustStore"),
            ({"clientTrustStore": f"{pem}/nowhere.crt"}, "client cannot be made with its settings"),
        ):
            url = guarded.url(guarded.settings(given, **other))
            refused(tmp_path / "refused", url, words)
            assert not (tmp_path / "refused" / "store.toml").exists()
        guess = guarded.url(guarded.settings(given)).replace(
            f"{guarded.folder}/zookeeper", f"{tmp_path}/guess"
        )
        assert "barley" not in refused(tmp_path / "guessing", guess, "SASL authentication failed")


@slow(20)
def test_a_bookie_that_comes_back_without_tls_is_named_until_it_has_it_again(
    guarded: Guarded, tmp_path: Path
) -> None:
    url = guarded.url(guarded.settings(tmp_path / "client.properties")).replace(
        "/guarded?", "/another?"
    )
    cluster = guarded.cluster

    async def main() -> None:
        async with segmentstore.open(str(tmp_path / "store"), **{**LAZY, "tier1": url}) as store:
            await store.create_segment("a")

            def says(words: str) -> bool:
                return any(words in line for line in store.stats()["health"])

            await asyncio.to_thread(cluster.stop_bookie, 0)
            await asyncio.to_thread(cluster.start_bookie, 0, {"tlsProviderFactoryClass": ""})
            late = store.append("a", b"late")
            await until(lambda: says("it does not speak TLS: see tlsProviderFactoryClass"))
            await asyncio.to_thread(cluster.stop_bookie, 0)
            await asyncio.to_thread(cluster.start_bookie, 0)
            await late
            assert await read_all(store, "a") == b"late"

    with kept_gateway():
        run(main(), limit_s=SLOW_TLS_S)


@slow(3)
@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            {"zookeeper_ssl_keyStore_location": None},
            "certificate.*see zookeeper.ssl.keyStore.location",
        ),
        (
            {"zookeeper_ssl_keyStore_location": "{pem}/stranger.pem"},
            "certificate.*see zookeeper.ssl.keyStore.location",
        ),
        (
            {"zookeeper_ssl_trustStore_location": "{pem}/other.crt"},
            "see zookeeper.ssl.trustStore.location",
        ),
        (
            {"zookeeper_ssl_trustStore_location": "{pem}/nowhere"},
            "trustStore.location: .*/nowhere cannot be used: No such",
        ),
        (
            {
                "zookeeper_ssl_keyStore_location": "{pem}/ca.crt",
                "zookeeper_ssl_keyStore_type": "PEM",
            },
            "cannot be used",
        ),
        (
            {"zookeeper_ssl_trustStore_type": "PKCS12"},
            "is not of type PEM, which the store's own session",
        ),
    ],
)
def test_who_does_not_agree_with_zookeeper_on_tls_learns_the_setting(
    guarded: Guarded,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    other: Mapping[str, str | None],
    words: str,
) -> None:
    # With a gateway that never comes: this is said by the store's own session, while the other is
    # waited for.
    monkeypatch.setenv(TOKEN_VARIABLE, "a secret")
    changed = {
        name: value and value.format(pem=guarded.folder / "pem") for name, value in other.items()
    }
    url = (
        guarded.url(guarded.settings(tmp_path / "client.properties", **changed))
        + "&gateway=127.0.0.1:1"
    )
    with pytest.raises(ConfigError, match=words) as caught:
        asyncio.run(
            asyncio.wait_for(open_clients(BookKeeperLocation.parse(url), {}, Runtime()), SLOW_TLS_S)
        )
    assert caught.value.setting == "tier1"
