"""How the gateway is reached, and which settings its BookKeeper client gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from durablelog.bookkeeper.client_settings import NONE, ClientSettings
from segmentstore.contracts.errors import ConfigError

# Where the secret is, not the secret.
TOKEN_VARIABLE: Final = "SEGMENTSTORE_GATEWAY_TOKEN"  # noqa: S105
"""The environment variable with the secret of a gateway: a process that attaches to one needs it.
"""
ADDRESS_VARIABLE: Final = "SEGMENTSTORE_GATEWAY"
"""The environment variable with the `host:port` of a gateway, for a process that a supervisor
started beside it: such an address is not kept in `store.toml`.
"""
LOG_VARIABLE: Final = "SEGMENTSTORE_GATEWAY_LOG"
"""The environment variable with a folder where gateways leave their logs; without it they go with
the gateway.
"""

TOKEN_BYTES_MAX: Final = 1024
"""Of that secret: a gateway ends the handshake of a longer one."""

GATEWAY_CLOSED: Final = -19
"""BookKeeper's ClientClosed: the gateway, or the way to it, is lost.

What was in flight may be in the ledger or not.
"""
METADATA_SERVICE: Final = -9
"""BookKeeper's ZK: ZooKeeper does not answer."""
TIMEOUT: Final = -23
SETTING: Final = -998
"""The gateway's own: the client cannot be made with these settings. Trying again does not help."""

CLIENT_SETTINGS: Final[Mapping[str, str]] = {
    # Without it one dead bookie of three, and no fourth, ends a ledger at once.
    "delayEnsembleChange": "true",
    # A fencing open with one bookie hanging: 1.5 s instead of 12.
    "speculativeReadTimeout": "200",
    # All entries of a ledger from one bookie: it reads ahead. In turn, each bookie would read all.
    "stickyReadSEnabled": "true",
    # Longer than a bookie's stall of the disk or of its garbage collection.
    "addEntryTimeoutSec": "5",
    # The net below everything: off by default.
    "addEntryQuorumTimeoutSec": "10",
    "readEntryTimeoutSec": "5",
    # An idle writer confirms to bookies what is acknowledged, in ms: a concurrent reader sees the
    # last entry, too.
    "explicitLacInterval": "200",
    # The default lets through 5,000 adds and then blocks the thread that reads them; the log has a
    # window of its own.
    "throttle": "0",
    # New ledgers do without a bookie that was in trouble so lately, if there are enough others.
    "bookieQuarantineTimeSeconds": "10",
    "ensemblePlacementPolicy": "org.apache.bookkeeper.client.DefaultEnsemblePlacementPolicy",
    # One worker: the results of a ledger come from one thread, in order.
    "numWorkerThreads": "1",
    "numIOThreads": "1",
    "zkTimeout": "10000",
}
"""For BookKeeper's client, by its own names; each was found necessary
(docs/decisions/0022-gateway.md).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Which cluster, which secret, which gateway."""

    metadata_uri: str
    """As BookKeeper writes it, e.g. `zk+null://host:2181;other:2181/ledgers`."""
    password: bytes = field(default=b"", repr=False)
    """Of the ledgers: it is given at creation and needed for everything afterwards."""
    attach: str | None = None
    """`host:port` of a gateway that runs already, on this machine, with its secret in
    SEGMENTSTORE_GATEWAY_TOKEN; None for one of this process's own, started when it is needed.
    """

    given: ClientSettings = NONE
    """By the operator; none of them is one that is fixed."""

    def client_settings(self) -> str:
        """For the gateway: a line "key=value" each."""
        return _lines(
            {"metadataServiceUri": self.metadata_uri, **CLIENT_SETTINGS, **self.given.client}
        )

    def system_properties(self) -> str:
        """For the gateway's Java, in the same way."""
        return _lines(self.given.system)


def check_token(token: str) -> str:
    """The secret of a gateway, given by its variable.

    Raises ConfigError if no handshake can have it.
    """
    try:
        size = len(token.encode())
    except UnicodeEncodeError:
        raise ConfigError("tier1", f"{TOKEN_VARIABLE} is not UTF-8") from None
    if not 1 <= size <= TOKEN_BYTES_MAX:
        raise ConfigError(
            "tier1", f"{TOKEN_VARIABLE} has {size} bytes, and must have 1 to {TOKEN_BYTES_MAX}"
        )
    return token


def _lines(settings: Mapping[str, str]) -> str:
    return "\n".join(f"{key}={value}" for key, value in settings.items())
