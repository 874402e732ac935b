"""Every error the engine raises to a caller, grouped by when it comes.

Each class says in its first line what was wrong and in its last whose move is next. The values that
matter are attributes, so that a program can act without parsing the message.
"""

from __future__ import annotations

from collections.abc import Sequence


class UnknownSettingWarning(UserWarning):
    """A variable `SEGMENTSTORE_...` of the environment is no setting, and is ignored.

    The operator's move: correct its name.
    """


class DeprecatedSettingWarning(DeprecationWarning):
    """A setting was given by a name that it had before; it is in force.

    The operator's move: use the name that the message gives.
    """


class SelfDescribed:
    """A base of errors whose text says all: `describe` puts no class name before it."""


class SegmentStoreError(Exception):
    """Base of everything this engine raises on purpose; anything else is our bug."""


def describe(error: BaseException) -> str:
    """What an error says, for a message of ours; never empty.

    The class is named but where the text is whole without it: `MemoryError`, `KeyError: 'x'`, but
    `[Errno 28] No space left on device`.
    """
    text, name = str(error), type(error).__name__
    if not text:
        return name
    whole = isinstance(error, SegmentStoreError | SelfDescribed | OSError)
    return text if whole else f"{name}: {text}"


# --- the caller can act: one segment ------------------------------------------------------------


class SegmentError(SegmentStoreError):
    """A call on one segment was refused; nothing was changed. The caller's move."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class SegmentNotFoundError(SegmentError):
    """There is no such segment (never created, deleted, or merged).

    The caller's move: create it or stop using it.
    """

    def __init__(self, name: str, detail: str = "") -> None:
        super().__init__(name, f"segment {name!r} does not exist{': ' + detail if detail else ''}")


class SegmentExistsError(SegmentError):
    """A segment of this name is already there.

    The caller's move: use it, or choose another name.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, f"segment {name!r} already exists")


class SegmentSealedError(SegmentError):
    """The segment is sealed and takes no more changes of this kind.

    The caller's move: write elsewhere.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, f"segment {name!r} is sealed")


class SegmentTruncatedError(SegmentError):
    """The bytes asked for were truncated away. The caller's move: go on at `start_offset`."""

    def __init__(self, name: str, start_offset: int) -> None:
        super().__init__(name, f"segment {name!r} is truncated: its first offset is {start_offset}")
        self.start_offset = start_offset


class EndOfSegmentError(SegmentError):
    """A read at the end of a sealed segment: there will never be more.

    The caller's move: stop reading.
    """

    def __init__(self, name: str, length: int) -> None:
        super().__init__(name, f"segment {name!r} is sealed and ends at {length}")
        self.length = length


class BadOffsetError(SegmentError):
    """The offset given is not the one the segment is at, or lies outside it.

    The caller's move: read the segment's length and decide.

    `expected` is what the call gave, `actual` what the segment has.
    """

    def __init__(self, name: str, expected: int, actual: int, detail: str = "") -> None:
        text = f"segment {name!r}: offset {expected} given, the segment is at {actual}"
        super().__init__(name, f"{text} ({detail})" if detail else text)
        self.expected = expected
        self.actual = actual


class BadAttributeUpdateError(SegmentError):
    """An attribute condition did not hold; neither data nor attributes were changed.

    The caller's move.

    `current` is the value the segment holds, None when the attribute is absent.
    """

    def __init__(self, name: str, attribute_id: object, current: int | None, detail: str) -> None:
        super().__init__(
            name, f"segment {name!r}, attribute {attribute_id}: {detail} (current value: {current})"
        )
        self.attribute_id = attribute_id
        self.current = current


class TooManyAttributesError(SegmentError):
    """The segment would have more attributes than a segment may have; nothing was changed.

    The caller's move: remove some (`ATTRIBUTE_UNSET`), or raise `attributes_per_segment_max`.

    `count` is how many it has, with those on their way to the log.
    """

    def __init__(self, name: str, count: int, growth: int, count_max: int) -> None:
        super().__init__(
            name,
            f"segment {name!r} has {count} attributes: {growth} more are over the limit of "
            f"{count_max} (attributes_per_segment_max)",
        )
        self.count = count
        self.count_max = count_max


