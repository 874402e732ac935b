"""Foreign text on a terminal: names, paths and messages that may hold anything. Pure."""

from __future__ import annotations


def visible(text: str) -> str:
    r"""The text with each character that does not print as an escape, such as `\x1b` or `\u202e`.

    Those are control characters (newlines too), marks of direction, and spaces other than " ". The
    result is one line, and a terminal obeys nothing in it. A backslash stays as it is.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
