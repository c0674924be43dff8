"""A program that uses one of OpenAI's own SDKs.

Known by `OpenAI/` in its `User-Agent` (`OpenAI/Python 2.24.0`, `AsyncOpenAI/Python ...`, `OpenAI/JS ...`), or by the
`X-Stainless-Lang` header that these SDKs send. Agents built on an SDK look the same, so this shape stands behind
theirs. The session is `X-Conversation-Id`, `X-Session-Id`, or `conversation_id`, `session_id` or `user` in the body.

* Finish reasons: every word is handed to the program.
* Calls and reasoning come back as the program writes them. Reasoning is sent as `reasoning_content`, because programs
  print `message.content` as the answer.
* An error inside a stream is raised as `APIError`; a chunk without choices reaches the program.
"""

from __future__ import annotations

from collections.abc import Callable

from tandem.core.plugin import Client, ClientMatch, Options, hookimpl
from tandem.plugins.clients._reading import Body, Headers, reasoning_option, session

TANDEM_API = ">=0.2,<0.3"


def build(options: Options) -> Callable[[Headers, Body], ClientMatch | None]:
    def recognise(headers: Headers, body: Body) -> ClientMatch | None:
        if "OpenAI/" not in headers.get("user-agent", "") and "x-stainless-lang" not in headers:
            return None
        return ClientMatch("openai_sdk", session=session(headers, body), reasoning_format=options["reasoning_format"])

    return recognise


@hookimpl
def tandem_clients() -> list[Client]:
    return [Client(name="openai_sdk", doc=__doc__, options=reasoning_option("reasoning_content"), build=build)]