class ContainerMismatchError(SegmentError):
    """A merge whose source is in another container than its target. The caller's move.

    Name the source `<target>#transaction.<32 hex digits>` and both live in the same container.
    """

    def __init__(
        self, target: str, source: str, target_container: int, source_container: int
    ) -> None:
        super().__init__(
            target,
            f"cannot merge {source!r} (container {source_container}) into {target!r} "
            f"(container {target_container}):"
            " a merge stays inside one container; name the source "
            f"'{target}#transaction.<32 hex digits>'",
        )
        self.source = source
        self.target_container = target_container
        self.source_container = source_container


# --- the caller can act: the call itself --------------------------------------------------------


class InvalidNameError(SegmentStoreError):
    """The name is not 1 to 1,024 bytes of UTF-8 without control characters.

    The caller's move: another name.
    """

    def __init__(self, name: object, reason: str) -> None:
        super().__init__(f"invalid segment name {name!r}: {reason}")
        self.name = name
        self.reason = reason


class AppendTooLargeError(SegmentStoreError):
    """One append is larger than the store takes.

    The caller's move: split it, or raise `append_bytes_max`.
    """

    def __init__(self, length: int, length_max: int) -> None:
        super().__init__(f"an append of {length} bytes is over the limit of {length_max}")
        self.length = length
        self.length_max = length_max


class InvalidArgumentError(SegmentStoreError, ValueError):
    """An argument is of the wrong type or outside its range. The caller's move: correct it."""

    def __init__(self, argument: str, value: object, reason: str) -> None:
        super().__init__(f"{argument}={value!r}: {reason}")
        self.argument = argument
        self.value = value
        self.reason = reason


class WrongEventLoopError(SegmentStoreError, RuntimeError):
    """A call on an asyncio store from another event loop than the one that opened it, or from none;
    it had no effect.

    The caller's move: call it there (`asyncio.run_coroutine_threadsafe`), or use
    `segmentstore.blocking`.
    """

    def __init__(self) -> None:
        super().__init__(
            "the store belongs to the event loop that opened it: call it there, or use "
            "segmentstore.blocking"
        )


class WrongThreadError(SegmentStoreError, RuntimeError):
    """A blocking store was asked to wait on its own thread, where done-callbacks run: the wait
    would never end.

    A refused call had no effect; of a refused wait for a future, the call behind it goes on. The
    caller's move: wait in another thread. `append_nowait` does not wait and may be called there.
    """

    def __init__(self) -> None:
        super().__init__(
            "a done-callback runs on the store's own thread, where a blocking call would "
            "wait for ever:"
            " hand the work to another thread, or call append_nowait"
        )


class ConfigError(SegmentStoreError):
    """A setting is unknown, malformed, or contradicts another.

    The operator's move: correct the named setting.
    """

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(f"setting {setting}: {reason}")
        self.setting = setting
        self.reason = reason


class MissingExtraError(SegmentStoreError):
    """What was asked for needs packages that are not installed; nothing was changed.

    The operator's move: install `extra`.
    """

    def __init__(self, needed_for: str, extra: str, missing: Sequence[str]) -> None:
        super().__init__(
            f"{needed_for} needs {' and '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed:"
            f" pip install 'segmentstore[{extra}]'"
        )
        self.needed_for = needed_for
        self.extra = extra
        self.missing = tuple(missing)


# --- the store as a whole -----------------------------------------------------------------------


class StoreUnreachableError(SegmentStoreError):
    """No store answers at a place that `connect` was given, or it is none that can be used so.

    The operator's move: open the store there (`segmentstore serve`), or correct the place.
    """

    def __init__(self, location: object, detail: str) -> None:
        super().__init__(f"no store answers at {location}: {detail}")
        self.location = location
        self.detail = detail


