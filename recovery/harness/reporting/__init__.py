"""What people get to see: a readable history, and docs/crash-test-report.md about a long run of
everything.
"""
