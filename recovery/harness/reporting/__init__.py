"""What people get to see: a history told readably, and RECOVERY.md about a long run of
everything.
"""
