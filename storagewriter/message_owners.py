"""MessageOwners: for which store a message in the mailbox is, where several stores may keep their
objects in one place.

A message says it, since version 0.1.0 of the store; older ones say nothing. Rules of this file:

- what is for another store is neither answered nor deleted, and is read once, not with every check;
- what says nothing is ours where no other store has its marker, and is left to lie where one has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from tier2.mailbox.mailbox import MailboxEntry, read_answer, read_message
from tier2.mailbox.messages import Answer, Message, MessageFormatError
from tier2.object_names import MessageKey
from tier2.object_storage import ObjectStorage

REMEMBERED_MAX: Final = 1024
"""Messages to others remembered; the first is read again when there are more."""


class MessageOwners:
    """What one keeper of a mailbox knows of whose its messages are.

    `shared_with` as `StoreMarkers.shared_with`.
    """

    def __init__(self, store_id: str, shared_with: Callable[[], Awaitable[str | None]]) -> None:
        self.store_id = store_id
        self._shared_with = shared_with
        self._others: dict[MessageKey, None] = {}

    def knows_as_anothers(self, key: MessageKey) -> bool:
        """Whether this message was read before, and is for another store."""
        return key in self._others

    def is_anothers(self, message: Message) -> bool:
        """Whether the message says that it is for another store."""
        if message.store_id in {"", self.store_id}:
            return False
        self._others[message.key] = None
        while len(self._others) > REMEMBERED_MAX:
            del self._others[next(iter(self._others))]
        return True

    async def may_remove(self, storage: ObjectStorage, entry: MailboxEntry) -> bool:
        """Whether an entry is provably of this store.

        Up to two requests, and a listing. Raises StorageUnavailableError.
        """
        said = await _store_named_in(storage, entry)
        return said == self.store_id if said else await self._shared_with() is None


async def _store_named_in(storage: ObjectStorage, entry: MailboxEntry) -> str:
    """The store that the answer, or else the message, names; empty if neither can be read or names
    one.
    """
    found: Answer | Message | None
    try:
        if entry.answer is not None:
            found = await read_answer(storage, *entry.key)
        else:
            found = await read_message(storage, entry.key)
    except MessageFormatError:
        return ""
    return found.store_id if found is not None else ""
