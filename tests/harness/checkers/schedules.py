"""Random schedules on the small store: many clients at once, deaths, takeovers, stale owners,
observations.
"""

from __future__ import annotations

import random
from uuid import UUID

from recovery.harness.history import Call, CallKind, CallOutcome, History, Update
from tests.harness.checkers.small_store import Owner, SmallStore, event_length

PLAIN = ("a", "b")
TARGET = "m"
SOURCES = ("m#1", "m#2")
DELETED = "d"
NAMES = (*PLAIN, TARGET, *SOURCES, DELETED)
WAYS = ("NONE", "REPLACE", "REPLACE_IF_GREATER", "ACCUMULATE", "REPLACE_IF_EQUALS")
COUNTER = UUID(int=1 << 100)
MIXED = UUID(int=2 << 100)


class Schedule:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.store = SmallStore()
        self.stale: Owner | None = None
        self.sessions: dict[tuple[int, str, int], int] = {}
        """Last number a session has sent; -2 once it was refused."""
        for name in NAMES:
            self.store.create(name)

    def run(self, steps: int) -> History:
        for _ in range(steps):
            self.step()
        self.store.observe()
        return self.store.history

    def step(self) -> None:
        rng, store = self.rng, self.store
        what = rng.random()
        owner = self.stale if self.stale is not None and rng.random() < 0.3 else store.owner
        if what < 0.6:
            self.ask(owner)
        elif what < 0.75:
            store.commit(rng.randrange(4), owner)
        elif what < 0.92:
            self.answer(owner)
        elif what < 0.95:
            store.commit(99)
            while store.owner.answers:
                self.answer(store.owner)
            store.observe()
        elif what < 0.97:
            self.die()
        elif what < 0.98 and self.stale is None:
            self.stale = store.owner
            store.open(rng.randrange(4))
            store.observe()

    def die(self) -> None:
        rng, store = self.rng, self.store
        if self.stale is not None:
            store.end(self.stale)
            self.stale = None
            return
        store.reopen(rng.randrange(4))
        if rng.random() < 0.7:
            store.observe()
            if rng.random() < 0.5:
                store.reopen()
                store.observe(again=True)

    def answer(self, owner: Owner) -> None:
        if owner.answers:
            number = self.rng.choice(list(owner.answers))
            call, outcome, _ = owner.answers[number]
            if call.kind is CallKind.EVENT and outcome is CallOutcome.REFUSED:
                self.sessions[owner.process_run.number, call.segment, call.writer] = -2
            self.store.finish(number, owner)

    def ask(self, owner: Owner) -> None:
        rng = self.rng
        name = rng.choice(NAMES)
        client = rng.choice(("one", "two", "three"))
        what = rng.random()
        if what < 0.45:
            self.append(owner, name, client)
        elif what < 0.6:
            self.event(owner, name, rng.randrange(2) + (10 if name in SOURCES else 0), client)
        elif what < 0.7:
            self.begin(owner, CallKind.UPDATE, name, client, updates=self.updates())
        elif what < 0.82:
            offset = rng.randrange(400)
            kind = rng.choice((CallKind.READ, CallKind.READ, CallKind.INFO, CallKind.ATTRIBUTES))
            self.begin(
                owner, kind, name, client, offset=offset, max_length=rng.choice((1, 50, 1000))
            )
        elif what < 0.88 and name not in SOURCES:
            self.begin(owner, CallKind.TRUNCATE, name, client, offset=rng.randrange(300))
        elif what < 0.93:
            self.begin(
                owner,
                CallKind.MERGE,
                TARGET,
                client,
                source=rng.choice(SOURCES),
                updates=self.updates(),
            )
        elif what < 0.97:
            removing = rng.choice((CallKind.DELETE, CallKind.CREATE))
            self.begin(owner, removing, rng.choice((DELETED, DELETED, *SOURCES)), client)
            self.begin(owner, CallKind.CREATE, rng.choice(SOURCES), client)
        elif what < 0.975:
            self.begin(owner, CallKind.SEAL, name, client)

    def begin(
        self, owner: Owner, kind: CallKind, name: str, client: str, **arguments: object
    ) -> Call:
        return self.store.begin(kind, name, client, owner, **arguments)

    def append(self, owner: Owner, name: str, client: str) -> None:
        rng = self.rng
        lengths = tuple(rng.choice((0, 5, 20, 60)) for _ in range(rng.choice((0, 1, 1, 1, 3))))
        expected = None
        if rng.random() < 0.4 and name in owner.taken:
            expected = len(owner.taken[name].content) - rng.choice((0, 0, 28))
        updates = self.updates() if rng.random() < 0.3 else ()
        self.begin(
            owner,
            CallKind.APPEND,
            name,
            client,
            lengths=lengths,
            expected=expected,
            updates=updates,
        )

    def updates(self) -> tuple[Update, ...]:
        rng = self.rng
        if rng.random() < 0.4:
            return (Update(COUNTER, "ACCUMULATE", rng.randrange(-3, 9)),)
        way, value = rng.choice(WAYS), rng.randrange(5)
        expected = rng.choice((None, *range(5)))
        return (Update(MIXED, way, value, expected if way == "REPLACE_IF_EQUALS" else None),)

    def event(self, owner: Owner, name: str, writer: int, client: str) -> None:
        session = (owner.process_run.number, name, writer)
        last = self.sessions.get(session, -2)
        if (
            last == -2
            or name not in owner.taken
            or owner.taken[name].attributes.get(UUID(int=writer).bytes, -1) < last
        ):
            # A session checks what is durable, and sometimes sends everything again.
            there = owner.durable.get(name)
            last = -1 if there is None else there.attributes.get(UUID(int=writer).bytes, -1)
            last = last if self.rng.random() < 0.7 else -1
        number = last + 1
        self.sessions[session] = number
        lengths = (event_length(writer, number),)
        self.begin(
            owner, CallKind.EVENT, name, client, writer=writer, event=number, lengths=lengths
        )


def random_history(rng: random.Random, steps: int) -> History:
    """The history of a right store."""
    return Schedule(rng).run(steps)
