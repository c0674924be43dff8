"""Everybody else.

Matches every request, so it stands last. Without it a request that no shape knows is `plain` too, but its session id is
not read. The session is `X-Conversation-Id`, `X-Session-Id`, or `conversation_id`, `session_id` or `user` in the body.

* Finish reasons: every word of the server's.
* How calls and reasoning come back is not known. Reasoning is sent as `reasoning_content`, so that the content is the
  answer.
"""

from __future__ import annotations

from collections.abc import Callable

from tandem.core.plugin import Client, ClientMatch, Options, hookimpl
from tandem.plugins.clients._reading import Body, Headers, reasoning_option, session

TANDEM_API = ">=0.2,<0.3"


def build(options: Options) -> Callable[[Headers, Body], ClientMatch | None]:
    def recognise(headers: Headers, body: Body) -> ClientMatch | None:
        return ClientMatch("plain", session=session(headers, body), reasoning_format=options["reasoning_format"])

    return recognise


@hookimpl
def tandem_clients() -> list[Client]:
    return [Client(name="plain", doc=__doc__, options=reasoning_option("reasoning_content"), build=build)]
