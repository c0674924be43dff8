from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from toy import ToyModel

from tandem.core.engine.hidden import HiddenTurns
from tandem.core.engine.notes import GAP, Kept, Notes, moved
from tandem.core.engine.prompt import Prompt, PromptError
from tandem.core.engine.request import PlacedPicture
from tandem.plugins.models.scripted import ScriptedModel

MESSAGES = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "ho"},
    {"role": "user", "content": "on"},
]
CONTEXTS = [b"a", b"ab", b"abc"]


@pytest.fixture
def prompt() -> Prompt:
    return Prompt(ScriptedModel({"reply": "x", "tokens_per_s": 0, "prefill_per_s": 0}))


def words(prompt: Prompt, ids: list[int]) -> str:
    return bytes(token for token in ids if token < 256).decode()


def test_a_note_stands_at_the_end_of_its_message_and_its_place_is_known(prompt: Prompt) -> None:
    notes = Notes(prompt)
    notes.keep(b"a", "Be brief.")
    found = notes.find(CONTEXTS)
    assert found == {0: "Be brief."}
    rendered = prompt.render(notes.marked(MESSAGES, found))
    ids, hidden = notes.laid_out(notes.filled([rendered], found))
    (place,) = hidden
    assert words(prompt, ids[place.start : place.stop]) == f"{GAP}Be brief."
    assert ids[: place.start] + ids[place.stop :] == prompt.ids(prompt.render(MESSAGES))


def test_a_note_belongs_to_what_was_said_before_it(prompt: Prompt) -> None:
    notes = Notes(prompt)
    notes.keep(b"a", "x")
    assert notes.find([b"other", b"ab"]) == {}
    notes.keep(b"a", "y")
    assert notes.find(CONTEXTS) == {0: "y"}
    notes.clear()
    assert notes.find(CONTEXTS) == {}


def test_a_content_of_parts_gets_a_part(prompt: Prompt) -> None:
    notes = Notes(prompt)
    message = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    marked = notes.marked([message], {0: "n"})
    assert len(marked[0]["content"]) == 2
    assert message["content"] == [{"type": "text", "text": "hi"}]


def test_the_oldest_notes_go_when_there_are_too_many(prompt: Prompt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.core.engine.notes.ROOM", 10)
    notes = Notes(prompt)
    for context in CONTEXTS:
        notes.keep(context, "1234")
    assert sorted(notes.find(CONTEXTS)) == [1, 2]


def test_hidden_places_of_a_kept_turn_are_moved_to_where_it_stands(prompt: Prompt) -> None:
    ids, hidden = Notes(prompt).laid_out(["ab", Kept([1, 2, 3], (range(1, 2),)), [4], "c"])
    assert (ids[2:6], hidden) == ([1, 2, 3, 4], (range(3, 4),))
    with pytest.raises(PromptError):
        Notes(prompt).laid_out([""])


def test_places_move_with_the_rows_of_the_pictures_before_them() -> None:
    picture: Any = SimpleNamespace(rows=100)
    more = picture.rows - 1
    images: Any = [PlacedPicture(3, picture), PlacedPicture(10 + more, picture)]
    places = (range(2), range(5, 8), range(12, 13))
    assert moved(places, images) == (
        range(2),
        range(5 + more, 8 + more),
        range(12 + 2 * more, 13 + 2 * more),
    )


def test_a_hidden_turn_is_what_the_template_writes_between_two_answers(prompt: Prompt) -> None:
    ids = HiddenTurns(prompt).user("Go on, please.")
    assert ids is not None
    said = prompt.render([MESSAGES[0], {"role": "assistant", "content": "ho"}], add_generation_prompt=False)
    whole = prompt.render(
        [MESSAGES[0], {"role": "assistant", "content": "ho"}, {"role": "user", "content": "Go on, please."}],
        enable_thinking=False,
    )
    assert prompt.ids(said.removesuffix("<|end|>")) + ids == prompt.ids(whole)


def test_a_hidden_result_answers_the_calls_as_the_template_does(prompt: Prompt) -> None:
    ids = HiddenTurns(prompt).result("x must be 2")
    assert ids is not None
    text = words(prompt, ids)
    assert "x must be 2" in text
    assert HiddenTurns(prompt).user("x must be 2") != ids


def test_a_template_that_takes_no_system_free_conversation_has_no_hidden_turns() -> None:
    model = ToyModel()
    model.template = "{{ raise_exception('no') }}"
    turns = HiddenTurns(Prompt(model))
    assert turns.user("x") is None
    assert turns.result("x") is None
