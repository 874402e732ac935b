"""Calls on ledgers with the reactions of failure_codes.py: tried again where that helps, translated
where it does not.

Rules of this file:

- a create that failed may have created a ledger all the same, or may create it later, and it will
  never be listed. Another one is requested only when the record answers, so that an outage of
  ZooKeeper leaves one of them behind, and not one for each try;
- a ledger that was made with another password is a setting to mend: it is said where ours came
  from, never what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from durablelog.bookkeeper.failure_codes import LedgerCall, Reaction, code_text, reaction
from durablelog.bookkeeper.ledger_store import (
    LedgerDescription,
    LedgerError,
    LedgerStore,
    LedgerWriter,
    Replication,
)
from durablelog.bookkeeper.log_options import PASSWORD_FROM, BookKeeperLogOptions
from durablelog.bookkeeper.waiting import Waiting
from segmentstore.contracts.errors import ConfigError, TierUnavailableError

APPLICATION: Final = b"segmentstore"
_UNAUTHORIZED: Final = -102
_SETTING: Final = -998


class BegunLedger(NamedTuple):
    """A new ledger that is not listed in the record yet."""

    writer: LedgerWriter
    replication: Replication


def custom_metadata(store_id: str, container_id: int, epoch: int) -> dict[str, bytes]:
    """What is written into every ledger of ours: its owner, for tools that find it."""
    return {
        "application": APPLICATION,
        "store": store_id.encode(),
        "container": str(container_id).encode(),
        "epoch": str(epoch).encode(),
    }


def wrong_password(
    why: str, password_from: str = PASSWORD_FROM, *, code: int = _UNAUTHORIZED
) -> ConfigError:
    """For a ledger that Reaction.REFUSED is the reaction to; `code` distinguishes a password from
    an error of client_settings.
    """
    if code != _UNAUTHORIZED:
        return not_let_in(why)
    return ConfigError(
        "tier1", f"{why}: the ledger was made with another password than {password_from}"
    )


def not_let_in(why: str) -> ConfigError:
    """Where bookies refuse the client before any ledger is asked for."""
    return ConfigError(
        "tier1",
        f"{why}: bookies do not let the client in; TLS and authentication are set by "
        "client_settings",
    )


def unplaceable(why: str) -> ConfigError:
    """Where the placement policy throws."""
    return ConfigError(
        "tier1",
        f"{why}: the quorums of the URL do not suit the ensemblePlacementPolicy of client_settings",
    )


class LedgerCalls:
    """A LedgerStore as a log wants it."""

    def __init__(self, ledgers: LedgerStore, options: BookKeeperLogOptions) -> None:
        self.ledgers = ledgers
        self._options = options

    async def create(self, custom: Mapping[str, bytes], waiting: Waiting) -> BegunLedger:
        """A new ledger: on `replication`, or on `degraded_replication` if bookies are too few for
        the first.

        Raises TierUnavailableError, and what `waiting` raises.
        """
        begun = await self._created(custom, waiting, or_none=False)
        assert begun is not None
        return begun

    async def create_if_enough(
        self, custom: Mapping[str, bytes], waiting: Waiting
    ) -> BegunLedger | None:
        """As `create`, but None while bookies are too few: for a caller that can continue without a
        new ledger.
        """
        return await self._created(custom, waiting, or_none=True)

    async def _created(
        self, custom: Mapping[str, bytes], waiting: Waiting, *, or_none: bool
    ) -> BegunLedger | None:
        while True:
            try:
                begun = await self._create(custom)
            except LedgerError as error:
                if or_none and reaction(LedgerCall.CREATE, error.code) is Reaction.TOO_FEW_BOOKIES:
                    return None
                await self._again(LedgerCall.CREATE, error, waiting)
            else:
                waiting.over()
                return begun

    async def create_whole(self, custom: Mapping[str, bytes]) -> BegunLedger | None:
        """A new ledger on `replication`, tried once."""
        try:
            return BegunLedger(
                await self.ledgers.create(self._options.replication, custom),
                self._options.replication,
            )
        except LedgerError:
            return None

    async def recover(self, ledger_id: int, waiting: Waiting) -> LedgerDescription | None:
        """Fence a ledger and find its end; None if there is no such ledger.

        Raises as `create` does, and ConfigError (another password).
        """
        while True:
            try:
                description = await self.ledgers.recover(ledger_id)
            except LedgerError as error:
                if reaction(LedgerCall.RECOVER, error.code) is Reaction.NO_LEDGER:
                    return None
                await self._again(LedgerCall.RECOVER, error, waiting, f"ledger {ledger_id}: ")
            else:
                waiting.over()
                return description

    async def discard(self, writer: LedgerWriter) -> None:
        """Remove a ledger that was never listed, if that works at once; if not, it is an orphan
        that can be found.
        """
        await writer.close()
        try:
            await self.ledgers.delete(writer.ledger_id)
        except LedgerError:
            pass

    async def _create(self, custom: Mapping[str, bytes]) -> BegunLedger:
        whole, degraded = self._options.replication, self._options.degraded_replication
        try:
            return BegunLedger(await self.ledgers.create(whole, custom), whole)
        except LedgerError as error:
            if (
                degraded is None
                or reaction(LedgerCall.CREATE, error.code) is not Reaction.TOO_FEW_BOOKIES
            ):
                raise
            too_few = error
        try:
            return BegunLedger(await self.ledgers.create(degraded, custom), degraded)
        except LedgerError as error:
            if error.code == _SETTING:
                # A policy that has no place for so few is no reason to end a log that can wait for
                # more.
                raise too_few from error
            raise

    async def _again(
        self, call: LedgerCall, error: LedgerError, waiting: Waiting, what: str = ""
    ) -> None:
        detail = f": {error.detail}" if error.detail else ""
        why = f"{what}{call.value} failed with {code_text(error.code)}{detail}"
        answer = reaction(call, error.code)
        if answer in (Reaction.RETRY, Reaction.TOO_FEW_BOOKIES):
            await waiting.again(why, after_a_check=call is LedgerCall.CREATE)
            return
        if error.code == _SETTING:
            raise unplaceable(why)
        if answer is Reaction.REFUSED:
            # A ledger that is not made yet has no password that could be wrong.
            raise (
                not_let_in(why)
                if call is LedgerCall.CREATE
                else wrong_password(why, self._options.password_from, code=error.code)
            )
        raise TierUnavailableError("tier1", why)
