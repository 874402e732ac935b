"""What each error means to the shell."""

from __future__ import annotations

import pytest

from segmentstore.cli.exit_codes import CommandError, ExitCode, exit_code_for, sentence
from segmentstore.contracts import errors
from tests.cli.shell import segmentstore

CASES: list[tuple[errors.SegmentStoreError, ExitCode]] = [
    (errors.SegmentNotFoundError("a"), ExitCode.REFUSED),
    (errors.SegmentSealedError("a"), ExitCode.REFUSED),
    (errors.BadOffsetError("a", 1, 2), ExitCode.REFUSED),
    (errors.InvalidNameError("", "empty"), ExitCode.REFUSED),
    (errors.NotAStoreError("x"), ExitCode.REFUSED),
    (errors.AppendTooLargeError(2, 1), ExitCode.REFUSED),
    (CommandError("no such file"), ExitCode.REFUSED),
    (errors.ConfigError("containers", "0"), ExitCode.USAGE),
    (errors.InvalidArgumentError("offset", -1, "negative"), ExitCode.USAGE),
    (errors.DataCorruptionError("file", "bad"), ExitCode.CORRUPTION),
    (errors.StoreInUseError("x"), ExitCode.IN_USE),
    (errors.NotPrimaryError(0), ExitCode.IN_USE),
    (errors.TierUnavailableError("tier2", "full"), ExitCode.UNAVAILABLE),
    (errors.StoreUnreachableError("x", "no process"), ExitCode.UNAVAILABLE),
    (errors.ContainerStoppedError(0), ExitCode.UNAVAILABLE),
    (errors.ContainerStoppedError(0, OSError(5, "input/output error")), ExitCode.UNAVAILABLE),
    (
        errors.ContainerStoppedError(0, errors.DataCorruptionError("file", "bad")),
        ExitCode.CORRUPTION,
    ),
    (errors.AppendOutcomeUnknownError(0, errors.NotPrimaryError(0)), ExitCode.IN_USE),
]


@pytest.mark.parametrize(("error", "code"), CASES, ids=lambda value: type(value).__name__)
def test_code_of_an_error(error: errors.SegmentStoreError, code: ExitCode) -> None:
    assert exit_code_for(error) == code


def test_an_error_is_one_line() -> None:
    assert (
        sentence(errors.DataCorruptionError("here", "one\n  two"))
        == "corrupt data at here: one two"
    )
    assert sentence(KeyError()) == "KeyError"


def test_a_path_that_cannot_be_reached_is_one_line() -> None:
    for command in (["ls"], ["archive", "verify"], ["doctor"]):
        done = segmentstore(*command, "x" * 5000)
        assert done.code == ExitCode.UNAVAILABLE
        assert done.err.startswith("segmentstore: [Errno 36] File name too long: ")
        assert done.err.count("\n") == 1
