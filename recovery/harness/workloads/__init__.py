"""Workloads: clients that use a store in every way, each a small coroutine over its own recorded
store.

`catalogue.WORKLOADS` names them, `running.run_workload` runs one for a process run of a store. They
are plain asyncio: the same code runs in virtual time in a simulated world, and in real processes
that are killed.

Rules of this folder:

- all randomness comes from the generator handed in. Each client has one of its own, so that the
  order in which they happen to run changes nothing of what each of them draws;
- what a client must know of earlier process runs follows from the number of the process run
  (`stage`): nothing is kept that a crash could lose;
- a client ends quietly when the store stops under it; whatever else it did not foresee, it raises;
- what is written stays bounded over many process runs: segments retire, and their successors have
  new names.
"""
