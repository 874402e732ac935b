"""What an error means to the shell: one table from error classes to exit codes, and the sentence
for stderr.
"""

from __future__ import annotations

import enum

from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    ConfigError,
    ContainerStoppedError,
    DataCorruptionError,
    InvalidArgumentError,
    MissingExtraError,
    NotPrimaryError,
    SegmentStoreError,
    StoreInUseError,
    StoreUnreachableError,
    TierUnavailableError,
)


class ExitCode(enum.IntEnum):
    """How a command ended."""

    DONE = 0
    REFUSED = 1
    """The store said no; nothing was changed by what was refused."""
    USAGE = 2
    """The command, an argument or a setting is wrong."""
    CORRUPTION = 3
    """Stored bytes are not what was written, or `verify` has a harmful finding."""
    IN_USE = 4
    """Another process has the store, or took it over."""
    UNAVAILABLE = 5
    """A tier does not answer, no process serves the store, a container stopped, or a path cannot be
    reached: try again.
    """
    LOSS = 6
    """`restore` did what it could, and Tier 2 has lost bytes that it held: they are named."""
    INTERRUPTED = 130
    """Ended by Ctrl-C, as shells have it (128 + SIGINT)."""


class CommandError(SegmentStoreError):
    """A command cannot go on for a reason of its own, e.g. an input file.

    The caller's move: mend what it names.
    """


_CODES: tuple[tuple[type[SegmentStoreError], ExitCode], ...] = (
    (DataCorruptionError, ExitCode.CORRUPTION),
    (StoreInUseError, ExitCode.IN_USE),
    (NotPrimaryError, ExitCode.IN_USE),
    (TierUnavailableError, ExitCode.UNAVAILABLE),
    (StoreUnreachableError, ExitCode.UNAVAILABLE),
    (ContainerStoppedError, ExitCode.UNAVAILABLE),
    (AppendOutcomeUnknownError, ExitCode.UNAVAILABLE),
    (ConfigError, ExitCode.USAGE),
    (InvalidArgumentError, ExitCode.USAGE),
    (MissingExtraError, ExitCode.USAGE),
)
"""Read from the top; what is not here is REFUSED."""


def exit_code_for(error: SegmentStoreError) -> ExitCode:
    """The exit code of an error.

    A stopped container counts as what stopped it, where that is one of ours.
    """
    if isinstance(error, ContainerStoppedError | AppendOutcomeUnknownError) and isinstance(
        error.cause, SegmentStoreError
    ):
        return exit_code_for(error.cause)
    for error_class, code in _CODES:
        if isinstance(error, error_class):
            return code
    return ExitCode.REFUSED


def sentence(error: BaseException) -> str:
    """One line for stderr: what was wrong, without a traceback."""
    text = " ".join(str(error).split())
    return text or type(error).__name__
