"""One request over a socket of its own making: sent, read, or left in the middle."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from soak_plan import CHAT, COMPLETIONS, MESSAGES, Ask, Leave, Said

from tandem.testing import sse

PATIENCE_S = 60.0
"""A socket that is silent for so long counts as stuck."""


@dataclass(slots=True)
class Got:
    """What came back."""

    status: int = 0
    content: bytes = b""


class Wire:
    """A client's connection, kept from one request to the next as real clients keep theirs."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._kept: http.client.HTTPConnection | None = None

    def send(self, ask: Ask) -> Got:
        if ask.leave is not None:
            return self._left(ask, ask.leave)
        connection = self._kept or http.client.HTTPConnection(*self._address, timeout=PATIENCE_S)
        self._kept = None
        connection.request(ask.method, ask.path, _bytes(ask), _headers(ask))
        answer = connection.getresponse()
        content = b""
        while piece := answer.read1(8192 if ask.slow else 65536):
            content += piece
            if ask.slow:
                time.sleep(0.002)
        answer.read()  # else the connection does not know that this answer is over
        if answer.will_close or ask.slow:
            connection.close()
        else:
            self._kept = connection
        return Got(answer.status, content)

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()

    def _left(self, ask: Ask, leave: Leave) -> Got:
        body = _bytes(ask)
        lines = [f"POST {ask.path} HTTP/1.1", "Host: soak", "Connection: close", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in _headers(ask).items()]
        whole = "\r\n".join([*lines, "", ""]).encode() + body
        got = Got()
        with socket.create_connection(self._address, timeout=PATIENCE_S) as connection:
            connection.sendall(whole[: len(whole) // 2] if leave.stage == "body" else whole)
            if leave.stage == "text":
                _read_some(connection, got, leave.nbytes)
            else:
                time.sleep(leave.seconds)
                _read_what_is_there(connection, got)
            if leave.manner == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif leave.manner == "half":
                connection.shutdown(socket.SHUT_WR)
                with suppress(ConnectionError):
                    while connection.recv(65536):
                        pass
        return got


def _read_some(connection: socket.socket, got: Got, nbytes: int) -> None:
    """Read until so many bytes of the answer are there, or it is one that does not go on."""
    while (not got.status or (got.status == 200 and len(got.content) < nbytes)) and (piece := connection.recv(65536)):
        _take(got, piece)


def _read_what_is_there(connection: socket.socket, got: Got) -> None:
    """A refusal may have come already."""
    connection.setblocking(False)
    with suppress(BlockingIOError, ConnectionError):
        while piece := connection.recv(65536):
            _take(got, piece)
    connection.settimeout(PATIENCE_S)


def _take(got: Got, piece: bytes) -> None:
    if got.status:
        got.content += piece
        return
    head, parted, rest = (got.content + piece).partition(b"\r\n\r\n")
    got.content = rest if parted else head
    if parted:
        got.status = int(head.split()[1])


def _bytes(ask: Ask) -> bytes:
    return ask.body if isinstance(ask.body, bytes) else json.dumps(ask.body).encode()


def _headers(ask: Ask) -> dict[str, str]:
    return {"Content-Type": ask.content_type, "X-Session-Id": ask.session}


# ------------------------------------------------------------------------------------------------- what was said


def said(ask: Ask, got: Got) -> tuple[Said, ...]:
    """The choices of an answer, read as its API tells them. Raises ValueError or KeyError for one that is not whole."""
    events = sse.events([got.content]) if ask.streamed else []
    if ask.path == MESSAGES:
        return (_message([event.json() for event in events]) if events else _whole_message(json.loads(got.content)),)
    if ask.path not in (CHAT, COMPLETIONS):
        body = events[-1].json()["response"] if events else json.loads(got.content)
        if events:
            _check_deltas([event.json() for event in events], body)
        return (_response(body),)
    if not events:
        return tuple(_choice(choice, choice.get("message", choice)) for choice in json.loads(got.content)["choices"])
    if not events[-1].done:
        raise ValueError(f"the stream has no end: {got.content[-300:]!r}")
    return _streamed([event.json() for event in events[:-1]])


def _choice(choice: dict[str, Any], message: dict[str, Any]) -> Said:
    calls = tuple((call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ())
    text = message.get("content") if "role" in message else message["text"]
    return Said(text or "", message.get("reasoning_content") or "", calls, choice["finish_reason"])


def _streamed(chunks: list[dict[str, Any]]) -> tuple[Said, ...]:
    found: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        if "error" in chunk:
            raise ValueError(f"the stream broke: {chunk['error']}")
        for choice in chunk["choices"]:
            one = found.setdefault(choice["index"], {"text": "", "reasoning": "", "calls": {}, "finish": None})
            delta = choice.get("delta") or {"content": choice.get("text")}
            one["text"] += delta.get("content") or ""
            one["reasoning"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls") or ():
                known = one["calls"].setdefault(call["index"], ["", ""])
                known[0] += call["function"].get("name") or ""
                known[1] += call["function"].get("arguments") or ""
            one["finish"] = choice["finish_reason"] or one["finish"]
    return tuple(
        Said(one["text"], one["reasoning"], tuple(map(tuple, one["calls"].values())), one["finish"])
        for _, one in sorted(found.items())
    )


FINISH = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


def _whole_message(body: dict[str, Any]) -> Said:
    blocks = body["content"]
    return Said(
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        tuple((b["name"], json.dumps(b["input"], ensure_ascii=False)) for b in blocks if b["type"] == "tool_use"),
        FINISH[body["stop_reason"]],
    )


def _message(events: list[dict[str, Any]]) -> Said:
    blocks: list[dict[str, Any]] = []
    reason = ""
    for event in events:
        if event["type"] == "error":
            raise ValueError(f"the stream broke: {event['error']}")
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "written": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            blocks[event["index"]]["written"] += next(
                delta[key] for key in ("text", "thinking", "partial_json", "signature") if key in delta
            )
        elif event["type"] == "message_delta":
            reason = event["delta"]["stop_reason"]
    if events[-1]["type"] != "message_stop":
        raise ValueError(f"the stream has no end: {events[-1]}")
    for block in blocks:
        field = {"text": "text", "thinking": "thinking", "tool_use": "input"}[block["type"]]
        block[field] = json.loads(block["written"]) if field == "input" else block["written"]
    return _whole_message({"content": blocks, "stop_reason": reason})


def _response(body: dict[str, Any]) -> Said:
    items = body["output"]
    calls = tuple((item["name"], item["arguments"]) for item in items if item["type"] == "function_call")
    finish = {"incomplete": "length", "completed": "tool_calls" if calls else "stop"}[body["status"]]
    return Said(_texts(items, "message"), _texts(items, "reasoning"), calls, finish)


def _texts(items: list[dict[str, Any]], kind: str) -> str:
    return "".join(part["text"] for item in items if item["type"] == kind for part in item["content"])


def _check_deltas(events: list[dict[str, Any]], body: dict[str, Any]) -> None:
    """What was told piece by piece is what stands in the response at the end."""
    for kind, item in (("response.output_text.delta", "message"), ("response.reasoning_text.delta", "reasoning")):
        told = "".join(event["delta"] for event in events if event["type"] == kind)
        if told != _texts(body["output"], item):
            raise ValueError(f"the deltas say {told!r}")
