"""Real processes: a child at work on real files is killed, stopped, or made to fail at exact system
calls; others reopen and check.
"""
