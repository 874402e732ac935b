"""`python -m recovery.harness.services install`: what `make services` runs."""

from __future__ import annotations

import sys

from recovery.harness.services.installing import ServiceMissingError, install


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Install the servers of the tests.

    0 if all is there, 1 if a piece is missing, 2 for another command.
    """
    if arguments != ["install"]:
        sys.stderr.write("usage: python -m recovery.harness.services install\n")
        return 2
    try:
        install(_say)
    except ServiceMissingError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
