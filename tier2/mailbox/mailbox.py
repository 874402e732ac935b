"""The mailbox in an object storage: messages put, found, answered, taken away.

For jobs and for the owner alike.

Rules of this file:

- a message and its answer are objects, put if absent and never changed: of several attempts at one
  message the first counts, and an answer once given stands;
- an attempt is known by its bytes. A job that puts the same message again, because it never learned
  whether the first put succeeded, finds it there as its own;
- a message goes before its answer when both are taken away: one that could be found without its
  answer would be answered again;
- what fails a check is fetched anew (`checked_fetches`): an answer is final, and so is what a job
  reports.

Every call may raise StorageUnavailableError, the outcome of a put being unknown then; nothing here
tries again for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import NamedTuple

from segmentstore.contracts.owned_tasks import gather_outcomes
from segmentstore.contracts.runtime import Runtime
from tier2.checked_fetches import fetch_checked
from tier2.mailbox.messages import (
    MESSAGE_BYTES_MAX,
    Answer,
    Message,
    MessageFormatError,
    encode,
    one_sentence,
    parse,
)
from tier2.object_names import (
    MessageKey,
    answer_name,
    mailbox_job_prefix,
    mailbox_prefix,
    message_name,
    parse_mailbox_name,
)
from tier2.object_storage import (
    InvalidRangeError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStorage,
    StorageUnavailableError,
    StoredObject,
)
from tier2.unique_ids import new_unique_id

ANSWERS_AT_ONCE = 8
"""Answers fetched together."""


class MailboxEntry(NamedTuple):
    """A message in a listing, or an answer whose message is missing."""

    key: MessageKey
    message: StoredObject | None
    answer: StoredObject | None


async def put_message(storage: ObjectStorage, runtime: Runtime, message: Message) -> bool:
    """Put a message; False if another attempt was first, and another message is there now.

    ValueError as `encode`.

    After StorageUnavailableError it may be there or not: put it again, and delete nothing it names
    meanwhile.
    """
    return await _put(storage, runtime, message_name(message.key), encode(message))


async def put_answer(storage: ObjectStorage, runtime: Runtime, answer: Answer) -> bool:
    """Put an answer; False if another is there already, which stands. ValueError as `encode`."""
    return await _put(storage, runtime, answer_name(answer.key), encode(answer))


async def _put(storage: ObjectStorage, runtime: Runtime, name: str, data: bytes) -> bool:
    try:
        await storage.put(name, [data], new_unique_id(runtime.random))
    except ObjectExistsError:
        return await _get(storage, name) == data
    return True


async def read_message(storage: ObjectStorage, key: MessageKey) -> Message | None:
    """The message of this key; None if there is none. Raises MessageFormatError. Two requests."""

    async def fetch() -> Message | Answer | None:
        return parse_message(await get_bytes(storage, message_name(key)), key)

    found = await fetch_checked(fetch, MessageFormatError)
    return None if isinstance(found, Answer) else found


async def read_answer(
    storage: ObjectStorage, container_id: int, job_id: str, message_id: str
) -> Answer | None:
    """The answer to a message; None as long as there is none.

    Raises MessageFormatError. At most two requests.
    """
    key = MessageKey(container_id, job_id, message_id)

    async def fetch() -> Message | Answer | None:
        return parse_message(await get_bytes(storage, answer_name(key)), key, answer=True)

    found = await fetch_checked(fetch, MessageFormatError)
    return found if isinstance(found, Answer) else None


def parse_message(
    data: bytes | None, key: MessageKey, *, answer: bool = False
) -> Message | Answer | None:
    """The message (or answer) that was found under this key; None for None.

    Raises MessageFormatError.
    """
    if data is None:
        return None
    found = parse(data)
    if isinstance(found, Answer) is not answer:
        raise MessageFormatError(
            "an answer where a message should be" if not answer else "it is no answer"
        )
    if found.key != key:
        raise MessageFormatError(f"it says that it is {message_name(found.key)}")
    return found


async def get_bytes(storage: ObjectStorage, name: str) -> bytes | None:
    """An object of the mailbox, whole; None if it is missing.

    Raises MessageFormatError for one that is too long.
    """
    stored = await storage.head(name)
    if stored is None:
        return None
    if stored.size > MESSAGE_BYTES_MAX:
        raise MessageFormatError(f"{stored.size} bytes; the most is {MESSAGE_BYTES_MAX}")
    if not stored.size:
        raise MessageFormatError("it is empty")
    return await _get(storage, name, stored.size)


async def _get(storage: ObjectStorage, name: str, size: int | None = None) -> bytes | None:
    try:
        if size is None:
            stored = await storage.head(name)
            if stored is None or not 0 < stored.size <= MESSAGE_BYTES_MAX:
                return None
            size = stored.size
        return await storage.get_range(name, 0, size)
    except (ObjectNotFoundError, InvalidRangeError):
        return None


# --- listing --------------------------------------------------------------------------------------


async def list_messages(storage: ObjectStorage, container_id: int) -> list[MailboxEntry]:
    """All messages to one container's owner with their answers, by name. One LIST a page."""
    return [entry async for entry in each_message(storage, container_id)]


