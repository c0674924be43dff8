"""Server-sent events, written by hand: exact control of every byte, comments included."""

from __future__ import annotations

import json
from typing import Any

MEDIA_TYPE = "text/event-stream"
HEADERS = {
    "cache-control": "no-cache",
    # nginx holds a response back until its buffer is full unless it is told not to.
    "x-accel-buffering": "no",
}
DONE = b"data: [DONE]\n\n"

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""Line ends of Unicode. SSE knows only CR and LF, which JSON escapes; readers that split lines with Unicode's rules
would cut an event at these."""


def dumps(value: Any) -> str:
    """Compact JSON that holds no line end of any kind."""
    written = _encode(value)
    return written if written.isascii() else written.translate(_LINE_ENDS)


def event(value: Any) -> bytes:
    """One event whose data is `value` as JSON."""
    return f"data: {dumps(value)}\n\n".encode()


def comment(text: str) -> bytes:
    """A comment line: every client skips it, and every proxy sees that the stream is alive. No line end in `text`."""
    return f": {text}\n\n".encode()
