"""Every fault the simulated world knows, by name, with what it means: the one table; runs count how
often each was reached.

A fault point that no run of the suite reaches fails the suite: such a fault checks nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

EFFECTS: Final[Mapping[str, str]] = {
    "log.write": "frames into a log file",
    "log.sync": "sync of a log file",
    "log.link": "a prepared file gets its name as a log file",
    "log.unlink": "a log file removed",
    "log.sync-directory": "sync of the log's folder",
    "prepare.create": "a log file made ahead",
    "prepare.write": "zeros, or the header and copied frames, into a prepared file",
    "prepare.sync": "sync of a prepared file",
    "prepare.unlink": "the temporary name of a prepared or spare file removed",
    "spare.rename": "a truncated file becomes a spare, or a spare a prepared file",
    "state.create": "a state record made, under a name of its maker's own",
    "state.write": "a state record written",
    "state.sync": "sync of a state record",
    "state.link": "a state record gets the name of its version",
    "state.unlink": "a state record's own name, or an older record, removed",
    "store.create": "what becomes store.toml made, under a name of its maker's own",
    "store.write": "what becomes store.toml written",
    "store.sync": "sync of what becomes store.toml",
    "store.link": "it gets the name store.toml",
    "store.unlink": "its maker's own name of it removed",
    "store.sync-directory": "sync of the store's folder",
    "folder.make": "a folder made",
    "tier2.create": "a staging file of the file Tier 2 made",
    "tier2.write": "a staging file written",
    "tier2.sync": "sync of a staging file",
    "tier2.link": "a staging file gets its object's name",
    "tier2.rename": "a staging file replaces an object of the same bytes",
    "tier2.unlink": "an object or a staging file removed",
    "tier2.remove-directory": "an empty folder of objects removed",
    "tier2.sync-directory": "sync of a folder of objects",
    "object.put": "a put to the simulated object storage",
    "object.delete": "a delete to the simulated object storage",
    "ledger.append": "frames to the simulated Tier-1 service",
    "ledger.open": "opening of the simulated Tier-1 service",
    "ledger.truncate": "truncation in the simulated Tier-1 service",
    "bookkeeper.create": "a ledger made",
    "bookkeeper.append": "an entry handed to the gateway",
    "bookkeeper.recover": "a ledger marked as one that is being recovered",
    "bookkeeper.fence": "a ledger fenced on its bookies",
    "bookkeeper.rewrite": "an entry written again by a recovery",
    "bookkeeper.close": "a ledger closed, by its writer or by a recovery",
    "bookkeeper.delete": "a ledger deleted",
    "node.create": "a node made in ZooKeeper",
    "node.write": "a node in ZooKeeper changed",
}
"""What a process does to the outside; it can die before and after each."""

_OTHERS: Final[Mapping[str, str]] = {
    # The disk answers with an error, or late.
    "disk.write.eio": "a write fails, nothing of it written",
    "disk.write.partial": "a write fails after a part of it",
    "disk.write.enospc": "no space left, in a write",
    "disk.full": "the disk has no room for more, until something is removed",
    "disk.create.enospc": "no space left, making a file",
    "disk.sync.eio": "a sync fails; what was not durable stays so, whatever a later sync says",
    "disk.sync-directory.eio": "a sync of a folder fails",
    "disk.rename.eio": "a rename fails",
    "disk.link.eio": "a link fails",
    "disk.unlink.eio": "an unlink fails",
    "disk.read.eio": "a read fails",
    "disk.stall": "a call takes seconds",
    # The kernel syncs for a file log, beside its threads.
    "kernel-sync.begun": "the kernel syncs a group that the event loop has written",
    "kernel-sync.none-free": "the kernel takes no more syncs for now: the thread writes the group",
    "kernel-sync.refused": "the kernel refuses the sync of what the loop has written: the thread "
    "does it",
    # What is left after a power cut.
    "power.cut": "all processes die and the disk loses what chance decides of what was not synced",
    "power.write.kept": "an unsynced write survives",
    "power.write.lost": "an unsynced write is gone",
    "power.write.torn-512": "an unsynced write survives in part, in units of 512 bytes",
    "power.write.torn-4096": "an unsynced write survives in part, in units of 4096 bytes",
    "power.size.short": "a file is as long as it was at its last sync, or shorter than written",
    "power.size.zeros": "a file has its new length, with zeros where bytes were written",
    "power.name.kept": "an unsynced change of a folder survives",
    "power.name.lost": "an unsynced change of a folder is gone",
    "power.name.reordered": "an unsynced change of a folder survives, an earlier one in it does "
    "not",
    # Bytes change by themselves.
    "rot.log": "a bit of a durable frame flips",
    "rot.object": "a bit of an object flips",
    # The metadata catalogs on local disk.
    "catalog.rot": "a bit of a metadata checkpoint on local disk flips",
    "catalog.lost": "the metadata catalogs on local disk are gone",
    "catalog.stale": "the metadata catalogs on local disk are those of an earlier time",
    # The object storage.
    "object.put.failed": "a put is refused before it had an effect",
    "object.put.lost-reply": "a put succeeds and its reply is lost",
    "object.put.twice": "a put is applied twice",
    "object.put.late": "a put is answered with an error and applied later all the same",
    "object.delete.failed": "a delete is refused",
    "object.delete.lost-reply": "a delete succeeds and its reply is lost",
    "object.delete.late": "a delete is answered with an error and applied later all the same",
    "object.get.failed": "a read of a range is refused",
    "object.get.truncated": "the body of a read ends early",
    "object.get.wrong-range": "a read answers with another range",
    "object.head.failed": "a head is refused",
    "object.list.failed": "a listing is refused",
    "object.list.lags": "a listing shows what was a while ago",
    "object.slow": "a request takes seconds",
    "object.burst": "every request is refused (503) for up to 30 s",
    "object.throttled": "requests above a rate are refused (429)",
    "object.away": "the object storage is gone for ten minutes",
    # The Tier-1 service.
    "ledger.append.lost": "an append fails and has left nothing",
    "ledger.append.in-doubt": "an append fails and its frame is there all the same",
    "ledger.append.repeated": "a frame is written twice",
    "ledger.append.slow": "an append takes seconds",
    "ledger.open.unavailable": "opening the log is refused for now",
    "ledger.read.unavailable": "reading the log is refused for now",
    # BookKeeper: what happens to its servers, and on the way to them.
    "bookkeeper.bookie.killed": "a bookie dies, and comes back with its data within a minute",
    "bookkeeper.bookie.stopped": "a bookie is stopped (SIGSTOP) for seconds, and answers late then",
    "bookkeeper.bookie.wiped": "a bookie has lost the entries it had",
    "bookkeeper.connection.broken": "a connection to a bookie breaks: requests on their way and "
    "answers "
    "are "
    "lost",
    "bookkeeper.connection.slow": "a request takes up to a second, and those behind it on its "
    "connection "
    "with "
    "it",
    "bookkeeper.gateway.killed": "the gateway of a living process dies",
    "bookkeeper.call.late": "a call on a ledger is done, and its answer comes too late",
    # BookKeeper: what its client says then.
    "bookkeeper.add.fenced": "an add finds its ledger fenced (-101)",
    "bookkeeper.add.closed": "a fence comes with an entry that is OK: the first code is -11",
    "bookkeeper.add.not-enough": "too few bookies take an entry (-6)",
    "bookkeeper.add.late": "too few bookies answer in time (-21, -23)",
    "bookkeeper.create.refused": "too few bookies are registered for a new ledger (-6)",
    "bookkeeper.recover.refused": "too few bookies answer for a recovery (-10)",
    "bookkeeper.recover.raced": "while a ledger is recovered another one has closed it, at another "
    "entry",
    # ZooKeeper.
    "node.away": "ZooKeeper does not answer for up to two minutes",
    "node.change.lost": "a change of a node is lost on the way",
    "node.change.lost-reply": "a change of a node is done and its reply lost",
    "node.change.conflict": "a change of a node is refused, since another one came before",
    "node.read.failed": "a node cannot be read now",
    "node.watch.late": "a change of a watched node is reported up to 20 s late",
    "node.cut-off": "a call of a process that ZooKeeper cannot be reached from",
    # The cache.
    "cache.insert.refused": "the cache takes nothing",
    "cache.block.lost": "a block in the cache is gone",
    "cache.wiped": "the whole cache is gone",
    # Wall time.
    "clock.forward": "the clock jumps forward by up to a day",
    "clock.backward": "the clock jumps back by up to a day",
    "clock.frozen": "the clock stands still",
    "clock.years-forward": "the clock jumps forward by years, and stays there",
    "clock.years-backward": "the clock jumps back by years, and stays there",
    "clock.ahead-for-a-while": "the clock is years ahead for some operations, and right again then",
    # Owners.
    "owner.paused-before-effect": "an owner is stopped just before an effect",
    "owner.paused-behind-look": "an owner is stopped just behind a look at a disk, with nothing "
    "done "
    "about "
    "it "
    "yet",
    "owner.tasks-cancelled": "the program cancels the tasks of its event loop under an open store, "
    "and "
    "goes "
    "on",
    "owner.locks-expire": "a stopped owner's locks are given up for it",
    "owner.takeover": "a second owner has opened the store of a stopped one",
    "owner.overlap": "a second owner has opened the store, and calls of the first one are under "
    "way",
    "owner.refused": "a second owner is refused, since the first one lives",
    "owner.resumes": "the first owner goes on after a takeover",
    # Hosts of a cluster.
    "host.killed": "a host dies (SIGKILL), and is started again under its name",
    "host.killed.all": "all hosts die at once",
    "host.paused.short": "a host is stopped (SIGSTOP) for less than its session's timeout",
    "host.paused.long": "a host is stopped (SIGSTOP) for longer than its session's timeout",
    "host.closed": "a host is stopped in order, and started again under its name",
    "host.restarts": "all hosts are stopped in order and started again, one behind the other",
    "host.session-lost": "ZooKeeper ends the session of a host that runs",
    "host.cut-off": "a host that runs does not reach ZooKeeper, for up to 40 s",
    "host.zookeeper-away": "ZooKeeper answers no client for up to 30 s",
    "host.leader-dies": "the leader dies before or behind a write, with something to assign",
    "host.dies-at-effect": "a host dies at one of its next effects",
    "host.clock": "the wall clock of a host jumps, or stands still",
    "host.edits": "a person changes the assignment map: pin, drain, forbid and their opposites",
    "host.replaced": "a second process joins under the name of a host that lives",
    # When a crash comes.
    "crash.running": "while it serves",
    "crash.opening": "during the recovery",
    "crash.opening-again": "during the recovery after one that was itself cut off",
    "crash.closing": "during an ordinary close",
    "crash.idle": "when nothing is under way",
    "crash.kill": "one process, the operating system lives on",
}

TABLE: Final[Mapping[str, str]] = {
    **{
        f"crash.before.{kind}": f"a process dies just before: {text}"
        for kind, text in EFFECTS.items()
    },
    **{
        f"crash.after.{kind}": f"a process dies just after: {text}"
        for kind, text in EFFECTS.items()
    },
    **_OTHERS,
}


class FaultPoints:
    """How often each fault point was reached."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def hit(self, name: str) -> None:
        """Count one. The name must be in the table."""
        assert name in TABLE, name
        self._counts[name] += 1

    def counts(self) -> dict[str, int]:
        """Of the points that were reached, by name."""
        return dict(sorted(self._counts.items()))

    def struck(self, *prefixes: str) -> int:
        """How many faults of these groups have struck."""
        return sum(count for name, count in self._counts.items() if name.startswith(prefixes))
