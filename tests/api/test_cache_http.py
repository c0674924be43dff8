"""Conversations over HTTP with the resident tier: what is read again, what the counts say, and how it is emptied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tandem.core.engine.generation import prompt_keys
from tandem.core.engine.request import Generate, PlacedPicture
from tandem.testing.box import Box

SYSTEM = {"role": "system", "content": "You help. " * 20}
CHAT = "/v1/chat/completions"


@pytest.fixture
def box() -> Iterator[Box]:
    with Box(caches={"resident": {}}) as box:
        yield box


def ask(box: Box, *messages: Any, **fields: Any) -> dict[str, Any]:
    answer = box.post(CHAT, {"messages": [SYSTEM, *messages], "max_tokens": 40, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def cached(answer: dict[str, Any]) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert answer["timings"]["cache_n"] == count
    assert answer["timings"]["prompt_n"] == answer["usage"]["prompt_tokens"] - count
    return count


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(answer: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = answer["choices"][0]["message"]
    return {"role": "assistant", "content": message["content"]}


def test_a_second_turn_reads_only_its_own_words(box: Box) -> None:
    first = ask(box, user("hello"))
    assert cached(first) == 0
    second = ask(box, user("hello"), said(first), user("more"))
    new = second["usage"]["prompt_tokens"] - cached(second)
    # the answer's end mark, the new message with its marks, and the mark that opens the answer
    assert 0 < new <= len("more") + 4
    assert said(second) == said(ask(box, user("hello"), said(first), user("more"), cache_prompt=False))


def test_another_question_after_the_same_system_prompt_finds_that_part(box: Box) -> None:
    ask(box, user("hello " * 200))
    other = ask(box, user("something else"))
    assert len(SYSTEM["content"]) <= cached(other) <= len(SYSTEM["content"]) + 3


def test_cache_prompt_false_reads_everything_and_leaves_nothing_behind(box: Box) -> None:
    ask(box, user("hello"), cache_prompt=False)
    assert cached(ask(box, user("hello"), cache_prompt=False)) == 0
    assert cached(ask(box, user("hello"))) == 0
    assert cached(ask(box, user("hello"))) > 0


def test_the_stats_tell_each_tiers_sizes_and_clear_empties_them(box: Box) -> None:
    ask(box, user("hello"))
    stats = box.get("/v1/cache/stats").json()
    assert stats["object"] == "cache.stats"
    assert stats["tiers"]["resident"]["entries"] == 1
    assert stats["tiers"]["resident"]["bytes"] > 0
    cleared = box.post("/v1/cache/clear")
    assert cleared.status_code == 200
    assert cleared.json()["before"] == stats["tiers"]
    assert box.get("/v1/cache/stats").json()["tiers"]["resident"]["entries"] == 0
    assert cached(ask(box, user("hello"))) == 0


def test_without_a_tier_there_is_nothing_to_tell_and_nothing_to_clear() -> None:
    with Box() as box:
        assert box.get("/v1/cache/stats").json()["tiers"] == {}
        assert box.post("/v1/cache/clear").status_code == 200


def test_choices_of_one_request_are_kept_once_each_and_resume(box: Box) -> None:
    body = ask(box, user("hello"), n=2)
    assert len(body["choices"]) == 2
    assert cached(ask(box, user("hello"), said(body), user("more"))) > len(SYSTEM["content"])


class Drawn:
    """A picture as far as a cache looks at it."""

    def __init__(self, id: str, rows: int) -> None:
        self.id, self.rows = id, rows


def test_rows_of_a_picture_are_keyed_by_its_content() -> None:
    def keys(first: str, second: str) -> list[int]:
        pictures: Any = (PlacedPicture(1, Drawn(first * 64, 3)), PlacedPicture(5, Drawn(second * 64, 2)))  # type: ignore[arg-type]
        return list(prompt_keys(Generate([9, 7, 7, 7, 8, 7, 7, 6], 1, images=pictures)))

    one = keys("a", "b")
    assert [key >= 0 for key in one] == [True, False, False, False, True, False, False, True]
    assert one == keys("a", "b")
    other = keys("a", "c")
    assert one[:5] == other[:5]
    assert one[5] != other[5]
    assert prompt_keys(Generate([1, 2], 1)) == [1, 2]
