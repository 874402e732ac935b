"""A gateway in the foreground, for stores that attach to it:
`python -m durablelog.bookkeeper.gateway [PORT]`.

Prints its address, and ends with Ctrl-C, SIGTERM, or its parent. Its secret is in
SEGMENTSTORE_GATEWAY_TOKEN.
"""

from __future__ import annotations

import os
import signal
import sys

from durablelog.bookkeeper.gateway.gateway_process import HOST, GatewayProcess
from durablelog.bookkeeper.gateway.gateway_settings import TOKEN_VARIABLE, check_token
from durablelog.bookkeeper.ledger_store import LedgerError
from segmentstore.contracts.errors import ConfigError


def main(arguments: list[str]) -> int:
    """The exit code: 0 when it was asked to end, 1 when the gateway ended by itself, 2 when it
    could not be started.
    """
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token or len(arguments) > 1 or not all(argument.isdigit() for argument in arguments):
        sys.stderr.write(
            f"usage: {TOKEN_VARIABLE}=SECRET python -m durablelog.bookkeeper.gateway [PORT]\n"
        )
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        gateway = GatewayProcess(check_token(token), int(arguments[0]) if arguments else 0)
    except (ConfigError, LedgerError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    try:
        sys.stdout.write(f"{HOST}:{gateway.port}\n")
        sys.stdout.flush()
        gateway.wait()
        sys.stderr.write(f"the gateway ended: {gateway.log_end()}\n")
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        gateway.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
