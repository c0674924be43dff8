"""The ledger behind the server: a row for each request, and never a word of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandem.core.engine.ledger import read
from tandem.core.kernel import StartError
from tandem.testing.box import Box

SECRET = "a secret nobody should find"


def rows_of(path: Path, *asked: Any, **server: Any) -> list[dict[str, Any]]:
    server = {"port": 0, "ledger": str(path), **server}
    with Box(server=server, caches={"resident": {}}, routes=["responses"], formats=["qwen_xml"]) as box:
        for ask in asked:
            ask(box)
    return read(path)


def chat(box: Box, **fields: Any) -> None:
    box.chat(SECRET, script=["<think>\n", SECRET, "</think>\n\n", SECRET], headers={"x-session-id": "s1"}, **fields)


def test_every_way_of_asking_leaves_one_row(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path / "l.sqlite",
        chat,
        lambda box: chat(box, max_tokens=5),
        lambda box: box.stream(SECRET, script=[SECRET]),
        lambda box: box.chat(SECRET, script=[SECRET], n=2),
        lambda box: box.post("/v1/completions", {"prompt": SECRET, "max_tokens": 3}),
        lambda box: box.post("/v1/responses", {"input": SECRET}),
    )
    assert [row["route"] for row in rows] == ["chat", "chat", "chat", "chat", "completions", "host"]
    whole, cut, streamed, both, plain, _ = rows
    assert (whole["reason"], whole["detail"]) == ("stop", "eos")
    assert (cut["reason"], cut["detail"]) == ("length", "max_tokens")
    assert whole["reasoning_tokens"] > 0
    assert cut["cached_tokens"] + cut["forwarded_tokens"] == cut["prompt_tokens"] > 0
    assert cut["cached_tokens"] > 0
    assert cut["cache_source"] == "resident"
    assert (streamed["stream"], streamed["choices"]) == (1, 1)
    assert both["choices"] == 2
    assert both["completion_tokens"] == 2 * streamed["completion_tokens"]
    assert streamed["first_text_ms"] is not None
    assert plain["completion_tokens"] == 3
    assert all(row["total_ms"] >= row["decode_ms"] >= 0 for row in rows[:2])


def test_no_text_is_in_the_file_and_a_session_is_a_hash(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    rows = rows_of(path, chat)
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert rows[0]["session"] != "s1"


def test_a_refusal_is_a_row_with_its_code(tmp_path: Path) -> None:
    def refused(box: Box) -> None:
        box.engine.drain()
        assert box.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}).status_code == 503

    (row,) = rows_of(tmp_path / "l.sqlite", refused)
    assert (row["reason"], row["detail"], row["prompt_tokens"]) == ("refused", "draining", 0)


def test_a_ledger_that_can_not_be_written_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StartError, match=r"server\.ledger: .*file/l\.sqlite"):
        Box(server={"port": 0, "ledger": str(tmp_path / "file" / "l.sqlite")})
