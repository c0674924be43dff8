"""Log-probabilities in OpenAI's two shapes."""

from __future__ import annotations

import codecs
from collections.abc import Sequence as Seq
from typing import Any

from tandem.core.engine.request import TokenLogprob
from tandem.core.plugin import Tokenizer

LOWEST = -9999.0
"""What OpenAI writes for a probability of zero; JSON has no infinity."""


def finite(logprob: float) -> float:
    return max(logprob, LOWEST)


def shown(content: bytes) -> str:
    r"""A token's bytes as text. Bytes that are no whole characters are written as `\xe2\x82`, so that two different
    tokens never look the same."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in content)


class ChatLogprobs:
    """The `logprobs` object of a chat choice."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._bytes = tokenizer.token_bytes

    def object(self, positions: Seq[TokenLogprob]) -> dict[str, Any]:
        content = [
            {
                **self._entry(position.token, position.logprob),
                "top_logprobs": [self._entry(token, logprob) for token, logprob in position.top],
            }
            for position in positions
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        content = self._bytes(token)
        return {"token": shown(content), "logprob": finite(logprob), "bytes": list(content)}


class CompletionLogprobs:
    """The `logprobs` object of a completion's choice: four lists, one entry a token.

    `text_offset` counts characters from the start of the choice's text, over all calls of one instance.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._written = 0

    def object(self, positions: Seq[TokenLogprob]) -> dict[str, Any]:
        tokens, logprobs, tops, offsets = [], [], [], []
        for position in positions:
            content = self._bytes(position.token)
            tokens.append(shown(content))
            logprobs.append(finite(position.logprob))
            offsets.append(self._written)
            self._written += len(self._decoder.decode(content))
            top = {shown(self._bytes(token)): finite(logprob) for token, logprob in position.top}
            # OpenAI's older shape has the drawn token in it too, even when it is not among the likeliest.
            tops.append({**top, tokens[-1]: logprobs[-1]} if top else None)
        return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}
