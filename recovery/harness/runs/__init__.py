"""Runs: plans drawn from seeds, carried out in a simulated world, many at a time; failures made
smaller.
"""
