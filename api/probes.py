"""Paths by which clients ask what kind of server this is.

The Hermes agent asks all of the first ones before its first turn, several times. None of them is served, so each gets
the 404 of every unknown path: that is the answer that says "no, not that one". It is no fault of anybody's, and the
metrics count it apart. A plugin may serve any of them, and then they are routes like others.
"""

from __future__ import annotations

from collections.abc import Mapping

PROBES: Mapping[str, str] = {
    "/api/v1/models": "LM Studio",
    "/api/tags": "Ollama",
    "/api/show": "Ollama",
    "/v1/props": "llama.cpp",
    "/props": "llama.cpp",
    "/version": "vLLM",
    "/api/v0/models": "LM Studio",
    "/api/version": "Ollama",
    "/api/ps": "Ollama",
    "/slots": "llama.cpp",
    "/server_info": "SGLang",
    "/info": "TGI",
}
"""Path -> the server whose own it is."""

LABEL = "probe"
"""Their name in the metrics."""


def is_probe(path: str, status: int) -> bool:
    """Whether a request was such a question, and was told no."""
    return status == 404 and path.rstrip("/") in PROBES
