"""The coding agent opencode.

Known by `User-Agent: opencode/...`, by any `x-opencode-...` header, by a session id of its form (`ses_...` in
`x-session-id` or `x-session-affinity`), or, where a proxy drops all of these, by the first words of its prompts. The
session id comes with turns and side requests alike; a subagent has a session of its own.

Its side requests offer no tools and open with a fixed instruction: the title of the session, its summary, and the
compaction. Older versions compact with the whole history as the one message of the request.

* Finish reasons: it knows `stop`, `length` and `tool_calls`. Any other word, or none, makes it ask again at once,
  without end, so it never gets another.
* Calls come back with their arguments written anew: compact, keys in the model's order. A call that did not parse comes
  back under the name `invalid`, with the raw text inside an error. A tool's result is a string without a name.
* Reasoning comes back as `reasoning_content`, its parts joined with nothing between. `<think>` tags in the content stay
  there.
"""

from __future__ import annotations

from collections.abc import Callable

from tandem.core.plugin import Client, ClientMatch, Options, hookimpl
from tandem.plugins.clients._reading import Body, Headers, Sight, begins, look, reasoning_option, session

TANDEM_API = ">=0.2,<0.3"

SESSIONS = ("x-session-id", "x-session-affinity", "x-opencode-session-id", "x-opencode-session")
FINISH_WORDS = frozenset({"stop", "length", "tool_calls"})
SIDES = {
    "title": "You are a title generator. You output ONLY a thread title.",
    "summary": "Summarize what was done in this conversation. Write like a pull request",
    "compaction": "You are a context summarization agent. You are given a conversation",
}
"""How the system message of a side request begins."""
OLD_COMPACTION = "You are a helpful AI assistant tasked with summarizing conversations."
"""Other programs say this too."""
HISTORY = 2_000
"""Characters: a lone message without a system prompt that is as long as this is a history to compact."""


def build(options: Options) -> Callable[[Headers, Body], ClientMatch | None]:
    def recognise(headers: Headers, body: Body) -> ClientMatch | None:
        sight = look(body)
        named = _named(headers)
        side = _side(sight, named)
        if not (named or side or begins(sight.system, ["You are opencode"])):
            return None
        return ClientMatch(
            "opencode",
            session=session(headers, body, *SESSIONS),
            reasoning_format=options["reasoning_format"],
            finish_words=FINISH_WORDS,
            side=side,
        )

    return recognise


def _named(headers: Headers) -> bool:
    """Whether the headers alone say that it is opencode."""
    return (
        "opencode/" in headers.get("user-agent", "").lower()
        or any(name.startswith("x-opencode-") for name in headers)
        or any(headers.get(name, "").startswith("ses_") for name in ("x-session-id", "x-session-affinity"))
    )


def _side(sight: Sight, named: bool) -> str | None:
    if sight.offers_tools:
        return None
    for side, head in SIDES.items():
        if begins(sight.system, [head]):
            return side
    history = not sight.system and sight.only_user_length >= HISTORY
    if named and (history or begins(sight.system, [OLD_COMPACTION])):
        return "compaction"
    return None


@hookimpl
def tandem_clients() -> list[Client]:
    return [Client(name="opencode", doc=__doc__, options=reasoning_option("reasoning_content"), build=build)]
