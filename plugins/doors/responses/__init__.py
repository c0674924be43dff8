"""The route `POST /v1/responses`: OpenAI's Responses API, over the same engine as chat completions.

The request becomes a chat request, and the answer's pieces become output items: reasoning, messages and function
calls, whole or as the API's typed events. Nothing is stored: a conversation goes on by sending its items again. What
needs a store (`previous_response_id`, `conversation`, `background`, prompt templates) or a tool that OpenAI runs itself
is refused by name.
"""

from __future__ import annotations

from tandem.core.plugin import Host, HttpRoute, Options, Routes, hookimpl

TANDEM_API = ">=0.2,<0.3"


def build(options: Options, host: Host) -> list[HttpRoute]:
    from tandem.plugins.doors._door import Door
    from tandem.plugins.doors.responses.answer import ResponseWriter
    from tandem.plugins.doors.responses.errors import error_body
    from tandem.plugins.doors.responses.request import read_request

    door = Door(host, read_request, lambda ask: ResponseWriter(ask.own, host.served_name or ""), error_body)
    return [
        HttpRoute(
            "/v1/responses",
            door.handle,
            methods=("POST",),
            doc="Answers a conversation in the shape of OpenAI's Responses API, whole or as a stream.",
        )
    ]


@hookimpl
def tandem_routes() -> list[Routes]:
    return [Routes(name="responses", doc=__doc__, build=build)]
