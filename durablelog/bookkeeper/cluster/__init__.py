"""A whole BookKeeper cluster on one machine: ZooKeeper and bookies as processes of their own, on
loopback.
"""
