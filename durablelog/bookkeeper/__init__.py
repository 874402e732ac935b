"""Tier 1 on Apache BookKeeper: a container's log on one ledger after another, its record in a
ZooKeeper node.
"""
