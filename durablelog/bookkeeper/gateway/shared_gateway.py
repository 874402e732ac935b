"""The one gateway of this process: started for the first who needs it, ended with the last, started
anew after it died.

Everything here blocks; call it from an executor. It is the one thing that stores of a process
share, whatever loops they run on, so it is guarded by a lock of the module.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from random import Random
from typing import Final, Protocol

from durablelog.bookkeeper.gateway.gateway_control import GatewayControl
from durablelog.bookkeeper.gateway.gateway_process import GatewayProcess
from durablelog.bookkeeper.gateway.gateway_settings import (
    GATEWAY_CLOSED,
    TOKEN_VARIABLE,
    check_token,
)
from durablelog.bookkeeper.ledger_store import LedgerError
from segmentstore.contracts import forks
from segmentstore.contracts.errors import ConfigError

DEATHS_MAX: Final = 5
DEATHS_WITHIN_S: Final = 60.0
"""More starts than that are no cure: what kills the gateway has to be found."""


class Gateway(Protocol):
    """A gateway that its caller may use until it releases it."""

    control: GatewayControl
    token: str
    data_socket: str

    @property
    def alive(self) -> bool:
        """Whether it can be of use yet."""

    def release(self) -> None:
        """Give it back. Once for each that was acquired."""

    def kill(self) -> None:
        """It does not answer: end it, if it is ours to end. It is not alive from here on."""


class AttachedGateway:
    """A gateway that another program started."""

    def __init__(self, address: str) -> None:
        """Raises LedgerError if no gateway answers, ConfigError if the address or the token is
        wrong.
        """
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError("tier1", f"the gateway's address {address!r} is not HOST:PORT")
        self.token = os.environ.get(TOKEN_VARIABLE, "")
        if not self.token:
            raise ConfigError(
                "tier1", f"a gateway at an address needs its token in {TOKEN_VARIABLE}"
            )
        check_token(self.token)
        self.control = GatewayControl(host, int(port), self.token)
        try:
            (self.data_socket,) = self.control.call("dataSocket")
        except BaseException:
            self.control.close()
            raise
        self.alive = True

    def release(self) -> None:
        self.alive = False
        self.control.close()

    def kill(self) -> None:
        self.alive = False


class OwnGateway:
    """The gateway of this process, as one of its users sees it."""

    def __init__(self, process: GatewayProcess, token: str) -> None:
        self.process = process
        self.control = process.control
        self.data_socket = process.data_socket
        self.token = token
        self.users = 0
        self._killed = False

    @property
    def alive(self) -> bool:
        return not self._killed and self.process.alive

    def release(self) -> None:
        with _LOCK:
            self.users -= 1
            if self.users == 0:
                self.process.stop()
                _state.forget(self, died=self._killed or self.process.died)

    def kill(self) -> None:
        # A process that was killed may take its time to go.
        self._killed = True
        self.process.kill()


class GatewayDeaths:
    """How often the gateway died, and whether it may be started once more."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=DEATHS_MAX)

    def add(self, now: float) -> None:
        """One more, noticed at `now` (seconds, only forward).

        Raises LedgerError if there were too many: wait.
        """
        times = self._times
        if len(times) == DEATHS_MAX and now - times[0] < DEATHS_WITHIN_S:
            raise LedgerError(
                GATEWAY_CLOSED,
                "start",
                f"the gateway died {DEATHS_MAX} times within {DEATHS_WITHIN_S:.0f} s",
            )
        times.append(now)


class _Shared:
    def __init__(self) -> None:
        self.gateway: OwnGateway | None = None
        self.died = False
        """The one before did, and that is not counted yet."""
        self.deaths = GatewayDeaths()

    def forget(self, gateway: OwnGateway, *, died: bool) -> None:
        """No caller gets it any more."""
        if self.gateway is gateway:
            self.gateway = None
            self.died = died


_LOCK = threading.Lock()
_state: Final = _Shared()


def _begin_child(state: _Shared) -> None:
    """In a forked child: the gateway is the parent's, and the thread that had the lock does not
    exist here.
    """
    global _LOCK  # noqa: PLW0603
    _LOCK = threading.Lock()
    state.gateway = None
    state.died = False


forks.in_child(_state, _begin_child)


def acquire_own(now: float, random: Random) -> OwnGateway:
    """The process's gateway; started, if there is none or it died.

    `now` is a time in seconds that only goes forward.

    Raises LedgerError if it does not start, or died too often; GatewayMissingError if its pieces
    are not here.
    """
    with _LOCK:
        gateway = _state.gateway
        if gateway is None or not gateway.alive:
            if gateway is not None:
                _state.forget(gateway, died=True)
            # A start after an orderly end is none that failed: only those that died are counted.
            if _state.died:
                _state.deaths.add(now)
                _state.died = False
            token = f"{random.getrandbits(256):064x}"
            try:
                _state.gateway = gateway = OwnGateway(GatewayProcess(token), token)
            except OSError as error:
                # A full disk, or no process more: it passes, and is no reason to end what runs.
                raise LedgerError(
                    GATEWAY_CLOSED, "start", f"the gateway cannot be started: {error}"
                ) from error
        gateway.users += 1
        return gateway
