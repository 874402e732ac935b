"""The gateway to BookKeeper: a Java process of ours that speaks its client, and the LedgerStore
that speaks to that process.
"""
