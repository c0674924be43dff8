"""Keeps the secrets that a tool's result showed the model out of what the client reads."""

from __future__ import annotations

import re
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence as Seq
from hashlib import blake2b
from threading import Lock
from typing import Any

from tandem.core.plugin import (
    Action,
    FinishEvent,
    RequestEvent,
    Rule,
    SafePoint,
    Supervision,
    Task,
    hookimpl,
    option,
    text_of,
)
from tandem.plugins.rules.secret_mask.shapes import Secret, secrets_in

TANDEM_API = ">=0.2,<0.3"

DOC = """\
Masks secrets that the conversation's tool results hold where the answer or the reasoning repeats them.

## Why

A model that reads a configuration file or an environment has the keys and passwords in its prompt, and quotes them as
readily as anything else: into a chat that is kept, shared or read aloud.

## When it acts

Before the prefill it reads the tool results of the conversation, each once, for keys of known services, bearer and
basic headers, JWTs, private keys, credentials in URLs, values that a name such as `password`, `secret`, `token` or
`api_key` is set to, and PINs. A value counts when it is one run of characters with a letter in it; what is not quoted
needs a digit besides, so that prose, code and plain numbers are none. A PIN is 4 to 12 digits.

Whatever of it the answer or the reasoning repeats as a whole word becomes `[redacted]`; the prefix of a key stays:
`sk-[redacted]`. Nothing is ever masked that no tool result held. Calls go out as the model wrote them: a tool may need
the secret. In shadow nothing is masked, and how often something would have been is journaled.

## Parameters

See the table.

## Example

A tool prints `OPENAI_API_KEY=sk-abc123`. The answer "The key is sk-abc123." reaches the client as
`The key is sk-[redacted].`

What counts as a secret, and what it costs to look: [the shapes](rules/secret_mask.md).
"""

PARAMS = {
    "most": option("integer", "So many secrets at most are masked, those of the newest results.", 500, minimum=1),
    "ms": option("integer", "So many milliseconds at most a request's new results are read for.", 60, minimum=1),
    "remembered": option("integer", "The secrets of so many results are kept between requests.", 1024, minimum=1),
}


class Reader:
    """Reads each result once; remembers the secrets of the results that were asked for last, by the text's digest."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[Secret, ...]] = OrderedDict()
        self._lock = Lock()

    def check(self, event: RequestEvent | FinishEvent, task: Task, sup: Supervision) -> Action | None:
        if isinstance(event, FinishEvent):
            return counted(event, task, sup.memo)
        secrets, unread = self.of_conversation(event.messages, task.params)
        if not secrets:
            return Action.passed(f"unread({unread})") if unread else None
        sup.memo["secrets"] = secrets
        kinds = Counter(secret.kind for secret in secrets)
        words = {secret.text: secret.shown for secret in secrets}
        return Action.mask(words, f"secrets({len(secrets)})", kinds=dict(kinds), unread=unread)

    def of_conversation(self, messages: Seq[Mapping[str, Any]], params: Mapping[str, Any]) -> tuple[list[Secret], int]:
        """The secrets of its tool results, each once, those of the newest first; and how many results are still to be
        read, because the time was up. The next request reads on."""
        until = time.perf_counter() + params["ms"] / 1e3
        found: dict[str, Secret] = {}
        unread = 0
        for message in reversed(messages):
            if message.get("role") != "tool":
                continue
            secrets = self._secrets(text_of(message), until, params["remembered"])
            unread += secrets is None
            for secret in secrets or ():
                if len(found) < params["most"]:
                    found.setdefault(secret.text, secret)
        return list(found.values()), unread

    def _secrets(self, text: str, until: float, remembered: int) -> tuple[Secret, ...] | None:
        """Those of one result; None when it is unknown and the time is up. What time ends is not read again."""
        digest = blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
        with self._lock:
            known = self._known.get(digest)
        if known is None:
            if time.perf_counter() > until:
                return None
            known = tuple(secrets_in(text, until).values())
        with self._lock:
            self._known[digest] = known
            self._known.move_to_end(digest)
            while len(self._known) > remembered:
                self._known.popitem(last=False)
        return known


def counted(event: FinishEvent, task: Task, memo: Mapping[str, Any]) -> Action | None:
    """In shadow, at the end: how often the answer and the reasoning repeated secrets, by kind."""
    secrets: Iterable[Secret] = memo.get("secrets", ())
    if task.mode != "shadow" or not secrets:
        return None
    text = f"{event.reasoning}\n{event.answer}"
    kinds: Counter[str] = Counter()
    for secret in secrets:
        if secret.text in text:
            kinds[secret.kind] += len(re.findall(_whole(secret.text), text))
    told = ", ".join(f"{kind}={count}" for kind, count in sorted(kinds.items()) if count)
    return Action.passed(f"would_mask({told})", kinds=dict(kinds)) if told else None


def _whole(word: str) -> str:
    """A pattern of the word where it is no part of a longer one."""
    before = r"(?<!\w)" if re.match(r"\w", word) else ""
    behind = r"(?!\w)" if re.match(r"\w", word[-1]) else ""
    return before + re.escape(word) + behind


@hookimpl
def tandem_rules() -> list[Rule]:
    points = (SafePoint.SP4, SafePoint.SP2)
    return [Rule("secret_mask", at=points, check=Reader().check, params=PARAMS, doc=DOC)]
