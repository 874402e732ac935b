"""Checkers: pure checkers of a history.

Each knows one kind of promise and names every place where it was broken.

`all_checks.check_history` runs them all. Rules of this package:

- no I/O, no randomness, no clock: the same history gives the same violations in the same order;
- a violation is a proof. Where a history leaves room for a right store, a checker says nothing:
  unknown outcomes, calls at the same time, a stale owner's view, bytes truncated before a read;
- linear or n log n; the searches of `search` have a budget, and what they cannot decide is no
  violation.

What a stamp proves: an acknowledged call took effect between `begun` and `ended`, one of unknown
outcome between `begun` and the end of its process run or never. What an owner acknowledges after a
later one has opened took effect before that opening ended (`HistoryIndex.latest`).
"""
