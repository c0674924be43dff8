from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st
from PIL import Image
from toy import ToyModel

from tandem.core.engine.prompt import Prompt, PromptError
from tandem.core.kernel import StartError
from tandem.core.plugin import Vision
from tandem.core.plugin.vision import ImageProcessor, Picture

USER = [{"role": "user", "content": "hi"}]


def model(template: str | None, **names: str) -> ToyModel:
    toy = ToyModel()
    toy.template = template  # type: ignore[assignment]
    toy.template_vars = names
    return toy


def test_the_template_reads_the_models_own_names_and_the_requests_switches() -> None:
    prompt = Prompt(
        model("{{ bos_token }}{% if enable_thinking %}T{% endif %}{{ messages[0].content }}", bos_token="B")
    )
    assert prompt.render(USER, enable_thinking=True) == "BThi"
    assert prompt.render(USER, enable_thinking=False) == "Bhi"


def test_the_assistants_turn_is_opened() -> None:
    assert Prompt(model("{% if add_generation_prompt %}A{% endif %}")).render(USER) == "A"


def test_json_in_a_template_is_not_escaped_for_html() -> None:
    rendered = Prompt(model("{{ tools | tojson }}")).render(USER, tools=[{"a": "<é&'>"}])
    assert rendered == '[{"a": "<é&\'>"}]'


def test_loops_may_break() -> None:
    template = "{% for m in messages %}{{ m.content }}{% break %}{% endfor %}"
    assert Prompt(model(template)).render([*USER, *USER]) == "hi"


def test_a_template_that_is_none_stops_the_start_and_its_line_is_named() -> None:
    with pytest.raises(StartError, match=r"chat template can't be used: line 2: .*endfor"):
        Prompt(model("{{ bos_token }}\n{% for m in messages %}{{ m.content }}"))


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('system must be first') }}", "system must be first"),
        ("{{ messages[0].content + 3 }}", "can't read the messages"),
        ("{{ messages[7].content.x }}", "refused the messages"),
        ("{{ messages.__class__.__mro__ }}{{ messages.append(1) }}", "refused the messages"),
    ],
)
def test_what_a_template_refuses_is_said_in_words(template: str, words: str) -> None:
    with pytest.raises(PromptError, match=words):
        Prompt(model(template)).render(USER)


def test_a_model_without_a_template_points_to_completions() -> None:
    with pytest.raises(PromptError, match="/v1/completions"):
        Prompt(model(None)).chat(USER)


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(PromptError, match="no token"):
        Prompt(model("x")).text("")


# ---------------------------------------------------------------------------------------------------------- pictures


class Seeing:
    """A model with a byte tokenizer whose placeholder is `<pic>`."""

    TOKEN = 300

    def __init__(self, template: str) -> None:
        self.template = template
        self.template_vars: dict[str, Any] = {}
        self.vision = Vision(ImageProcessor(min_pixels=1024, max_pixels=4096), self.TOKEN)
        self.tokenizer = self

    def encode(self, text: str) -> list[int]:
        first, *others = text.split("<pic>")
        return [*first.encode(), *(id for part in others for id in (self.TOKEN, *part.encode()))]


PARTS = """{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else -%}
{% for p in m.content %}{{ "[<pic>]" if p.type == "image" else p.text }}{% endfor %}{% endif %};
{%- for call in m.calls or [] %}{{ call | tojson }}{% endfor %}{% endfor %}{{ tools | tojson if tools }}{{ word }}"""
WITH_MARK = st.lists(st.sampled_from(["<pic>", "<", "pic>", "a", "<pi", "c>", "é", "\ufdd0", "<\ufdd0pic>"])).map(
    "".join
)


def seeing(template: str = PARTS) -> Prompt:
    model: Any = Seeing(template)
    return Prompt(model)


def shown(width: int, height: int) -> Picture:
    return ImageProcessor(min_pixels=1024, max_pixels=4096).picture(Image.new("RGB", (width, height)))


def spelled(ids: Sequence[int]) -> str:
    """The text of the ids, with a placeholder as `#`."""
    return b"".join(b"#" if id == Seeing.TOKEN else bytes((id,)) for id in ids).decode()


