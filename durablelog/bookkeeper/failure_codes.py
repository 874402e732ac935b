"""What a log does about each of BookKeeper's return codes, and about each answer of its record's
node, call by call. The one table; docs/formats/bookkeeper-log.md has it for people.

Pure. Rules of this file:

- no code decides who owns a log: a fenced writer may get LedgerClosed first, and a fence may come
  from a tool. What ends a ledger makes the log *settle*, and settling begins with a check of the
  record: that decides;
- a code that is not in the table is unexpected: the log stops and touches nothing more, whatever
  was asked for. Deletions alone are tried again whatever the code (ledger_deleter.py): a ledger
  that cannot be deleted does no harm;
- what a node says of a change is not believed before the record was read again: a reply may be
  lost, and a conflict may be with ourselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class LedgerCall(Enum):
    """What was asked for."""

    ADD = "an append"
    CREATE = "creating a ledger"
    RECOVER = "recovering a ledger"
    READ = "reading a ledger"
    DELETE = "deleting a ledger"


class NodeCall(Enum):
    """What was asked of the node that holds the record."""

    READ = "read"
    CREATE = "create"
    WRITE = "write"


class NodeAnswer(Enum):
    """Where it is no plain yes: the exceptions of metadata_node.py."""

    CONFLICT = "conflict"
    """Another version than the one given, or there already, or missing."""
    NONE = "no answer"
    """The reply was lost, or the service is not available: which of them, and whether the change
    was done, is unknown.
    """
    REFUSED = "refused"
    """No rights."""


class Reaction(Enum):
    """What a log does about it."""

    SETTLE = "settle"
    """The ledger is finished for its writer, and the outcome of its last entries is unknown. Read
    the record; if it is still ours, recover the ledger, acknowledge what it holds, continue in a
    new one. If not: NotPrimaryError.
    """
    RETRY = "retry"
    """Nothing is known, or not now: again, with back-off, after a check of the record where one is
    needed.
    """
    TOO_FEW_BOOKIES = "too few bookies"
    """As RETRY; with `degraded_replication` that is tried first."""
    NO_LEDGER = "gone"
    """There is no such ledger: well if it was to be deleted; legal below the truncation point; else
    DataCorruptionError.
    """
    MISSING = "missing"
    """What must be there was not found by those who answered: a few tries, then
    DataCorruptionError.
    """
    READ_AGAIN = "read again"
    """Nothing is concluded, and nothing else is done, before the record was read again.

    Our own bytes in it: it was done. Of our epoch: again, on what is there. Of another one:
    NotPrimaryError.
    """
    REFUSED = "refused"
    """A secret that was given is not the right one, bookies do not let the client in, or settings
    contradict each other: ConfigError, the operator's move. What there is stays as it is.
    """
    FATAL = "fatal"
    """The log stops for good (TierUnavailableError); what there is stays as it is."""


CODE_NAMES: Final[Mapping[int, str]] = {
    0: "OK",
    -1: "Read",
    -2: "Quorum",
    -3: "NoBookieAvailable",
    -4: "DigestNotInitialized",
    -5: "DigestMatch",
    -6: "NotEnoughBookies",
    -7: "NoSuchLedgerExists",
    -8: "BookieHandleNotAvailable",
    -9: "ZK",
    -10: "LedgerRecovery",
    -11: "LedgerClosed",
    -12: "Write",
    -13: "NoSuchEntry",
    -14: "IncorrectParameter",
    -15: "Interrupted",
    -16: "ProtocolVersion",
    -17: "MetadataVersion",
    -18: "MetaStore",
    -19: "ClientClosed",
    -20: "LedgerExist",
    -21: "AddEntryQuorumTimeout",
    -22: "DuplicateEntryId",
    -23: "Timeout",
    -24: "Security",
    -25: "NoSuchLedgerExistsOnMetadataServer",
    -100: "IllegalOp",
    -101: "LedgerFenced",
    -102: "UnauthorizedAccess",
    -103: "UnclosedFragment",
    -104: "WriteOnReadOnlyBookie",
    -105: "TooManyRequests",
    -106: "LedgerIdOverflow",
    -107: "MetadataSerialization",
    -108: "DataUnknown",
    -200: "Replication",
    -998: "Setting",
    -999: "UnexpectedCondition",
}
"""BookKeeper's own names, without the "Exception"; -998 is the gateway's own."""

_SERVICE: Final[Mapping[int, Reaction]] = dict.fromkeys(
    (
        -2,  # not enough answers
        -8,  # a connection to a bookie is missing
        -9,  # the metadata service
        -10,  # too few answers to recover
        -12,  # too many changes of the ensemble while entries were written again
        -15,  # the client's threads were interrupted
        -18,  # the metadata service again
        -19,  # our client of BookKeeper ended; it starts again on demand
        -23,  # no answer in time
        -105,  # bookies ask for mercy
        -108,  # a bookie does not know what it has, after a crash: re-replication comes
    ),
    Reaction.RETRY,
)
_TOO_FEW: Final[Mapping[int, Reaction]] = {
    -3: Reaction.TOO_FEW_BOOKIES,
    -6: Reaction.TOO_FEW_BOOKIES,
}
_NO_LEDGER: Final[Mapping[int, Reaction]] = {-7: Reaction.NO_LEDGER, -25: Reaction.NO_LEDGER}
_NOT_LET_IN: Final[Mapping[int, Reaction]] = {-24: Reaction.REFUSED}
"""TLS, or our identity."""

REACTIONS: Final[Mapping[LedgerCall, Mapping[int, Reaction]]] = {
    # Every failed add has ended its ledger, whatever its code.
    LedgerCall.ADD: dict.fromkeys(
        (
            -3,
            -6,  # an ensemble change found no spare
            -8,
            -9,
            -11,  # closed: by its writer, by an error before, or the first a fenced writer gets
            -12,
            -15,
            -17,  # another client changed the ledger's metadata: by its recovery
            -18,
            -19,
            -21,  # no ack quorum in time
            -23,
            -101,  # fenced
            -104,
            -105,
        ),
        Reaction.SETTLE,
    ),
    LedgerCall.CREATE: {
        **_SERVICE,
        **_TOO_FEW,
        **_NOT_LET_IN,
        -102: Reaction.REFUSED,
        -998: Reaction.REFUSED,  # the placement policy has no place for such quorums
    },
    LedgerCall.RECOVER: {
        **_SERVICE,
        **_NO_LEDGER,
        **_NOT_LET_IN,
        -3: Reaction.RETRY,
        -6: Reaction.RETRY,
        -13: Reaction.RETRY,
        -17: Reaction.RETRY,  # another one recovered it at the same time
        -102: Reaction.REFUSED,  # made with another password
    },
    LedgerCall.READ: {
        **_SERVICE,
        **_NO_LEDGER,
        **_NOT_LET_IN,
        -3: Reaction.RETRY,
        -6: Reaction.RETRY,
        # too few bookies answered to open it: none said that anything is missing
        -1: Reaction.RETRY,
        -5: Reaction.MISSING,  # no replica that answered had it whole
        -13: Reaction.MISSING,
        -17: Reaction.RETRY,  # of the recovery before it
        -102: Reaction.REFUSED,
    },
    LedgerCall.DELETE: {**_SERVICE, **_NO_LEDGER, -17: Reaction.RETRY},
}

NODE_REACTIONS: Final[Mapping[NodeCall, Mapping[NodeAnswer, Reaction]]] = {
    NodeCall.READ: {NodeAnswer.NONE: Reaction.RETRY, NodeAnswer.REFUSED: Reaction.REFUSED},
    NodeCall.CREATE: {
        NodeAnswer.CONFLICT: Reaction.READ_AGAIN,
        NodeAnswer.NONE: Reaction.READ_AGAIN,
        NodeAnswer.REFUSED: Reaction.REFUSED,
    },
    NodeCall.WRITE: {
        NodeAnswer.CONFLICT: Reaction.READ_AGAIN,
        NodeAnswer.NONE: Reaction.READ_AGAIN,
        NodeAnswer.REFUSED: Reaction.REFUSED,
    },
}
"""Carried out by log_metadata_store.py; the waiting in between by its caller."""


def reaction(call: LedgerCall, code: int) -> Reaction:
    """What to do about a code that is not OK."""
    return REACTIONS[call].get(code, Reaction.FATAL)


def code_text(code: int) -> str:
    """For people, as in "-6 NotEnoughBookies"."""
    return f"{code} {CODE_NAMES.get(code, 'unknown')}"
