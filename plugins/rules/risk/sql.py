"""SQL statements that delete without a condition."""

from __future__ import annotations

import re

SILENT = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'", re.DOTALL)
"""Comments and text values: nothing in them is a statement."""
DROPPING = re.compile(
    r"\s*(?:DROP\s+(?:TABLE|DATABASE|SCHEMA)\b|TRUNCATE\s+(?:TABLE\s+)?[\w\"`\[.]|DELETE\s+FROM\s+[^\s;]+\s*$)",
    re.IGNORECASE,
)


def destroys(text: str) -> list[str]:
    """The statements of a text that drop tables, schemas or databases, or empty a table, each as it was written."""
    plain = SILENT.sub(lambda found: "''" if found[0].startswith("'") else " ", text)
    return [" ".join(statement.split()) for statement in plain.split(";") if DROPPING.match(statement)]
