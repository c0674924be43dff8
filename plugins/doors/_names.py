"""The two names of a field: the chat request's, in which the host complains, and the door's, which the client knows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tandem.core.plugin import RequestError
from tandem.plugins.doors._node import Node

COMMON = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "logit_bias",
    "cache_prompt",
)
"""Fields of the chat request that a door hands on as they are: the sampling, this server's own words included."""


@dataclass(slots=True)
class Names:
    """Chat paths and what the door calls them."""

    _known: dict[str, tuple[str, bool]] = field(default_factory=dict)

    def put(self, chat: str, door: str, *, same: bool = False) -> None:
        """The chat request's `chat` is the door's `door`; with `same` everything below has the same names too."""
        self._known[chat] = door, same

    def hand_on(self, body: Node, fields: Iterable[str]) -> dict[str, Any]:
        """Those of the `fields` that the body has, unchanged."""
        handed = {name: body.key(name).value for name in fields if body.key(name).given}
        for name in handed:
            self.put(name, name, same=True)
        return handed

    def of(self, chat: str) -> str | None:
        """The door's name of a chat path: the longest part of it that is known. None when nothing of it is."""
        end = len(chat)
        while end > 0:
            if chat[:end] in self._known:
                door, same = self._known[chat[:end]]
                return door + chat[end:] if same else door
            end = max(chat.rfind(".", 0, end), chat.rfind("[", 0, end))
        return None

    def told(self, error: RequestError) -> RequestError:
        """The same error in the door's names."""
        if error.param is None:
            return error
        message, door = str(error), self.of(error.param)
        if door is not None and message.startswith(error.param):
            message = door + message.removeprefix(error.param)
        return RequestError(error.status, message, door, error.code, error.retry_after)
