"""Every crash point of short workloads: each instant before an effect, times what a crash there can
leave.
"""
