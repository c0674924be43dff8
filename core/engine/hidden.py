"""What is put to the model in the middle of its answer, as its own chat template would write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from typing import Any

from tandem.core.engine.prompt import Prompt, PromptError

MARK = "\ufdd2"
"""Stands for a text while the template is tried. Unicode reserves the character for use inside a program."""
ASKED = {"role": "user", "content": "asked"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "probe", "arguments": {"key": "value"}}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}


class HiddenTurns:
    """Writes the end of the model's turn, a message to it, and the beginning of its next turn without reasoning.

    What the template writes around them is found out once, by rendering small conversations. A template that refuses
    leaves the part empty, and `user` and `result` then give None. Thread-safe.
    """

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        said = {"role": "assistant", "content": MARK}
        self._user = self._between([ASKED, said, {"role": "user", "content": MARK}])
        end = self._rendered([ASKED, said], add_generation_prompt=False).partition(MARK)[2]
        called = self._rendered([ASKED, CALLED], add_generation_prompt=False)
        result = {"role": "tool", "tool_call_id": "call_1", "name": "probe", "content": MARK}
        answered = self._rendered([ASKED, CALLED, result])
        self._result = ""
        if called and answered.startswith(called) and end:
            self._result = end + answered[len(called) :]

    def user(self, text: str) -> list[int] | None:
        """Token ids: the model's turn ends, a user says `text`, the model is to answer."""
        return self._filled(self._user, text)

    def result(self, text: str) -> list[int] | None:
        """The same with `text` as the result of the calls that the model has just written."""
        return self._filled(self._result, text) or self.user(text)

    def encode(self, text: str) -> list[int]:
        return self._prompt.encode(text)

    def _filled(self, frame: str, text: str) -> list[int] | None:
        if frame.count(MARK) != 1:
            return None
        return self._prompt.encode(frame.replace(MARK, self._prompt.as_text(text.replace(MARK, ""))))

    def _between(self, messages: Seq[Mapping[str, Any]]) -> str:
        """What the template writes behind the first mark."""
        return self._rendered(messages).partition(MARK)[2]

    def _rendered(self, messages: Seq[Mapping[str, Any]], **switches: Any) -> str:
        """The conversation with reasoning switched off; empty when the template refuses it."""
        try:
            return self._prompt.render(messages, enable_thinking=False, **switches)
        except PromptError:
            return ""
