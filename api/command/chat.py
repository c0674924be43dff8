"""`tandem chat`: a conversation with a running server, in the terminal."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Generator, Iterator
from typing import Any

import click
import httpx2

from tandem.api.command.manifests import CommandFailed

DEFAULT_URL = "http://127.0.0.1:8000"
HELP = "/reset forgets the conversation, /system TEXT sets the system prompt, /quit leaves."
CONNECT_S = 5.0


class ServerError(Exception):
    """The server answered with an error; the message is its own."""


class Conversation:
    """The messages so far, and the server that they are sent to."""

    def __init__(self, url: str, system: str | None = None, **fields: Any) -> None:
        base = url.rstrip("/").removesuffix("/v1")
        # No limit on reading: a long prefill sends comments only, and a slow machine takes its time.
        timeout = httpx2.Timeout(None, connect=CONNECT_S)
        self._client = httpx2.Client(base_url=base, timeout=timeout, trust_env=False)
        self._fields = {name: value for name, value in fields.items() if value is not None}
        self.url = base
        self.system = system
        self.messages: list[dict[str, str]] = []

    def reset(self) -> None:
        """Forget what was said; the system prompt stays."""
        self.messages.clear()

    def served(self) -> str:
        """The served model's name. Raises ServerError, or httpx2's errors when there is no server."""
        models = _checked(self._client.get("/v1/models")).json()["data"]
        if not models:
            raise ServerError("the server has no model loaded")
        return str(models[0]["id"])

    def ask(self, text: str) -> Generator[str, None, None]:
        """The answer's pieces. What was read before the caller stopped reading is kept as the answer; closing the
        generator hangs up."""
        self.messages.append({"role": "user", "content": text})
        pieces: list[str] = []
        try:
            for piece in self._stream():
                pieces.append(piece)
                yield piece
        finally:
            if pieces:
                self.messages.append({"role": "assistant", "content": "".join(pieces)})
            else:
                self.messages.pop()  # nothing came back, so the question can be asked again

    def _stream(self) -> Iterator[str]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        body = {"messages": [*system, *self.messages], "stream": True, **self._fields}
        with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
            _checked(response)
            for line in response.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line[6:])
                if error := chunk.get("error"):
                    raise ServerError(error["message"])
                for choice in chunk["choices"]:
                    if piece := choice["delta"].get("content"):
                        yield piece


def _checked(response: httpx2.Response) -> httpx2.Response:
    if response.status_code == 200:
        return response
    response.read()
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = f"the server answered with status {response.status_code}"
    raise ServerError(message)


@click.command("chat")
@click.option("--url", default=DEFAULT_URL, show_default=True, help="Where the server listens.")
@click.option("--system", help="The system prompt.")
@click.option("--max-tokens", type=click.IntRange(1), help="The longest answer, in tokens.")
@click.option("--temperature", type=click.FloatRange(0, 2), help="The server's own when left out; 0 is greedy.")
def chat_command(url: str, system: str | None, max_tokens: int | None, temperature: float | None) -> None:
    """Talk to a running server.

    Each line is a message. Ctrl-C stops the running answer. Without a terminal the lines are read from stdin.
    """
    conversation = Conversation(url, system, max_tokens=max_tokens, temperature=temperature)
    try:
        served = conversation.served()
    except (httpx2.TransportError, httpx2.InvalidURL) as error:
        raise _no_server(conversation.url, error) from None
    except ServerError as error:
        raise CommandFailed(f"{conversation.url}: {error}", 1) from None
    interactive = sys.stdin.isatty()
    if interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # gives `input` its history and line editing
        click.echo(f"{served} at {conversation.url}. {HELP}")
    for line in _lines(interactive):
        if line == "/quit":
            return
        _handle(conversation, line)


def _no_server(url: str, error: Exception) -> CommandFailed:
    return CommandFailed(f"no server answers at {url} ({error}); start one with `tandem serve`, or give --url", 1)


def _lines(interactive: bool) -> Iterator[str]:
    """What is typed, without blank lines, until the input ends."""
    while True:
        try:
            line = input("> ") if interactive else sys.stdin.readline()
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo("\n/quit leaves.")
            continue
        if not interactive and not line:
            return
        if line.strip():
            yield line.strip()


def _handle(conversation: Conversation, line: str) -> None:
    command, _, rest = line.partition(" ")
    if command == "/reset":
        conversation.reset()
        click.echo("The conversation starts anew.")
    elif command == "/system":
        conversation.system = rest.strip() or None
        click.echo("The system prompt is set." if conversation.system else "The system prompt is gone.")
    elif command.startswith("/"):
        click.echo(f"There is no command {command}. {HELP}")
    else:
        _answer(conversation, line)


def _answer(conversation: Conversation, line: str) -> None:
    """Print the answer as it comes. Ctrl-C ends it; the server notices and stops generating."""
    pieces = conversation.ask(line)
    try:
        for piece in pieces:
            click.echo(piece, nl=False)
        click.echo()
    except KeyboardInterrupt:
        click.echo(" [stopped]")
    except ServerError as error:
        click.echo(f"\nThe server says: {error}", err=True)
    except httpx2.TransportError as error:
        click.echo(f"\nThe connection to {conversation.url} broke: {error}", err=True)
    finally:
        pieces.close()


__all__ = ["Conversation", "ServerError", "chat_command"]
