"""The Spark jobs: years of data in Tier 2 checked, rewritten and read by whatever Spark the user
has.

Rules of this room:

- the jobs see Tier 2 alone: a catalog snapshot, a listing, objects, a mailbox. They load neither
  the engine's loops nor its log nor the gateway, and change nothing themselves that a reader needs:
  they propose, the owner of a container decides;
- what plans or checks is pure (Arrow in, results out) and tested without Spark; what a task does
  with objects is a coroutine over ObjectStorage and Runtime. Spark adds partitions, retries and
  other machines;
- DataFrame API only (no RDD, no SparkContext, no broadcast, no accumulator), so that the same code
  runs by Spark Connect. Two exceptions, neither of which a job's work hangs on: of classic sessions
  `common.progress` asks the SparkContext which tasks run, and `common.session` asks its class
  whether this process has one;
- the master is never named here: it comes from the environment (`common.session`);
- nothing here is imported by the engine; `python -m tier2.spark` and `segmentstore spark` are the
  ways in.
"""
