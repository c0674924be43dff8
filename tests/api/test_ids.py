"""The names of answers and calls."""

from __future__ import annotations

import random
import re

from tandem.api.ids import AT_ONCE, NBYTES, Ids
from tandem.testing.box import Box

SCRIPT = ["<tool_call>\n<function=f>\n</function>\n</tool_call>"]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def test_a_name_is_its_prefix_and_96_bits() -> None:
    assert re.fullmatch(r"call_[0-9a-f]{24}", Ids().new("call_"))


def test_no_random_byte_is_used_twice() -> None:
    drawn: list[bytes] = []

    def draw(count: int) -> bytes:
        start = sum(map(len, drawn)) // 4
        drawn.append(b"".join(number.to_bytes(4, "big") for number in range(start, start + count // 4)))
        return drawn[-1]

    ids = Ids(draw)
    names = [ids.new("") for _ in range(3 * AT_ONCE)]
    assert "".join(names) == b"".join(drawn).hex()
    assert len(set(names)) == len(names)
    assert len(drawn) == 3
    assert len(drawn[0]) == NBYTES * AT_ONCE


def test_whoever_knows_the_seed_of_python_knows_no_name() -> None:
    names = set()
    for _ in range(2):
        random.seed(0)
        names.add(Ids().new(""))
    assert len(names) == 2


def test_a_server_names_its_answers_and_calls_so() -> None:
    with Box(formats=["qwen_xml"]) as box:
        box.app.state.service.ids = Ids(lambda count: bytes(range(256)) * 12)
        body = box.chat(script=SCRIPT, tools=TOOLS).body
        assert body["id"] == "chatcmpl-" + bytes(range(12)).hex()
        assert body["choices"][0]["message"]["tool_calls"][0]["id"] == "call_" + bytes(range(12, 24)).hex()
