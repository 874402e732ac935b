"""The command line `segmentstore`: what a person needs to run, inspect and check a store.

Split by kind of knowledge: `app` joins the commands, `exit_codes` maps errors to exit codes,
`output` formats values, `stores` opens a store; the rest are the commands themselves.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

from segmentstore.contracts.allocator import tune_malloc
from segmentstore.contracts.collector import tune_gc
from segmentstore.contracts.errors import MissingExtraError
from segmentstore.contracts.extras import missing_modules

_USAGE: Final = 2
_INTERRUPTED: Final = 130
"""As in `exit_codes.ExitCode`, which is not loaded yet."""


def main() -> None:
    """Run the command line with the arguments of this process; ends it with one of the codes of
    `exit_codes`.

    Ctrl-C ends it with 130 and one line at most, also while modules are loaded and while the
    interpreter ends.
    """
    _open_standard_streams()
    catches = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if catches:
        signal.signal(signal.SIGINT, _leave)
    missing = missing_modules("cli")
    if missing:
        sys.stderr.write(f"segmentstore: {MissingExtraError('the command line', 'cli', missing)}\n")
        sys.exit(_USAGE)
    # Not at the top: `import segmentstore.cli` stays light, and typer is loaded only to be used.
    from segmentstore.cli.app import run  # noqa: PLC0415

    tune_gc()
    tune_malloc()
    try:
        if catches:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        sys.stderr.write("segmentstore: interrupted\n")
        sys.exit(_INTERRUPTED)
    finally:
        if catches:
            # What is left is the interpreter's own end, which would show an interrupt as a
            # traceback.
            signal.signal(signal.SIGINT, _leave)


def _open_standard_streams() -> None:
    """Give those that are closed a file of their own, which keeps nothing.

    A socket, or a file of the store, would have the number else. What is written to stderr would go
    there, and uvloop ends a process that closes such a number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))


def _leave(*_: object) -> None:
    """End at once.

    Not by an exception: an import, or a callback of the interpreter, may catch it or print it.
    """
    os.write(2, b"segmentstore: interrupted\n")
    os._exit(_INTERRUPTED)
