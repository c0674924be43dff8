from __future__ import annotations

import pytest
from toy import ToyModel

from tandem.core.engine.prompt import Prompt, PromptError

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
