"""From durable state to a running container: replay, and the checks that prove a stopped store
whole.
"""
