"""The package as its users install it: `make wheel-test`.

Programs, no tests of pytest's: they run in environments of their own.
"""
