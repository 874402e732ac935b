"""Control calls to the gateway: the one module that speaks py4j.

Everything here blocks; call it from an executor.

An answer is one text: BookKeeper's code in its first line, then the result, or what went wrong.
py4j's own exceptions mean that the gateway or the way to it is lost, or that it hangs: no call
waits for it without an end.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final

from py4j.java_gateway import (
    GatewayClient,
    GatewayConnection,
    GatewayParameters,
    JavaGateway,
    quiet_close,
    set_linger,
)
from py4j.protocol import Py4JAuthenticationError, Py4JError

from durablelog.bookkeeper.gateway.gateway_settings import GATEWAY_CLOSED, TIMEOUT, TOKEN_VARIABLE
from durablelog.bookkeeper.ledger_store import OK, LedgerError
from segmentstore.contracts.errors import ConfigError, describe

logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
"""It writes tracebacks for what we report as errors."""


ANSWER_S: Final = 20.0
"""For calls that the gateway answers at once."""

_answer_s: ContextVar[float] = ContextVar("answer_s", default=ANSWER_S)
"""Of the call this thread is in; py4j would know one for all calls."""


class GatewayHangsError(LedgerError):
    """The gateway is there, and has said nothing for longer than the call may take."""


class _Client(GatewayClient):  # type: ignore[misc] # it brings no types
    """Sends each command once: py4j's own sends it again when the answer is lost, which could
    create a ledger twice.

    It also reports that to the root logger, leaves open what it could not connect, and keeps for
    ever a connection whose call ended after `close`.
    """

    def __init__(self, parameters: GatewayParameters) -> None:
        super().__init__(gateway_parameters=parameters)
        self._closing = threading.Lock()

    def _create_connection(self) -> Any:
        connection = GatewayConnection(self.gateway_parameters, self.gateway_property)
        connection.socket.settimeout(_answer_s.get())
        try:
            connection.start()
        except BaseException:
            _cut(connection)
            raise
        return connection

    def send_command(self, command: str, *_: object, **__: object) -> str:
        connection = self._get_connection()
        try:
            connection.socket.settimeout(_answer_s.get())
            answer: str = connection.send_command(command)
        except BaseException:
            _cut(connection)
            raise
        self._give_back_connection(connection)
        return answer

    def _give_back_connection(self, connection: Any) -> None:
        with self._closing:
            if self.is_connected:
                self.deque.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Calls that are under way end by themselves, and their connections with them; there are no
        further ones.
        """
        with self._closing:
            self.is_connected = False
            idle = list(self.deque)
            self.deque.clear()
        for connection in idle:
            connection.close()


class GatewayControl:
    """One gateway's control calls. May be called from many threads at once."""

    def __init__(self, host: str, port: int, token: str) -> None:
        parameters = GatewayParameters(address=host, port=port, auth_token=token, auto_convert=True)
        self._java: Any = JavaGateway(gateway_client=_Client(parameters))

    def call(self, name: str, *arguments: object, answer_s: float = ANSWER_S) -> list[str]:
        """What the gateway answers, line by line, without the code.

        Raises LedgerError; ConfigError for a wrong token.

        Takes as long as the gateway takes; after `answer_s` seconds of silence GatewayHangsError.
        """
        _answer_s.set(answer_s)
        try:
            text: str = getattr(self._java.entry_point, name)(*arguments)
        except Py4JAuthenticationError as error:
            raise ConfigError(
                "tier1", f"the gateway does not accept the token of {TOKEN_VARIABLE}"
            ) from error
        except (Py4JError, OSError) as error:
            if _is_silence(error):
                detail = f"the gateway did not answer for {answer_s:.0f} s"
                raise GatewayHangsError(TIMEOUT, name, detail) from error
            raise LedgerError(
                GATEWAY_CLOSED, name, f"the gateway does not answer: {describe(error)}"
            ) from error
        code, *lines = text.split("\n")
        if int(code) != OK:
            raise LedgerError(int(code), name, " ".join(lines))
        return lines

    def close(self) -> None:
        """Release the connections, those of calls under way when these end; the gateway itself
        goes on. Idempotent.
        """
        try:
            self._java.close()
        except (Py4JError, OSError):
            pass  # it was missing before


def _cut(connection: Any) -> None:
    """Close it in the middle of whatever it does, without a farewell."""
    with suppress(OSError):
        set_linger(connection.socket)
    quiet_close(getattr(connection, "stream", None))
    quiet_close(connection.socket)


def _is_silence(error: BaseException | None) -> bool:
    """Whether py4j waited in vain: it wraps what it met, once or twice."""
    while error is not None and not isinstance(error, TimeoutError):
        error = getattr(error, "cause", None)
    return error is not None
