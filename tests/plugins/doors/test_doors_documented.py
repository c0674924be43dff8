"""Every field that a door knows has its place on the door's page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tandem.plugins.doors.messages import request as messages
from tandem.plugins.doors.messages.answer import STOP_REASONS
from tandem.plugins.doors.messages.errors import KINDS
from tandem.plugins.doors.responses import request as responses

DOCS = Path(__file__).parent.parent.parent.parent / "docs"


def in_code(page: str) -> set[str]:
    """Every word that the page writes as code."""
    return set(re.findall(r"`([\w.]+)`", (DOCS / page).read_text("utf-8")))


@pytest.mark.parametrize("field", [*responses.REFUSED, *responses.HANDED_ON, *responses.ECHOED, responses.INCLUDED])
def test_every_field_of_responses_is_on_its_page(field: str) -> None:
    assert field in in_code("responses.md")


@pytest.mark.parametrize("field", [*messages.REFUSED, *messages.HANDED_ON, *messages.CHOICES])
def test_every_field_of_messages_is_on_its_page(field: str) -> None:
    assert field in in_code("messages.md")


@pytest.mark.parametrize("word", [*STOP_REASONS.values(), "stop_sequence", *(KINDS[code] for code in (413, 429, 503))])
def test_every_word_that_a_message_ends_with_is_on_its_page(word: str) -> None:
    assert word in in_code("messages.md")
