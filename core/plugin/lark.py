"""Pieces of grammars in llguidance's dialect of Lark."""

from __future__ import annotations

import json
from typing import Any

LEADING = r"/[ \t\n]{0,8}/"
"""Blanks before an answer's first word."""

JSON_OPTIONS = {"whitespace_flexible": True, "whitespace_pattern": r"[ \t\n]{0,24}", "lenient": True}
"""Bounded blanks between JSON's tokens, so that no answer is all blanks; unknown keywords of a schema are left out."""


def lark_json(schema: dict[str, Any]) -> str:
    """The JSON texts that fit a schema whose references lead to places in itself."""
    return f"%json {json.dumps({**schema, 'x-guidance': JSON_OPTIONS})}"


def lark_text(text: str) -> str:
    """Exactly this text."""
    return json.dumps(text)
