"""How a log on BookKeeper is kept: the settings of one container's BookKeeperLog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from durablelog.bookkeeper.bookkeeper_location import PASSWORD_VARIABLE, BookKeeperLocation
from durablelog.bookkeeper.ledger_store import Replication
from segmentstore.contracts.errors import ConfigError

LEDGER_BYTES: Final = 1024 * 1024 * 1024
OPEN_TIMEOUT_S: Final = 30.0
PASSWORD_FROM: Final = f"the one given, by password_file or else by {PASSWORD_VARIABLE}"
_USUAL: Final = Replication()


@dataclass(frozen=True, slots=True, kw_only=True)
class BookKeeperLogOptions:
    """Raises ConfigError for what makes no sense."""

    replication: Replication = _USUAL
    degraded_replication: Replication | None = None
    """For ledgers begun while too few bookies are registered for `replication`; None waits for
    more.
    """
    ledger_bytes: int = LEDGER_BYTES
    """A ledger that has so many bytes is followed by the next one; each takes at least one
    frame.
    """
    open_timeout_s: float = OPEN_TIMEOUT_S
    """How long `open` waits for bookies and nodes that do not answer.

    A running log waits as long as it takes.
    """
    password_from: str = PASSWORD_FROM
    """For people, where the password of the ledgers comes from; said when it is not the right
    one.
    """

    @classmethod
    def at(cls, location: BookKeeperLocation) -> Self:
        """What the URL of a store says about each of its logs."""
        return cls(
            replication=location.replication,
            degraded_replication=location.degraded,
            ledger_bytes=location.ledger_bytes,
            password_from=location.password_from,
        )

    def __post_init__(self) -> None:
        _check("replication", self.replication)
        if self.degraded_replication is not None:
            _check("degraded_replication", self.degraded_replication)
            if self.degraded_replication.ensemble >= self.replication.ensemble:
                detail = (
                    f"{self.degraded_replication}: its ensemble must be smaller than that of "
                    f"{self.replication}"
                )
                raise ConfigError("degraded_replication", detail)
        if self.ledger_bytes < 1:
            raise ConfigError("ledger_bytes", f"{self.ledger_bytes}: it must be positive")
        if self.open_timeout_s < 0:
            raise ConfigError("open_timeout_s", f"{self.open_timeout_s}: it must not be negative")


def _check(setting: str, replication: Replication) -> None:
    ensemble, write_quorum, ack_quorum = replication
    if not 1 <= ack_quorum <= write_quorum <= ensemble:
        detail = f"{replication}: it must be 1 <= ack quorum <= write quorum <= ensemble"
        raise ConfigError(setting, detail)