class AccessRefusedError(SegmentStoreError):
    """The port, or ZooKeeper, does not let this client do it; nothing was changed.

    The operator's move: connect through the store's folder, or to a port without tokens; give
    ZooKeeper's credentials.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(f"access is refused: {detail}")
        self.detail = detail


class StoreInUseError(SegmentStoreError):
    """Another process (or another store of this one) has the store open.

    The operator's move: stop that one first.
    """

    def __init__(self, location: object, detail: str = "") -> None:
        super().__init__(f"store {location} is in use{': ' + detail if detail else ''}")
        self.location = location


class ContainerOwnedError(StoreInUseError):
    """On BookKeeper: a container has an owner that was seen alive, so it was not taken over.

    Nothing was changed.

    The operator's move: stop that owner, or take the container from it (`--take-over`,
    `take_over=True`), which fences it.
    """

    def __init__(
        self,
        location: object,
        container_id: int,
        *,
        host: str,
        pid: int,
        address: str,
        since: str,
        detail: str = "",
    ) -> None:
        where = f"{host} ({address})" if address else host
        super().__init__(
            location,
            f"process {pid} on {where} owns container {container_id} since {since}, and is alive"
            f"{': ' + detail if detail else ''}; stop it, or take over from it "
            "(--take-over, take_over=True)",
        )
        self.container_id = container_id
        self.host = host
        self.pid = pid
        self.address = address
        self.since = since


class ReadOnlyFileSystemError(SegmentStoreError):
    """The store's file system is mounted read-only: no process can own the store through it;
    nothing was changed.

    The operator's move: mount it writable, or copy the store's folder. To read it as it is now, the
    commands `ls`, `cat` (without --follow), `info` and `attrs` (without --set) suffice.
    """

    def __init__(self, location: object) -> None:
        super().__init__(
            f"{location} is on a file system that is mounted read-only, and what was "
            "asked for needs a store of one's"
            " own: mount it writable, or copy the store's folder; ls, cat, info and "
            "attrs read it as it is"
        )
        self.location = location


class ReadOnlyViewError(SegmentStoreError):
    """The store is only viewed, as it was when the view was opened: nothing is changed through it,
    and it was not changed.

    The caller's move: open the store, or ask its owner.
    """

    def __init__(self, location: object) -> None:
        super().__init__(
            f"{location} is only viewed, not owned: nothing can be changed through the view"
        )
        self.location = location


class NotAStoreError(SegmentStoreError):
    """The folder is neither empty nor a store, or the place of a job holds nothing; it was left
    untouched. The caller's move: another one.
    """

    def __init__(self, location: object, detail: str = "") -> None:
        super().__init__(f"{location} is not a segment store{': ' + detail if detail else ''}")
        self.location = location


class ContainerStoppedError(SegmentStoreError):
    """The container is stopped, or stopped while the call waited; the call had no effect.

    The caller's move: open the store again. `cause` is what stopped it, None for an ordinary close;
    `container_id` is None when it is the whole store.
    """

    container_id: int | None

    def __init__(self, container_id: int, cause: BaseException | None = None) -> None:
        super().__init__(
            f"container {container_id} is "
            f"stopped{f' by {describe(cause)}' if cause is not None else ''}"
        )
        self.container_id = container_id
        self.cause = cause


class TasksCancelledError(SegmentStoreError):
    """The program cancelled the tasks of its event loop, and the store with them: it closes.

    Nothing acknowledged is lost.

    The cause of a ContainerStoppedError. The caller's move: open the store again.
    """

    def __init__(self) -> None:
        super().__init__(
            "its task was cancelled from outside, as all tasks of the event loop: open "
            "the store again"
        )


class StoreClosedError(ContainerStoppedError):
    """A call on a store that this program has closed, or left open until the interpreter ended; it
    had no effect.

    The caller's move: open it again, or close it before the end.
    """

    def __init__(self, detail: str = "the store is closed") -> None:
        SegmentStoreError.__init__(self, detail)
        self.container_id = None
        self.cause = None


class StoreDisconnectedError(ContainerStoppedError):
    """The connection to the store has ended, and nothing more can be asked through it.

    The call had no effect. The caller's move: connect again.
    """

    def __init__(self, detail: str) -> None:
        SegmentStoreError.__init__(self, f"the connection to the store has ended: {detail}")
        self.container_id = None
        self.cause = None
        self.detail = detail


class ForkedStoreError(SegmentStoreError):
    """The store was opened before this process was forked: it is the parent's, `process_id`.

    The call had no effect.

    The caller's move: let the parent do it, or have it close the store and open one here. For
    several processes at once, fork first, and open the store in one of them.
    """

    def __init__(self, process_id: int) -> None:
        super().__init__(
            f"the store was opened by process {process_id}, of which this one is a fork: "
            "a store is used by the process"
            " that opened it"
        )
        self.process_id = process_id


class AppendOutcomeUnknownError(SegmentStoreError):
    """The change was on its way to the log when the container stopped: it may or may not be there.

    The caller's move: open the store again and check, or resend through an exactly-once writer.
    `container_id` is None when it is the whole store.
    """

    def __init__(self, container_id: int | None, cause: BaseException | None = None) -> None:
        what = "the store" if container_id is None else f"container {container_id}"
        super().__init__(
            f"{what} stopped while the change was being made durable"
            f"{f' ({describe(cause)})' if cause is not None else ''}: it may or may not "
            "be in the log"
        )
        self.container_id = container_id
        self.cause = cause


class NotPrimaryError(SegmentStoreError):
    """Another owner has opened the container's log: this one is fenced for good.

    Ask the new owner.
    """

    def __init__(self, container_id: int, detail: str = "") -> None:
        super().__init__(
            f"container {container_id} has another owner now{': ' + detail if detail else ''}"
        )
        self.container_id = container_id


class ContainerNotServedError(NotPrimaryError):
    """The segment is in a container that this process does not serve, or not any more; `why` says
    so. Nothing was changed. Ask the process that serves it.
    """

    def __init__(self, container_id: int, why: str) -> None:
        SegmentStoreError.__init__(
            self,
            f"container {container_id} is not served here ({why}): ask the process that serves it",
        )
        self.container_id = container_id
        self.why = why

    def again(self) -> ContainerNotServedError:
        """The same for another call."""
        return ContainerNotServedError(self.container_id, self.why)


class WriterNotOpenError(SegmentStoreError):
    """A writer session was used before it was entered, and its last event is not in memory: its
    segment is idle, or has many writers. Nothing was done.

    The caller's move: `async with store.writer(...)`, or `await writer.open()`.
    """

    def __init__(self) -> None:
        super().__init__(
            "this session is not open, and its last event is not in memory: "
            "enter it by `async with`, or `await writer.open()`, first"
        )


class DataCorruptionError(SegmentStoreError):
    """Stored bytes are not what was written. Nothing was repaired or removed; the operator's move.

    `where` names the place: file, offset and frame, or object, block and extent.
    """

    def __init__(self, where: str, detail: str) -> None:
        super().__init__(f"corrupt data at {where}: {detail}")
        self.where = where
        self.detail = detail


class TierUnavailableError(SegmentStoreError):
    """A tier does not answer and the bound for waiting is reached; nothing was lost.

    Try again later.

    `tier` is "tier1", "tier2" or "cache".
    """

    def __init__(self, tier: str, detail: str) -> None:
        super().__init__(f"{tier} is not available: {detail}")
        self.tier = tier
        self.detail = detail


class TooManyActiveSegmentsError(TierUnavailableError):
    """A container has as many segments in memory as it may, and none could leave. Nothing of the
    call was done.

    Each of them has bytes that are not in Tier 2, has metadata that are not in the catalog, or is
    in use.

    The caller's move: try again later. The operator's, if Tier 2 answers: raise
    `active_segments_max`.
    """

    def __init__(self, container_id: int, count: int, count_max: int) -> None:
        super().__init__(
            "tier2",
            f"container {container_id} has {count} active segments of {count_max} "
            "(active_segments_max), and none can leave memory before it is in Tier 2",
        )
        self.container_id = container_id
        self.count = count
        self.count_max = count_max
