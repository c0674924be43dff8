"""A client shape: recognises the program `acme-agent` by its headers."""

from collections.abc import Callable, Mapping
from typing import Any

from tandem.core.plugin import Client, ClientMatch, Options, hookimpl, option

TANDEM_API = ">=0.2,<0.3"


def build(options: Options) -> Callable[[Mapping[str, str], Mapping[str, Any]], ClientMatch | None]:
    product = options["product"].lower()

    def recognise(headers: Mapping[str, str], body: Mapping[str, Any]) -> ClientMatch | None:
        """`User-Agent: PRODUCT/1.2 ...` is ours; `X-Session` names the conversation. Header names are lower case."""
        agent = headers.get("user-agent", "").lower().split(" ")[0]
        if agent.partition("/")[0] != product:
            return None
        return ClientMatch("acme_agent", session=headers.get("x-session"))

    return recognise


@hookimpl
def tandem_clients() -> list[Client]:
    return [
        Client(
            name="acme_agent",
            doc="The program `acme-agent`, known by its `User-Agent`.",
            options={"product": option("string", "The product's name in `User-Agent`.", "acme-agent", minLength=1)},
            build=build,
        )
    ]
