"""What people get to see: a history told readably, and docs/crash-test-report.md about a long run
of everything.
"""
