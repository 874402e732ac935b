"""Operations made durable, in order: formats, metadata rules, the operation processor, and the
Tier-1 logs.
"""
