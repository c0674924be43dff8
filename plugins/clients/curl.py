"""The command curl.

Known by `User-Agent: curl/...`. The session is `X-Conversation-Id`, `X-Session-Id`, or `conversation_id`, `session_id`
or `user` in the body.

* Finish reasons: every word is shown.
* Calls and reasoning come back only if somebody writes them into the next body. Reasoning is sent as
  `reasoning_content`, so that `.choices[0].message.content` is the answer.
"""

from __future__ import annotations

from collections.abc import Callable

from tandem.core.plugin import Client, ClientMatch, Options, hookimpl
from tandem.plugins.clients._reading import Body, Headers, reasoning_option, session

TANDEM_API = ">=0.2,<0.3"


def build(options: Options) -> Callable[[Headers, Body], ClientMatch | None]:
    def recognise(headers: Headers, body: Body) -> ClientMatch | None:
        if not headers.get("user-agent", "").startswith("curl/"):
            return None
        return ClientMatch("curl", session=session(headers, body), reasoning_format=options["reasoning_format"])

    return recognise


@hookimpl
def tandem_clients() -> list[Client]:
    return [Client(name="curl", doc=__doc__, options=reasoning_option("reasoning_content"), build=build)]
