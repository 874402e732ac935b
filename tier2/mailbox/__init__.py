"""The mailbox: messages of jobs to the owner of a container, and its answers, as objects in Tier
2.
"""
