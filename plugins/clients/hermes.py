"""The Hermes agent.

Its headers are those of the OpenAI SDK, so its prompts tell: the first words of the system prompt, or, where a person
has written another, its own tools. It sends no session id. Before a turn it asks what kind of server this is
(`/api/tags`, `/props` and others); a 404 is the right answer.

Its side requests offer no tools and are not streamed: the title, and the compaction, which is one user message.

* Finish reasons: any word ends the answer; `length` makes it ask three times to go on.
* Calls come back with their arguments written anew: keys sorted, compact. A tool's result is JSON text, and its message
  has the tool's `name`, which is gone when a session is resumed.
* Reasoning: it reads `<think>` tags. Version 0.19 cuts them out and sends nothing back, except to a model whose name
  says DeepSeek, Kimi or MiMo: that one gets its `reasoning_content` again. Other versions keep it on the message.
"""

from __future__ import annotations

from collections.abc import Callable

from tandem.core.plugin import Client, ClientMatch, Options, hookimpl
from tandem.plugins.clients._reading import Body, Headers, Sight, begins, look, reasoning_option, session

TANDEM_API = ">=0.2,<0.3"

PROMPT = "You are Hermes Agent, an intelligent AI assistant created by Nous"
TITLES = (
    "Generate a short, descriptive title (3-7 words) for a conversation",
    "You name chat sessions. Given the user's opening message, write a title",
)
COMPACTION = "You are a summarization agent creating a context checkpoint."
OWN_TOOLS = frozenset({"terminal", "skill_view", "session_search", "delegate_task"})
ENOUGH_TOOLS = 3


def build(options: Options) -> Callable[[Headers, Body], ClientMatch | None]:
    def recognise(headers: Headers, body: Body) -> ClientMatch | None:
        sight = look(body)
        side = _side(sight)
        if not (side or begins(sight.system, [PROMPT]) or len(sight.tools & OWN_TOOLS) >= ENOUGH_TOOLS):
            return None
        return ClientMatch(
            "hermes",
            session=session(headers, body),
            reasoning_format=options["reasoning_format"],
            side=side,
        )

    return recognise


def _side(sight: Sight) -> str | None:
    if sight.offers_tools:
        return None
    if begins(sight.system, TITLES):
        return "title"
    return "compaction" if not sight.system and begins(sight.only_user, [COMPACTION]) else None


@hookimpl
def tandem_clients() -> list[Client]:
    return [Client(name="hermes", doc=__doc__, options=reasoning_option("tags"), build=build)]
