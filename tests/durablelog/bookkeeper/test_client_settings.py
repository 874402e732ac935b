"""A file of client settings: what is passed on, and that what is ours is refused by name, and no
value ever shown.
"""

from __future__ import annotations

import pytest

from durablelog.bookkeeper.client_settings import FIXED, parse_client_settings
from durablelog.bookkeeper.gateway.gateway_settings import CLIENT_SETTINGS, GatewaySettings
from segmentstore.contracts.errors import ConfigError

TEXT = r"""
# of this cluster
tlsProvider = JDK
clientTrustStore: /etc/tr\u0075st.p12
ensemblePlacementPolicy=org.apache.bookkeeper.client.\
    RackawareEnsemblePlacementPolicy
java.security.auth.login.config=/etc/jaas.conf
zookeeper.sasl.client=true
"""


def test_settings_and_system_properties_are_distinguished_and_override_ours() -> None:
    given = parse_client_settings(TEXT, "/etc/client.properties")
    policy = "org.apache.bookkeeper.client.RackawareEnsemblePlacementPolicy"
    assert given.client == {
        "tlsProvider": "JDK",
        "clientTrustStore": "/etc/trust.p12",
        "ensemblePlacementPolicy": policy,
    }
    assert given.system == {
        "java.security.auth.login.config": "/etc/jaas.conf",
        "zookeeper.sasl.client": "true",
    }
    settings = GatewaySettings(metadata_uri="zk+null://h/ledgers", given=given)
    lines = settings.client_settings().splitlines()
    assert f"ensemblePlacementPolicy={policy}" in lines
    assert len([line for line in lines if line.startswith("ensemblePlacementPolicy=")]) == 1
    assert "delayEnsembleChange=true" in lines
    assert settings.system_properties().splitlines() == [
        f"{name}={value}" for name, value in given.system.items()
    ]
    assert "/etc/jaas.conf" not in repr(settings)


@pytest.mark.parametrize("name", FIXED)
def test_what_the_log_depends_on_is_refused_by_name(name: str) -> None:
    with pytest.raises(
        ConfigError, match=f"client_settings: /f: {name} is set by the store itself"
    ) as caught:
        parse_client_settings(f"{name}=sesame\n", "/f")
    assert "sesame" not in str(caught.value)


def test_what_is_fixed_and_chosen_by_us_is_among_our_settings() -> None:
    ours = {name for name in FIXED if not name.startswith(("zk", "ledger", "metadata", "use"))}
    assert ours <= CLIENT_SETTINGS.keys()


@pytest.mark.parametrize("text", ["a=1\na=2", "a=1\\n2", "=sesame", "a\\=b=sesame", "a=\\u00zz"])
def test_what_can_be_no_setting_is_refused_without_its_value(text: str) -> None:
    with pytest.raises(ConfigError, match="client_settings: /f") as caught:
        parse_client_settings(text, "/f")
    assert "sesame" not in str(caught.value)
