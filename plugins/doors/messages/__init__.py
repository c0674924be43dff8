"""The route `POST /v1/messages`: Anthropic's Messages API, over the same engine as chat completions.

The request becomes a chat request, and the answer's pieces become content blocks: thinking, text and tool use, whole or
as the API's typed events. Tools that Anthropic runs itself, files and documents are refused by name.
"""

from __future__ import annotations

from functools import partial

from tandem.core.plugin import Host, HttpRoute, Options, Routes, hookimpl, option

TANDEM_API = ">=0.2,<0.3"


def build(options: Options, host: Host) -> list[HttpRoute]:
    from tandem.plugins.doors._door import Door
    from tandem.plugins.doors.messages.answer import MessageWriter
    from tandem.plugins.doors.messages.errors import error_body
    from tandem.plugins.doors.messages.request import read_request

    read = partial(read_request, thinks=options["thinking"] == "auto")
    door = Door(host, read, lambda ask: MessageWriter(host.served_name or "", **ask.own), error_body)
    return [
        HttpRoute(
            "/v1/messages",
            door.handle,
            methods=("POST",),
            doc="Answers a conversation in the shape of Anthropic's Messages API, whole or as a stream.",
        )
    ]


@hookimpl
def tandem_routes() -> list[Routes]:
    return [
        Routes(
            name="messages",
            doc=__doc__,
            options={
                "thinking": option(
                    "string",
                    "What a request without the field `thinking` gets: `off`, as the API says, or `auto`, what the "
                    "model's template does by itself.",
                    "off",
                    enum=["off", "auto"],
                )
            },
            build=build,
        )
    ]
