"""The ground floor: words, errors, records and the seams to the outside.

Imports nothing of ours.
"""
