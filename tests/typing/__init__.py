"""Programs of users as their type checkers see them.

`sample_*` are checked, not run; the wrong one is no .py file, so that the checks of this repository
leave it alone.
"""
