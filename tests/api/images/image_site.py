"""A TLS site under names of its own, and a network in which its addresses are public ones."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence as Seq
from io import BytesIO
from pathlib import Path
from typing import Any

import httpcore2
from PIL import Image

from tandem.api.images import HttpsFetcher, Limits

PUBLIC = "93.184.216.34"
OTHER_PUBLIC = "2606:4700::6810:84e5"

Answer = bytes | Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def encoded(form: str = "PNG", size: tuple[int, int] = (8, 6), colour: Any = (200, 30, 60), mode: str = "RGB") -> bytes:
    out = BytesIO()
    Image.new(mode, size, colour).save(out, form)
    return out.getvalue()


def data_url(data: bytes, subtype: str = "png") -> str:
    return f"data:image/{subtype};base64,{base64.b64encode(data).decode()}"


def http(body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    """A whole response; `content_length` and the like name its headers."""
    fields = {"content_length": str(len(body)), **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items() if value]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode() + body


def redirect(to: str, **headers: str) -> bytes:
    return http(b"", "302 Found", location=to, **headers)


class Wire(httpcore2.AsyncNetworkBackend):
    """The network: the site's addresses lead to its port on this machine, all others nowhere."""

    def __init__(self, port: int, addresses: Iterable[str]) -> None:
        self.port = port
        self.addresses = set(addresses)
        self.dialled: list[str] = []
        self._real = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        self.dialled.append(host)
        if host not in self.addresses:
            raise httpcore2.ConnectError("no route")
        return await self._real.connect_tcp("127.0.0.1", self.port, timeout)


class Site:
    """What one run of the site saw, and how it answers: a response, or a coroutine that writes one, for each path."""

    def __init__(self, routes: Mapping[str, Answer], context: ssl.SSLContext) -> None:
        self.routes = routes
        self.heads: list[str] = []
        self.asked_for: list[str | None] = []
        """The server names of the TLS handshakes."""
        context.sni_callback = lambda stream, name, context: self.asked_for.append(name)
        self._context = context

    async def start(self, *, tls: bool = True) -> asyncio.Server:
        if tls:
            return await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        return await asyncio.start_server(self._greet, "127.0.0.1", 0)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.test\r\n")
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            answer = self.routes.get(head.split()[1], http(b"", "404 Not Found"))
            if callable(answer):
                await answer(reader, writer)
            else:
                writer.write(answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has what it wanted, or the test is over
        finally:
            writer.close()


class Names:
    """The resolver: each name's answers, one after another; the last one stays."""

    def __init__(self, answers: Mapping[str, Seq[Seq[str]]]) -> None:
        self.answers = {name: list(each) for name, each in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Seq[str]:
        self.asked.append(host)
        answers = self.answers.get(host)
        if not answers:
            raise OSError("no such name")
        return answers.pop(0) if len(answers) > 1 else answers[0]


class Web:
    """Runs downloads against a site: `web.get(url, routes)` returns the bytes or raises BadImage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site: Site
        self.wire: Wire
        self.names: Names

    def trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.folder / "ca.pem"))

    def certified(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "site.pem", self.folder / "site.key")
        return context

    def get(
        self,
        url: str,
        routes: Mapping[str, Answer],
        names: Mapping[str, Seq[Seq[str]]] | None = None,
        *,
        tls: bool = True,
        trusted: ssl.SSLContext | None = None,
        resolve: Callable[[str, int], Awaitable[Seq[str]]] | None = None,
        **limits: Any,
    ) -> bytes:
        async def run() -> bytes:
            self.site = Site(routes, self.certified())
            server = await self.site.start(tls=tls)
            self.wire = Wire(server.sockets[0].getsockname()[1], (PUBLIC, OTHER_PUBLIC))
            fetcher = HttpsFetcher(
                Limits(**limits),
                resolve=resolve or self.names,
                network=self.wire,
                ssl_context=trusted or self.trusted(),
            )
            try:
                return await fetcher.fetch(url)
            finally:
                server.close()

        self.names = Names(names or {"img.test": [[PUBLIC]], "cdn.test": [[OTHER_PUBLIC]]})
        return asyncio.run(run())
