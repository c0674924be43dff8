"""The drafter in a running host: what one server wrote, it and the next one draft."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandem.plugins.drafters import suffix
from tandem.testing.box import Box

SAID = [*"The cat sat on the mat, and the dog lay by the door."]  # one byte an entry: the model drafts none itself


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_STATE_DIR", str(tmp_path))


def accepted(host: Box, said: list[str], **fields: Any) -> int:
    answer = host.chat("Say it.", script=said, **fields)
    answer.assert_text("".join(said))
    count: int = answer.timings["draft_n_accepted"]
    return count


def settled(host: Box, drafted: Callable[[], int]) -> int:
    """The store learns behind the answer's back, maybe in the middle of one: ask until it has. The most drafted."""
    most = 0
    for _ in range(50):
        most = max(most, drafted())
        if most > len(SAID) / 4:
            break
    return most


def test_an_answer_is_drafted_when_it_is_written_again(platform: Callable[..., Box]) -> None:
    host = platform(drafters={"suffix": {}}, plugins=[suffix])
    assert accepted(host, SAID) == 0
    assert settled(host, lambda: accepted(host, SAID)) > len(SAID) / 4


def test_the_next_server_knows_what_the_last_one_wrote(platform: Callable[..., Box]) -> None:
    first = platform(drafters={"suffix": {}}, plugins=[suffix])
    accepted(first, SAID)
    first.close()
    second = platform(drafters={"suffix": {}}, plugins=[suffix])
    assert settled(second, lambda: accepted(second, SAID, store=False)) > len(SAID) / 4


def test_an_answer_that_is_not_to_be_stored_is_not_drafted_later(platform: Callable[..., Box]) -> None:
    host = platform(drafters={"suffix": {}}, plugins=[suffix])
    for _ in range(5):
        assert accepted(host, SAID, store=False) == 0


def test_the_start_leaves_no_text_of_its_own(platform: Callable[..., Box], tmp_path: Path) -> None:
    """The engine tries each drafter before it serves."""
    host = platform(drafters={"suffix": {}}, plugins=[suffix])
    host.close()
    assert not list(tmp_path.rglob("*.log"))
