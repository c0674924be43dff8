"""The web chat Open WebUI.

Known by any `X-OpenWebUI-...` header, which it sends with `ENABLE_FORWARD_USER_INFO_HEADERS=true`; the session is then
`X-OpenWebUI-Chat-Id`. Without that setting it has no name but `aiohttp` and no session; then the names of its own
tools, its `### Task:` requests and the summary that it puts before a compacted chat tell. A chat with none of these is
`plain`.

Its side requests are one user message, not streamed, that begins `### Task:`: title, tags, follow-ups, compaction.

* Finish reasons: any word ends the answer.
* Calls come back as compact JSON; broken JSON byte for byte, with the error as the tool's result.
* Reasoning does not come back, unless the connection's provider is set to `llama.cpp`; then it is `reasoning_content`
  on every assistant message. `<think>` tags are folded away only after the fact, so it is sent `reasoning_content`.
* A regenerated answer is asked for with the very same request, without a flag.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tandem.core.plugin import Client, ClientMatch, Options, hookimpl
from tandem.plugins.clients._reading import Body, Headers, Sight, begins, look, reasoning_option, session

TANDEM_API = ">=0.2,<0.3"

TASK = "### Task:"
SIDES = {
    "title": re.compile(r"(generate|create) .{0,60}\btitle\b"),
    "tags": re.compile(r"generate 1-3 .{0,20}\btags\b"),
    "follow_ups": re.compile(r"(predict|suggest) 3-5 .{0,30}\b(messages|questions|prompts)\b"),
    "compaction": re.compile(r"summarize the conversation history that will be compacted"),
}
"""What its tasks ask for, over the wordings of its versions."""
COMPACTED = "[CONVERSATION SUMMARY]"
OWN_TOOLS = frozenset(
    {
        "get_current_timestamp",
        "calculate_timestamp",
        "list_knowledge_bases",
        "search_chats",
        "view_chat",
        "search_memories",
        "add_memory",
        "search_notes",
        "write_note",
        "create_skill",
        "create_automation",
        "search_calendar_events",
    }
)
TOOLS_WITH_AIOHTTP, TOOLS_ALONE = 2, 3
"""How many of its tools tell, with its HTTP library's name beside them and without."""


def build(options: Options) -> Callable[[Headers, Body], ClientMatch | None]:
    def recognise(headers: Headers, body: Body) -> ClientMatch | None:
        sight = look(body)
        if not _is_it(headers, sight):
            return None
        return ClientMatch(
            "open_webui",
            session=session(headers, body, "x-openwebui-chat-id"),
            reasoning_format=options["reasoning_format"],
            side=_side(sight),
        )

    return recognise


def _is_it(headers: Headers, sight: Sight) -> bool:
    if any(name.startswith("x-openwebui-") for name in headers):
        return True
    own = len(sight.tools & OWN_TOOLS)
    if "aiohttp/" not in headers.get("user-agent", "").lower():
        return own >= TOOLS_ALONE
    return own >= TOOLS_WITH_AIOHTTP or begins(sight.only_user, [TASK]) or begins(sight.system, [COMPACTED])


def _side(sight: Sight) -> str | None:
    # A chat about documents begins `### Task:` as well, so what is asked for counts.
    if sight.stream or sight.offers_tools or not begins(sight.only_user, [TASK]):
        return None
    asked = sight.only_user[len(TASK) :].strip().lower()
    return next((side for side, wording in SIDES.items() if wording.match(asked)), None)


@hookimpl
def tandem_clients() -> list[Client]:
    return [Client(name="open_webui", doc=__doc__, options=reasoning_option("reasoning_content"), build=build)]