def test_a_placeholder_stands_once_for_each_row() -> None:
    prompt, pictures = seeing(), [shown(64, 32), shown(32, 32)]
    parts = [{"type": "image"}, {"type": "text", "text": "and"}, {"type": "image"}]
    ids, placed = prompt.placed(prompt.chat([{"role": "u", "content": parts}]), pictures)
    assert [picture.rows for picture in pictures] == [2, 1]
    assert spelled(ids) == "u:[##]and[#];"
    assert [(at.start, at.picture) for at in placed] == [(3, pictures[0]), (10, pictures[1])]


@given(WITH_MARK, WITH_MARK, WITH_MARK, WITH_MARK, st.integers(0, 2))
def test_the_placeholder_in_a_clients_text_is_text(one: str, two: str, key: str, word: str, count: int) -> None:
    """Whatever a client writes, and wherever: the pictures alone are placeholders, and every character is there."""
    pictures = [shown(32, 32)] * count
    messages = [
        {"role": "u", "content": [{"type": "text", "text": one}, *[{"type": "image"}] * count]},
        {"role": "a", "content": two, "calls": [{key: [two]}]},
    ]
    prompt = seeing()
    ids, placed = prompt.placed(prompt.chat(messages, [{"name": key}], word=word), pictures)
    called, tool = (json.dumps(value, ensure_ascii=False) for value in ({key: [two]}, [{"name": key}]))
    written = f"u:{one}{'[#]' * count};a:{two};{called}{tool}{word}"
    assert spelled(ids) == written.replace("<\ufdd0pic>", "<pic>")
    assert len(placed) == count


def test_a_plain_prompt_may_hold_placeholders() -> None:
    """It is the client's own; no template stands between."""
    assert spelled(seeing().text("a<pic>b")) == "a#b"


@pytest.mark.parametrize(
    ("template", "count"),
    [
        (PARTS.replace("[<pic>]", ""), 0),
        (PARTS.replace("[<pic>]", "<pic><pic>"), 2),
        ("{{ raise_exception('no') }}", 1),
    ],
)
def test_a_picture_that_is_dropped_or_doubled_is_refused(template: str, count: int) -> None:
    prompt = seeing(template)
    parts = [{"type": "image"}]
    with pytest.raises(
        PromptError, match="no" if count == 1 else f"placeholder for {count} images, and the request shows 1;"
    ):
        prompt.placed(prompt.chat([{"role": "u", "content": parts}]), [shown(32, 32)])


def test_a_model_without_vision_takes_every_id_as_it_is() -> None:
    prompt = Prompt(model("{{ messages[0].content }}"))
    ids = prompt.chat(USER)
    assert prompt.placed(ids, ()) == (ids, ())


# ------------------------------------------------------------------------------------------- the head of a conversation

TURNS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}|{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def turns(*roles: str) -> list[dict[str, str]]:
    return [{"role": role, "content": f"words of {role} number {place}"} for place, role in enumerate(roles)]


def test_the_head_reaches_through_the_first_user_message() -> None:
    prompt = Prompt(model(TURNS))
    messages = turns("system", "user", "assistant", "user")
    head = prompt.head(messages)
    assert head == len("<system>words of system number 0|<user>words of user number 1|")
    assert prompt.chat(messages)[:head] == prompt.chat(messages[:2], add_generation_prompt=False)


def test_tools_and_switches_belong_to_the_head() -> None:
    prompt = Prompt(model("{{ tools | tojson }}{{ mode }}" + TURNS))
    messages, tools = turns("user", "assistant", "user"), [{"name": "ls"}]
    head = prompt.head(messages, tools, mode="x")
    assert head == len(prompt.chat(messages[:1], tools, mode="x", add_generation_prompt=False))


@pytest.mark.parametrize("roles", [("user",), ("system", "user"), ("system",), ("assistant", "user"), ()])
def test_who_begins_a_conversation_has_no_head(roles: tuple[str, ...]) -> None:
    assert Prompt(model(TURNS)).head(turns(*roles)) is None


def test_a_template_that_shows_no_beginning_alone_tells_no_head() -> None:
    prompt = Prompt(model("{% if messages | length < 3 %}{{ raise_exception('too few') }}{% endif %}" + TURNS))
    assert prompt.head(turns("user", "assistant", "user")) is None
