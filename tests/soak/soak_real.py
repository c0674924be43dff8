"""A plan for a model with weights: what it writes for one client alone is what each client has to get."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from soak_plan import CHAT, COMPLETIONS, ENDLESS, MESSAGES, RESPONSES, Ask, Leave, Planner, Visit
from soak_run import ASIDE
from soak_server import WatchedServer
from soak_wire import Got, Wire, said

SYSTEM = "You are a friendly helper who answers in one short sentence and never asks back. " * 3
SUBJECTS = ("the capital of France", "the colour of snow", "water and ice", "a river in Egypt", "two plus two", "bread")
NEAR = 0.3
"""Nats. Two tokens that are nearer to each other may change places when other rows stand in the same pass: the weights
are packed, and activations are rounded row by row and chunk by chunk."""
MOST = 12
"""Tokens of an answer."""


@dataclass
class RealPlanner(Planner):
    """Draws requests out of a few whose answers it has learned."""

    known: list[Ask] = field(default_factory=list)
    gaps: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    """Answer -> its tokens, each with how much likelier it was than the next one, in nats."""

    def learn(self, server: WatchedServer) -> int:
        """Ask everything once, one after another, past the caches; how many requests that took.

        The chat's answers are those of the other doors, which tell no log-probabilities.
        """
        wire = Wire(server.address)
        for subject in SUBJECTS:
            for path, wanted in ((CHAT, {"logprobs": True, "top_logprobs": 2}), (COMPLETIONS, {"logprobs": 2})):
                ask = Ask(path, path, _body(path, subject), session=ASIDE)
                got = wire.send(replace(ask, body={**ask.body, **wanted, "cache_prompt": False}))
                assert got.status == 200, got.content
                answer = said(ask, got)
                self.gaps[answer[0].text] = _gaps(json.loads(got.content)["choices"][0]["logprobs"])
                for door in (COMPLETIONS,) if path == COMPLETIONS else (CHAT, MESSAGES, RESPONSES):
                    self.known.append(Ask(door, door, _body(door, subject), said=answer))
        wire.close()
        return len(self.gaps)

    def visits(self, count: int) -> list[Visit]:
        return [[replace(self._drawn(), session=f"soak-{at}")] for at in range(count)]

    def _drawn(self) -> Ask:
        ask = self.chance.choice(self.known)
        body = {**ask.body, "stream": self.chance.random() < 0.5}
        if self.chance.random() < 0.2:
            stage = self.chance.choice(("wait", "text"))
            leave = Leave(
                stage, self.chance.choice(("close", "reset", "half")), self.chance.choice((0.0, 0.05, 0.3)), 2500
            )
            limit = "max_output_tokens" if ask.path == RESPONSES else "max_tokens"
            # Too many tokens to come to an end before the client has left.
            body |= {limit: ENDLESS, "stream": stage == "text" or body["stream"], "temperature": 1.0}
            return replace(ask, kind="leaving", body=body, leave=leave, said=())
        return replace(ask, body=body)

    def wrong(self, ask: Ask, got: Got) -> str | None:
        """The answer is another one than it was alone, and not because two tokens were nearly as likely."""
        (found,), (right,) = said(ask, got), ask.said
        if found == right:
            return None
        pairs = zip_longest(found.text, right.text)
        at = next((place for place, (one, other) in enumerate(pairs) if one != other), 0)
        for token, gap in self.gaps[right.text]:
            if at < len(token):
                return None if gap <= NEAR else f"{found} should be {right}: {token!r} was likelier by {gap:.2f} nats"
            at -= len(token)
        return f"{found} should be {right}"


def _gaps(logprobs: dict[str, Any]) -> list[tuple[str, float]]:
    """From either API's shape."""
    if "content" in logprobs:
        tops = [(one["token"], [top["logprob"] for top in one["top_logprobs"]]) for one in logprobs["content"]]
    else:
        tops = [
            (token, list(top.values())) for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True)
        ]
    return [(token, max(top) - min(top)) for token, top in tops]


def _body(path: str, subject: str) -> dict[str, Any]:
    text = f"Tell me about {subject}."
    if path == COMPLETIONS:
        return {"prompt": f"{SYSTEM}\n{text}\n", "max_tokens": MOST}
    if path == RESPONSES:
        return {"instructions": SYSTEM, "input": text, "max_output_tokens": MOST}
    user = {"role": "user", "content": text}
    if path == MESSAGES:
        return {"system": SYSTEM, "messages": [user], "max_tokens": MOST}
    return {"messages": [{"role": "system", "content": SYSTEM}, user], "max_tokens": MOST}
