"""Word lists as text: easier to read and to merge than a tuple with a word on each line."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """The words of a text, split at whitespace."""
    return frozenset(text.split())