def each_message(storage: ObjectStorage, container_id: int) -> AsyncIterator[MailboxEntry]:
    """As `list_messages`, one by one: a mailbox may be long."""
    return _entries(storage, mailbox_prefix(container_id))


async def list_job(storage: ObjectStorage, container_id: int, job_id: str) -> list[MailboxEntry]:
    """The same of one job alone. ValueError for no job id."""
    return [entry async for entry in _entries(storage, mailbox_job_prefix(container_id, job_id))]


async def _entries(storage: ObjectStorage, prefix: str) -> AsyncIterator[MailboxEntry]:
    """What is listed, an answer joined to its message, which is the very next name."""
    answer: tuple[MessageKey, StoredObject] | None = None
    async for page in storage.list(prefix):
        for stored in page:
            parsed = parse_mailbox_name(stored.name)
            if parsed is None:
                continue
            if answer is not None and answer[0] != parsed.key:
                yield MailboxEntry(answer[0], None, answer[1])
                answer = None
            if parsed.is_answer:
                answer = parsed.key, stored
            else:
                yield MailboxEntry(parsed.key, stored, answer[1] if answer is not None else None)
                answer = None
    if answer is not None:
        yield MailboxEntry(answer[0], None, answer[1])


# --- waiting --------------------------------------------------------------------------------------


def as_it_is(answer: Answer) -> Answer:
    """The answer, whole."""
    return answer


async def wait_for_answers(
    storage: ObjectStorage,
    keys: Iterable[MessageKey],
    timeout_s: float,
    poll_s: float,
    keep: Callable[[Answer], Answer] = as_it_is,
) -> dict[MessageKey, Answer]:
    """The answers that are there within `timeout_s`, in the order of `keys`; what is missing has
    none yet.

    Checks once, then every `poll_s`: one LIST a job and container, two requests for each new
    answer. A Tier 2 that does not answer is waited out within the time. An answer that cannot be
    read is one of verdict `failed`. What `keep` gives of an answer is held: all of many long ones
    has no room.
    """
    loop = asyncio.get_running_loop()
    give_up = loop.time() + timeout_s
    wanted = list(dict.fromkeys(keys))
    found: dict[MessageKey, Answer] = {}
    while True:
        try:
            await _collect(storage, [key for key in wanted if key not in found], found, keep)
        except StorageUnavailableError:
            pass  # Asked again below; a waiting job learns it by the answers that are missing.
        left_s = give_up - loop.time()
        if len(found) == len(wanted) or left_s <= 0:
            return {key: found[key] for key in wanted if key in found}
        await asyncio.sleep(min(poll_s, left_s))


async def _collect(
    storage: ObjectStorage,
    missing: list[MessageKey],
    found: dict[MessageKey, Answer],
    keep: Callable[[Answer], Answer],
) -> None:
    there: list[MessageKey] = []
    wanted = set(missing)
    for container_id, job_id in dict.fromkeys((key.container_id, key.job_id) for key in missing):
        entries = await list_job(storage, container_id, job_id)
        there += [
            entry.key for entry in entries if entry.answer is not None and entry.key in wanted
        ]
    for first in range(0, len(there), ANSWERS_AT_ONCE):
        some = there[first : first + ANSWERS_AT_ONCE]
        answers = await gather_outcomes(
            *(_read_or_say(storage, key) for key in some), name="read answer"
        )
        for key, answer in zip(some, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            if answer is not None:
                found[key] = keep(answer)


async def _read_or_say(storage: ObjectStorage, key: MessageKey) -> Answer | None:
    try:
        return await read_answer(storage, *key)
    except MessageFormatError as error:
        return Answer(*key, "failed", one_sentence(f"the answer cannot be read: {error}"))


# --- taking away ----------------------------------------------------------------------------------


async def remove_entry(storage: ObjectStorage, entry: MailboxEntry) -> None:
    """Take away a message, then its answer. Nothing happens to what is missing already."""
    if entry.message is not None:
        await storage.delete(entry.message.name)
    if entry.answer is not None:
        await storage.delete(entry.answer.name)
