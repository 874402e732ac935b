"""`make bench-peers`: the engine beside its peers, in one run, at equal durability.

Equal durability: an append is acknowledged after an fdatasync (or fsync) of its own bytes, on the
same disk. `python -m bench.peers --check-durability` counts these calls with strace.

What is compared: the same load from one Python process with one event loop, against stores that
are embedded in that process or servers beside it. Each peer gets the form that suits it:
callers share a commit where the store is embedded, and requests are pipelined where the protocol
allows it.

What is not: replication (each server is one process with one copy), reads from a remote disk, and
the rest of what each can do. The engine also moves its bytes to Tier 2 meanwhile; the embedded
peers do not. Redis answers reads from memory. The clients of a server take CPU of the same two
cores, which is what an embedding program saves.
"""
