"""Real servers that the tests install and start themselves, and the faults that a network adds to
them.
"""
