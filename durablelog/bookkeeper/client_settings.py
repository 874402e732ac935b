"""Settings of BookKeeper's client that an operator gives in a file of Java properties. Pure.

The file may hold secrets: nothing of its values is ever said. Rules of this file:

- a setting that the log depends on is ours and is refused by name; all others are passed on as they
  are, unknown ones too;
- names of Java's own (`java.security.`, `zookeeper.` and a few more) are system properties of the
  gateway: that is where the clients of ZooKeeper and SASL read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from segmentstore.contracts.errors import ConfigError

SETTING: Final = "client_settings"
FILE_VARIABLE: Final = "SEGMENTSTORE_BOOKKEEPER_CLIENT_SETTINGS"
FILE_BYTES_MAX: Final = 64 * 1024

FIXED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "metadataServiceUri",
            "zkServers",
            "zkLedgersRootPath",
            "ledgerManagerFactoryClass",
            "ledgerManagerType",
        ),
        "where the cluster's metadata are is said by the URL, and of which layout they "
        "are by themselves",
    ),
    "delayEnsembleChange": "without it one dead bookie of three ends a ledger",
    "addEntryQuorumTimeoutSec": "no append may wait for ever",
    "throttle": "the log bounds what is in flight by itself",
    "numWorkerThreads": "results of a ledger come from one thread, in order",
    "explicitLacInterval": "views of the store depend on it",
    "useV2WireProtocol": "it does not report what is acknowledged",
    "bookieQuarantineTimeSeconds": "a bookie in trouble is left out for so long",
}
"""Settings that are ours, and why."""

SECURE: Final = "zookeeper.client.secure"
"""Whether ZooKeeper is spoken to by TLS."""
_SOCKET: Final = "zookeeper.clientCnxnSocket"
_ENCRYPTED_SOCKET: Final = "org.apache.zookeeper.ClientCnxnSocketNetty"

_SYSTEM_PREFIXES: Final = ("java.security.", "javax.", "sun.security.", "zookeeper.", "jute.")


class ClientSettings(NamedTuple):
    """What the file says."""

    client: Mapping[str, str]
    """By BookKeeper's own names."""
    system: Mapping[str, str]
    """System properties of the gateway's Java: the same for all stores of a process."""

    def __repr__(self) -> str:
        return f"ClientSettings({', '.join([*self.client, *self.system])})"


NONE: Final = ClientSettings({}, {})


def parse_client_settings(text: str, path: str) -> ClientSettings:
    """What a file of Java properties says.

    Raises ConfigError naming the file and the setting, never a value.
    """
    # Not at the top: few stores have such a file.
    import javaproperties  # noqa: PLC0415

    where = f"{SETTING}: {path}"
    try:
        pairs = javaproperties.loads(text, object_pairs_hook=list)
    except (ValueError, UnicodeError):
        raise ConfigError(
            "tier1", f"{where} is not a file of Java properties (name=value lines)"
        ) from None
    values: dict[str, str] = {}
    for name, value in pairs:
        if name in FIXED:
            raise ConfigError("tier1", f"{where}: {name} is set by the store itself: {FIXED[name]}")
        if name in values:
            raise ConfigError("tier1", f"{where}: {name} stands there twice")
        if not name or any(character in name + value for character in "\r\n\0") or "=" in name:
            raise ConfigError(
                "tier1", f"{where}: {name!r} has a name or a value that no setting can have"
            )
        values[name] = value
    system = {name: value for name, value in values.items() if name.startswith(_SYSTEM_PREFIXES)}
    client = {name: value for name, value in values.items() if name not in system}
    if system.get(SECURE, "").lower() == "true":
        # The usual one knows no TLS, and ZooKeeper's client does not choose by itself.
        system.setdefault(_SOCKET, _ENCRYPTED_SOCKET)
    return ClientSettings(client, system)
