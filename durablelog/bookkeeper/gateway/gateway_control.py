"""Control calls to the gateway: the one module that speaks py4j.

Everything here blocks; call it from an executor.

An answer is one text: BookKeeper's code in its first line, then the result, or what went wrong.
py4j's own exceptions mean that the gateway or the way to it is gone, or that it hangs: no call
waits for it without an end.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Any, Final

from py4j.java_gateway import GatewayClient, GatewayConnection, GatewayParameters, JavaGateway
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

    It also tells the root logger of it, and leaves open what it could not connect.
    """

    def _create_connection(self) -> Any:
        connection = GatewayConnection(self.gateway_parameters, self.gateway_property)
        connection.socket.settimeout(_answer_s.get())
        try:
            connection.start()
        except BaseException:
            stream = getattr(connection, "stream", None)
            if stream is not None:
                stream.close()
            connection.socket.close()
            raise
        return connection

    def send_command(self, command: str, *_: object, **__: object) -> str:
        connection = self._get_connection()
        try:
            connection.socket.settimeout(_answer_s.get())
            answer: str = connection.send_command(command)
        except BaseException:
            connection.close(reset=True)
            raise
        self._give_back_connection(connection)
        return answer


class GatewayControl:
    """One gateway's control calls. May be called from many threads at once."""

    def __init__(self, host: str, port: int, token: str) -> None:
        parameters = GatewayParameters(address=host, port=port, auth_token=token, auto_convert=True)
        self._java: Any = JavaGateway(gateway_client=_Client(gateway_parameters=parameters))

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
        """Let go of the connections; the gateway itself goes on."""
        try:
            self._java.close()
        except (Py4JError, OSError):
            pass  # it was gone before


def _is_silence(error: BaseException | None) -> bool:
    """Whether py4j waited in vain: it wraps what it met, once or twice."""
    while error is not None and not isinstance(error, TimeoutError):
        error = getattr(error, "cause", None)
    return error is not None
