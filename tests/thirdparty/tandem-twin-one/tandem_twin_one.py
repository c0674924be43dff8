"""One of two packages that offer a client shape of the same name."""

from tandem.core.plugin import Client, ClientMatch, hookimpl

TANDEM_API = ">=0.2,<0.3"


@hookimpl
def tandem_clients() -> list[Client]:
    return [Client(name="twin", build=lambda options: lambda headers, body: ClientMatch("twin"))]
