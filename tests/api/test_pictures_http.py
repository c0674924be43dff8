"""Pictures over HTTP, through a model that tells what it saw of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pytest
from PIL import Image

from tandem.testing.box import Box

READS = {"plugin": "scripted", "vision": True, "reply": "I see."}

DOORS = {"clients": ["plain"], "routes": ["responses", "messages"]}


def picture(width: int = 320, height: int = 256, colour: str = "#c81e3c", form: str = "PNG") -> dict[str, Any]:
    """A part with a picture of one colour."""
    file = BytesIO()
    Image.new("RGB", (width, height), colour).save(file, form)
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/{form.lower()};base64,{data}"}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def script(*entries: Any) -> dict[str, Any]:
    return text(json.dumps({"script": entries}))


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


RED = picture()
SAW_RED = "320x256, 80 rows, #c81e3c"


@pytest.fixture(scope="module")
def seeing() -> Iterator[Box]:
    """A server whose model reads pictures, at most four of a conversation."""
    with Box(DOORS, model=READS, server={"max_images": 4}) as running:
        yield running


def metric(box: Box, name: str) -> float:
    lines = box.get("/metrics").text.splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), 0.0)


# ----------------------------------------------------------------------------------------------------- what is seen


@pytest.mark.parametrize("form", ["PNG", "BMP", "GIF", "WEBP"])
def test_the_model_sees_the_picture(seeing: Box, form: str) -> None:
    shown = picture(320, 256, "#0000ff", form)
    seeing.chat([user(text("Look: "), shown, script({"picture": 0}))]).assert_text("320x256, 80 rows, #0000ff")


def test_a_streamed_answer_sees_it_too(seeing: Box) -> None:
    answer = seeing.stream([user(RED, script("It is ", {"picture": 0}, "."))])
    answer.assert_text(f"It is {SAW_RED}.")
    assert answer.done
    assert answer.usage["prompt_tokens_details"]["image_tokens"] == 80


def test_several_pictures_keep_their_order(seeing: Box) -> None:
    blue, green = picture(64, 400, "#0000ff"), picture(640, 480, "#00ff00")
    talk = [
        user(RED, text(" and "), blue),
        {"role": "assistant", "content": "Two pictures."},
        user(green, script({"picture": 2}, "; ", {"picture": 1}, "; ", {"picture": 0})),
    ]
    seeing.chat(talk).assert_text(f"640x480, 300 rows, #00ff00; 64x400, 80 rows, #0000ff; {SAW_RED}")


def test_two_pictures_side_by_side_are_two(seeing: Box) -> None:
    answer = seeing.chat([user(RED, picture(colour="#ffffff"), script({"picture": 0}, "; ", {"picture": 1}))])
    answer.assert_text(f"{SAW_RED}; 320x256, 80 rows, #ffffff")


def test_a_tools_picture_is_seen(seeing: Box) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "shot", "arguments": "{}"}}
    talk = [
        user(script({"picture": 0})),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": [text("done"), RED]},
    ]
    seeing.chat(talk).assert_text(SAW_RED)


def test_a_picture_that_is_not_there_is_not_made_up(seeing: Box) -> None:
    seeing.chat([user(RED, script({"picture": 1}))]).assert_text("there is no picture 1: the prompt shows 1")


def test_a_picture_longer_than_a_prefill_chunk_is_whole() -> None:
    with Box(model=READS, server={"prefill_chunk": 16}) as box:
        box.chat([user(text("x" * 5), RED, script({"picture": 0}))]).assert_text(SAW_RED)


def test_every_choice_sees_it(seeing: Box) -> None:
    answer = seeing.chat([user(RED, script({"picture": 0}))], n=3).assert_status(200)
    assert [choice["message"]["content"] for choice in answer.body["choices"]] == [SAW_RED] * 3
    assert answer.usage["prompt_tokens_details"]["image_tokens"] == 80, "the prompt counts once"


def test_an_answer_may_go_on_behind_a_picture_of_an_earlier_turn(seeing: Box) -> None:
    talk = [user(RED, script("a", {"picture": 0})), {"role": "assistant", "content": "It is"}]
    answer = seeing.chat(talk).assert_status(200)
    assert answer.text


# ---------------------------------------------------------------------------------------------------------- counting


def test_rows_count_as_prompt_tokens(seeing: Box) -> None:
    words = seeing.chat([user(text("Hello"))]).usage
    both = seeing.chat([user(text("Hello"), RED)]).usage
    assert both["prompt_tokens"] == words["prompt_tokens"] + 80
    assert both["total_tokens"] == both["prompt_tokens"] + both["completion_tokens"]
    assert both["prompt_tokens_details"]["image_tokens"] == 80
    assert "image_tokens" not in words["prompt_tokens_details"]


def test_a_picture_that_does_not_fit_the_context_is_refused_as_a_long_prompt() -> None:
    with Box(model=READS, server={"max_len": 200}) as box:
        answer = box.chat([user(picture(640, 480))]).assert_status(400)
    assert answer.error is not None
    assert answer.error["code"] == "context_length_exceeded"


def conversation(count: int, *last: dict[str, Any]) -> list[dict[str, Any]]:
    """`count` turns, each with a picture of its own width, and what comes last."""
    turns: list[dict[str, Any]] = []
    for number in range(count):
        turns += [user(picture(256 + number, 256), text("next")), {"role": "assistant", "content": "ok"}]
    return [*turns, user(*last)]


def test_a_long_conversation_shows_its_newest_pictures(seeing: Box) -> None:
    shown, left_out = (metric(seeing, f"tandem_images{name}_total") for name in ("", "_left_out"))
    talk = conversation(5, script({"picture": 0}, " ", {"picture": 2}, " ", {"picture": 3}))
    answer = seeing.chat(talk).assert_status(200)
    assert answer.text.startswith("258x256")
    assert "260x256" in answer.text
    assert answer.text.endswith("there is no picture 3: the prompt shows 3")
    assert answer.headers["X-Tandem-Images-Left-Out"] == "2"
    assert metric(seeing, "tandem_images_left_out_total") == left_out + 2
    assert metric(seeing, "tandem_images_total") == shown + 3


def test_a_stream_says_how_many_pictures_were_left_out(seeing: Box) -> None:
    answer = seeing.stream(conversation(5, text("Well?"))).assert_status(200)
    assert answer.headers["X-Tandem-Images-Left-Out"] == "2"


def test_nothing_is_said_when_nothing_was_left_out(seeing: Box) -> None:
    assert "X-Tandem-Images-Left-Out" not in seeing.chat(conversation(2, text("Well?"))).headers


def test_too_many_pictures_in_the_newest_message_are_refused(seeing: Box) -> None:
    answer = seeing.chat([user(*[RED] * 5)]).assert_status(400)
    assert answer.error is not None
    assert answer.error["param"] == "messages[0].content[4].image_url"


# ------------------------------------------------------------------------------------------- the placeholder as text


@pytest.mark.parametrize("mark", ["<|image|>", "a <|image|> b <|image|>", "<|image|><|image|>"])
def test_the_placeholder_as_text_is_text(seeing: Box, mark: str) -> None:
    plain = seeing.chat([user(text(mark.replace("<|image|>", "<|imagf|>")))]).assert_status(200)
    answer = seeing.chat([user(text(mark))]).assert_status(200)
    assert "image_tokens" not in answer.usage["prompt_tokens_details"]
    # The template writes the `<|` of other marks in a user's text as JSON escapes it, five bytes longer.
    assert answer.usage["prompt_tokens"] == plain.usage["prompt_tokens"] - 5 * mark.count("<|image|>")
    beside = seeing.chat([user(text(mark), RED, script({"picture": 0}))])
    beside.assert_text(SAW_RED)
    assert beside.usage["prompt_tokens_details"]["image_tokens"] == 80


def test_the_placeholder_in_a_tool_call_an_assistants_text_and_a_tools_schema_is_text(seeing: Box) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "w", "arguments": '{"<|image|>": "<|image|>"}'}}
    tool = {"type": "function", "function": {"name": "w", "description": "<|image|>", "parameters": {}}}
    talk = [
        {"role": "system", "content": "<|image|>"},
        user(RED, script({"picture": 0})),
        {"role": "assistant", "content": "<|image|>", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "<|image|>"},
    ]
    answer = seeing.chat(talk, tools=[tool]).assert_text(SAW_RED)
    assert answer.usage["prompt_tokens_details"]["image_tokens"] == 80


def test_an_answer_goes_on_behind_the_placeholder_as_text(seeing: Box) -> None:
    talk = [user(RED, text("?")), {"role": "assistant", "content": "The mark is <|image|>"}]
    cut = [user(RED, text("?")), {"role": "assistant", "content": "The mark is <|imagf|>"}]
    assert seeing.chat(talk).usage["prompt_tokens"] == seeing.chat(cut).usage["prompt_tokens"]


# ------------------------------------------------------------------------------------------------- regenerate, caches


def test_another_picture_is_another_question(seeing: Box) -> None:
    """With the same words beside it: no regenerate."""
    sampled = lambda: seeing.get("/health").json()["sampling"]["regenerate"]["seen"]  # noqa: E731
    headers = {"X-Conversation-Id": "c1"}
    before = sampled()
    seeing.chat([user(text("What is it?"), RED)], headers=headers)
    seeing.chat([user(text("What is it?"), picture(colour="#000000"))], headers=headers)
    assert sampled() == before
    seeing.chat([user(text("What is it?"), RED)], headers=headers)
    assert sampled() == before + 1


def test_a_cached_prompt_keeps_its_pictures_and_another_picture_is_not_found() -> None:
    with Box(model=READS, caches={"resident": {}}) as box:
        head = [user(text("x" * 600), RED, text("y" * 600))]
        box.chat(head).assert_status(200)
        talk = [*head, {"role": "assistant", "content": "I see."}, user(script({"picture": 0}))]
        again = box.chat(talk).assert_text(SAW_RED)
        assert again.usage["prompt_tokens_details"]["cached_tokens"] > 1200
        blue = [user(text("x" * 600), picture(colour="#0000ff"), text("y" * 600)), *talk[1:]]
        other = box.chat(blue).assert_text("320x256, 80 rows, #0000ff")
        assert other.usage["prompt_tokens_details"]["cached_tokens"] < 700


# --------------------------------------------------------------------------------------------------- who reads what


def test_a_model_says_what_it_reads(seeing: Box, box: Box) -> None:
    for server, reads in ((seeing, ["text", "image"]), (box, ["text"])):
        (model,) = server.get("/v1/models").json()["data"]
        assert model["input_modalities"] == reads
        assert server.get(f"/v1/models/{model['id']}").json()["input_modalities"] == reads


@pytest.mark.parametrize("role", ["user", "assistant", "tool"])
def test_a_text_only_model_refuses_a_picture_by_its_place(box: Box, role: str) -> None:
    answer = box.chat([user(text("a")), {"role": role, "content": [text("b"), RED]}, user(text("c"))])
    assert answer.assert_status(400).error is not None
    assert answer.error["param"] == "messages[1].content[1]"
    assert "text only" in answer.error["message"]


def test_a_part_that_is_a_placeholder_already_is_refused(seeing: Box) -> None:
    answer = seeing.chat([user({"type": "image"}, text("?"))]).assert_status(400)
    assert answer.error is not None
    assert answer.error["param"] == "messages[0].content[0].type"


def test_a_plain_completion_has_no_pictures(seeing: Box) -> None:
    body = {"prompt": "<|image|>", "max_tokens": 3}
    answer = seeing.post("/v1/completions", body)
    assert answer.status_code == 200
    assert "image_tokens" not in answer.json()["usage"]["prompt_tokens_details"]


class Template:
    """The scripted model, with a template that a test writes."""

    def __init__(self, template: str) -> None:
        self.template = template

    def box(self) -> Box:
        box = Box(model=READS)
        prompt = box.app.state.service._prompt
        other = type(prompt).__new__(type(prompt))
        assert box.platform.model is not None
        box.platform.model.template = self.template  # type: ignore[misc]
        other.__init__(box.platform.model)
        box.app.state.service._prompt = other
        return box


SHOWS = "{% for m in messages %}{% for p in m.content %}{{ '<|image|>' if p.type == 'image' else p.text }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (
            SHOWS.replace("'<|image|>'", "'<|image|><|image|>'") + "{% endfor %}",
            "for 2 images, and the request shows 1",
        ),
        (SHOWS.replace("'<|image|>'", "''") + "{% endfor %}", "for 0 images, and the request shows 1"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "for 0 images, and the request shows 1"),
        ("{% for m in messages %}{{ '<|user|>' + m.content }}{% endfor %}", "can't read the messages"),
    ],
)
def test_a_template_that_drops_or_doubles_a_picture_is_a_clear_refusal(template: str, words: str) -> None:
    with Template(template).box() as box:
        answer = box.chat([user(RED, text("?"))]).assert_status(400)
    assert answer.error is not None
    assert words in answer.error["message"]
    assert answer.error["param"] == "messages"


# ---------------------------------------------------------------------------------------------------------- the doors


# ---------------------------------------------------------------------------------------------------------- the doors


def test_the_responses_api_takes_pictures(seeing: Box) -> None:
    parts = [
        {"type": "input_text", "text": json.dumps({"script": [{"picture": 0}]})},
        {"type": "input_image", "image_url": RED["image_url"]["url"], "detail": "auto"},
    ]
    answer = seeing.post("/v1/responses", {"input": [{"role": "user", "content": parts}]})
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert said["output"][-1]["content"][0]["text"] == SAW_RED
    assert said["usage"]["input_tokens"] > 80


def test_the_messages_api_takes_pictures_of_the_user_and_of_a_tool(seeing: Box) -> None:
    def block(part: dict[str, Any]) -> dict[str, Any]:
        kind, data = part["image_url"]["url"].removeprefix("data:").split(";base64,")
        return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}

    blue = picture(64, 400, "#0000ff")
    told = json.dumps({"script": [{"picture": 0}, "; ", {"picture": 1}]})
    body = {
        "max_tokens": 200,
        "messages": [
            {"role": "user", "content": [block(RED), text(told)]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "shot", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [block(blue)]}]},
        ],
    }
    answer = seeing.post("/v1/messages", body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["content"] == [{"type": "text", "text": f"{SAW_RED}; 64x400, 80 rows, #0000ff"}]
    assert answer.json()["usage"]["input_tokens"] > 160


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        (
            "/v1/responses",
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA"}]}
                ]
            },
            "input[0].content[0]",
        ),
        (
            "/v1/messages",
            {
                "max_tokens": 9,
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "ftp://x"}}]}
                ],
            },
            "messages[0].content[0]",
        ),
    ],
)
def test_a_bad_picture_is_named_in_the_doors_own_words(seeing: Box, path: str, body: Any, where: str) -> None:
    answer = seeing.post(path, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(where)


def test_the_head_of_a_conversation_counts_every_row_of_its_picture(seeing: Box) -> None:
    asked: list[Any] = []
    submit = seeing.engine.submit
    seeing.engine.submit = lambda ask, sink: (asked.append(ask), submit(ask, sink))[1]  # type: ignore[method-assign]
    try:
        first = user(RED, text("What is it?"))
        seeing.chat([first, {"role": "assistant", "content": "Red."}, user(text("And this?"), RED)])
        seeing.chat([first])
    finally:
        seeing.engine.submit = submit  # type: ignore[method-assign]
    conversation, alone = asked
    assert alone.head is None
    assert 80 < conversation.head <= len(alone.prompt)
    assert conversation.prompt[: conversation.head] == alone.prompt[: conversation.head]
