"""How class archives are made: everything that runs on Java is run once, does what it is for, and
leaves its own.
"""
