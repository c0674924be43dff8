"""Which requests count as a regenerate, and what they get."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tandem.api.record import Record
from tandem.api.regenerate import KEPT, KEPT_S, SESSIONS, Regenerations
from tandem.api.request import ChatRequest, Defaults, read_chat, read_completion
from tandem.core.engine.options import SERVER_OPTIONS
from tandem.core.engine.request import Sampling
from tandem.core.plugin import ClientMatch

OPTIONS = {name: schema["default"] for name, schema in SERVER_OPTIONS.items()}
GREEDY = Sampling(presence_penalty=0.5, logprobs=2)
SAMPLED = replace(GREEDY, temperature=0.7, top_p=0.95, top_k=20)
WEB = ClientMatch("open_webui")
Messages = list[dict[str, Any]]


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def model(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def call(arguments: str, id: str = "call_1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "read", "arguments": arguments}}


def result(text: str, id: str = "call_1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text}


def is_one(answered: list[Messages], sent: Messages, session: str | None = "s") -> bool:
    """Whether `sent` counts after those conversations of the same session were answered."""
    regenerations = Regenerations(OPTIONS)
    for messages in answered:
        regenerations.answered(session, messages)
    sampling = regenerations.sampling_for(session, sent, GREEDY, False)
    assert sampling in (GREEDY, SAMPLED)
    return sampling == SAMPLED


FIRST = [system("Be brief. It is 10:01."), user("Name a river.")]
SECOND = [*FIRST, model("The Elbe."), user("Another.")]
THIRD = [*SECOND, model("The Rhine."), user("And a third.")]
LOOP = [user("What is in a?"), model("", tool_calls=[call('{"path": "a"}')]), result("text")]

SHAPES = {
    "the last answer again": ([FIRST], FIRST, True),
    "the last of several answers again": ([FIRST, SECOND, THIRD], THIRD, True),
    "an earlier answer again": ([FIRST, SECOND, THIRD], FIRST, True),
    "an answer in the middle again": ([FIRST, SECOND, THIRD], SECOND, True),
    "with the system prompt rendered anew": ([FIRST], [system("Be brief. It is 10:07."), user("Name a river.")], True),
    "with another system prompt, or none": ([FIRST], [user("Name a river.")], True),
    "with a developer message in its place": ([FIRST], [{**FIRST[0], "role": "developer"}, FIRST[1]], True),
    "with the reasoning left out": (
        [[user("a"), model("b", reasoning_content="hm"), user("c")]],
        [user("a"), model("b"), user("c")],
        True,
    ),
    "with other ids of the calls": (
        [[*LOOP, model("It says text."), user("And b?")]],
        [
            LOOP[0],
            model("", tool_calls=[call('{"path": "a"}', "call_9")]),
            result("text", "call_9"),
            model("It says text."),
            user("And b?"),
        ],
        True,
    ),
    "the first message of a session": ([], FIRST, False),
    "the next turn": ([FIRST], SECOND, False),
    "an edited message": ([FIRST, SECOND], [*FIRST, model("The Elbe."), user("Another one.")], False),
    "an edited first message": ([FIRST], [FIRST[0], user("Name a lake.")], False),
    "an edited answer before the message": ([SECOND], [*FIRST, model("The Oder."), user("Another.")], False),
    "an answer whose call was another": (
        [[*LOOP, model("x"), user("y")]],
        [LOOP[0], model("", tool_calls=[call('{"path": "b"}')]), *LOOP[2:], model("x"), user("y")],
        False,
    ),
    "a suggestion behind the old answer": ([FIRST], [*FIRST, model("The Elbe."), user("Make it longer.")], False),
    "the same suggestion a second time": (
        [FIRST, [*FIRST, model("The Elbe."), user("Make it longer.")]],
        [*FIRST, model("The Elbe."), user("Make it longer.")],
        True,
    ),
    "going on with an answer": ([FIRST, [*FIRST, model("The E")]], [*FIRST, model("The E")], False),
    "a tool loop that tries again": ([LOOP], LOOP, False),
    "words that moved between two messages": (
        [[user("ab"), model("c"), user("d")]],
        [user("a"), model("bc"), user("d")],
        False,
    ),
    "text as parts, as it was": (
        [[user([{"type": "text", "text": "a"}])]],
        [user([{"type": "text", "text": "a"}])],
        True,
    ),
    "another picture": (
        [[user([{"type": "image_url", "image_url": {"url": "data:,1"}}])]],
        [user([{"type": "image_url", "image_url": {"url": "data:,2"}}])],
        False,
    ),
    "nothing but a system prompt": ([[system("x")]], [system("x")], False),
    "no message at all": ([[]], [], False),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_which_shapes_count(shape: str) -> None:
    answered, sent, counts = SHAPES[shape]
    assert is_one(answered, sent) is counts
    # Without the client's own id the session is found by its first message.
    assert is_one(answered, sent, session=None) is counts


def test_sessions_are_apart() -> None:
    regenerations = Regenerations(OPTIONS)
    regenerations.answered("one", FIRST)
    for other in ("two", "head:", None):
        assert regenerations.sampling_for(other, FIRST, GREEDY, False) is GREEDY
    assert regenerations.sampling_for("one", FIRST, GREEDY, False) == SAMPLED


def test_only_a_greedy_request_that_asked_for_nothing_is_changed() -> None:
    regenerations = Regenerations(OPTIONS)
    regenerations.answered("s", FIRST)
    warm = replace(GREEDY, temperature=0.2)
    assert regenerations.sampling_for("s", FIRST, GREEDY, True) is GREEDY
    assert regenerations.sampling_for("s", FIRST, warm, False) is warm
    assert regenerations.told()["seen"] == 2
    assert regenerations.told()["sampled"] == 0


def test_the_numbers_are_the_options_and_the_rest_stays() -> None:
    numbers = {"regenerate_temperature": 1.1, "regenerate_top_p": 0.5, "regenerate_top_k": 7}
    regenerations = Regenerations({**OPTIONS, **numbers})
    regenerations.answered("s", FIRST)
    asked = replace(GREEDY, seed=3)
    assert regenerations.sampling_for("s", FIRST, asked, False) == replace(
        GREEDY, temperature=1.1, top_p=0.5, top_k=7, seed=None
    )


def test_off_is_off_and_keeps_nothing() -> None:
    regenerations = Regenerations({**OPTIONS, "regenerate": "off"})
    regenerations.answered("s", FIRST)
    assert regenerations.sampling_for("s", FIRST, GREEDY, False, wish=True) is GREEDY
    told = regenerations.told()
    assert (told["mode"], told["seen"], told["sessions"]) == ("off", 0, 0)


# ------------------------------------------------------------------------------------------------------- the memory


def turns(count: int) -> list[Messages]:
    """That many conversations, each the one before and a turn more."""
    grown: list[Messages] = [[user("0")]]
    for number in range(1, count):
        grown.append([*grown[-1], model(f"answer {number}"), user(str(number))])
    return grown


def test_a_session_keeps_its_last_conversations() -> None:
    regenerations = Regenerations(OPTIONS)
    conversations = turns(KEPT + 2)
    for messages in conversations[:-1]:
        regenerations.answered("s", messages)
    # Answered again, the second one is young.
    regenerations.answered("s", conversations[1])
    regenerations.answered("s", conversations[-1])
    known = [regenerations.sampling_for("s", messages, GREEDY, False) is not GREEDY for messages in conversations]
    assert known == [False, True, False] + [True] * (KEPT - 1)


def test_a_day_later_it_is_forgotten() -> None:
    clock = [1000.0]
    regenerations = Regenerations(OPTIONS, now=lambda: clock[0])
    first, second = turns(2)
    regenerations.answered("s", first)
    clock[0] += KEPT_S - 1
    regenerations.answered("s", second)
    assert regenerations.sampling_for("s", first, GREEDY, False) == SAMPLED
    clock[0] += 2
    assert regenerations.sampling_for("s", first, GREEDY, False) is GREEDY
    assert regenerations.sampling_for("s", second, GREEDY, False) == SAMPLED


def test_the_memory_is_bounded_and_the_oldest_session_goes_first() -> None:
    regenerations = Regenerations(OPTIONS)
    for number in range(SESSIONS):
        regenerations.answered(f"s{number}", FIRST)
    regenerations.answered("s0", SECOND)
    regenerations.answered("one more", FIRST)
    assert regenerations.told()["sessions"] == SESSIONS
    assert regenerations.sampling_for("s0", FIRST, GREEDY, False) == SAMPLED
    assert regenerations.sampling_for("s1", FIRST, GREEDY, False) is GREEDY


MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.text(max_size=3)}
)


@given(st.lists(MESSAGE, max_size=5), st.lists(MESSAGE, max_size=5))
def test_two_conversations_are_one_only_if_what_was_said_is_equal(one: Messages, other: Messages) -> None:
    def spoken(messages: Messages) -> Messages:
        return [message for message in messages if message["role"] != "system"]

    said = spoken(one)
    ends_right = bool(said) and said[-1]["role"] == "user"
    assert is_one([one], other) is (ends_right and said == spoken(other))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(JSON, JSON)
def test_no_message_however_odd_breaks_it(content: Any, calls: Any) -> None:
    messages = [{"role": "assistant", "content": content, "tool_calls": calls}, user(content)]
    assert is_one([messages], messages)


# ------------------------------------------------------------------------------------------------ the whole request


def ask(body: dict[str, Any]) -> ChatRequest:
    return read_chat(body, 1000, Defaults(temperature=0.0, top_p=1.0, top_k=0, max_tokens=10))


def record(reason: str = "stop", *, spoke: bool = True) -> Record:
    made = Record("-", "chat", "open_webui", None, stream=True, reason=reason)
    if spoke:
        made.spoke()
    return made


HEADERLESS: dict[str, str] = {}
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Name a river."}]}


def temperature_of_a_resend(
    client: ClientMatch = WEB,
    *,
    ended: Record | None = None,
    headers: dict[str, str] | None = None,
    fields: dict[str, Any] | None = None,
) -> float:
    """Send `BODY`, let it end, and send it again with these fields and headers."""
    regenerations = Regenerations(OPTIONS)
    first = regenerations.read(ask(BODY), BODY, client, HEADERLESS)
    assert first.sampling.temperature == 0
    regenerations.ended(first, client, ended or record())
    body = {**BODY, **(fields or {})}
    again = regenerations.read(ask(body), body, client, headers or HEADERLESS)
    assert again.regenerated is (again.sampling != ask(body).sampling)
    assert replace(again, sampling=first.sampling, regenerated=False) == replace(ask(body), sampling=first.sampling)
    return again.sampling.temperature


@pytest.mark.parametrize(
    ("reason", "spoke", "counts"),
    [
        ("stop", True, True),
        ("length", True, True),
        ("tool_calls", True, True),
        ("timeout", True, True),
        ("stop", False, True),  # an answer that was not streamed
        ("abandoned", True, True),
        ("abandoned", False, False),
        ("error", True, False),
        ("refused", False, False),
    ],
)
def test_only_an_answered_request_can_be_regenerated(reason: str, spoke: bool, counts: bool) -> None:
    assert (temperature_of_a_resend(ended=record(reason, spoke=spoke)) > 0) is counts


@pytest.mark.parametrize("field", ["temperature", "top_p", "top_k", "min_p", "seed"])
def test_a_client_that_sets_its_sampling_gets_what_it_sent(field: str) -> None:
    assert temperature_of_a_resend(fields={field: 0 if field != "top_p" else 1}) == 0
    assert temperature_of_a_resend(fields={field: None}) == 0.7


@pytest.mark.parametrize(
    ("client", "counts"),
    [
        (ClientMatch("open_webui"), True),
        (ClientMatch("open_webui", session="c1"), True),
        (ClientMatch("opencode", session="ses_1"), True),
        (ClientMatch("somebodys_chat"), True),
        (ClientMatch("openai_sdk", session="c1"), True),
        (ClientMatch("openai_sdk"), False),
        (ClientMatch("curl"), False),
        (ClientMatch("plain"), False),
        (ClientMatch("host"), False),
        (ClientMatch("open_webui", session="c1", side="title"), False),
    ],
)
def test_a_program_that_asks_twice_gets_the_same_answer_twice(client: ClientMatch, counts: bool) -> None:
    assert (temperature_of_a_resend(client) > 0) is counts


@pytest.mark.parametrize(("value", "counts"), [("1", True), ("0", False), ("maybe", True), ("", True)])
def test_the_header_overrides_what_the_conversation_tells(value: str, counts: bool) -> None:
    header = {"x-tandem-regenerate": value}
    assert (temperature_of_a_resend(headers=header) > 0) is counts
    assert (temperature_of_a_resend(ClientMatch("curl"), headers=header) > 0) is (value == "1")


def test_the_header_makes_a_first_request_one() -> None:
    regenerations = Regenerations(OPTIONS)
    fresh = regenerations.read(ask(BODY), BODY, ClientMatch("curl"), {"x-tandem-regenerate": "1"})
    assert fresh.sampling == replace(Sampling(), temperature=0.7, top_p=0.95, top_k=20)


def test_a_plain_completion_is_left_alone() -> None:
    regenerations = Regenerations(OPTIONS)
    body = {"prompt": "abc"}
    plain = read_completion(body, 1000, Defaults(temperature=0.0, top_p=1.0, top_k=0, max_tokens=10))
    assert regenerations.read(plain, body, WEB, {"x-tandem-regenerate": "1"}) is plain
    regenerations.ended(plain, WEB, record())
    assert regenerations.told()["sessions"] == 0


def test_the_log_says_so_and_holds_no_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="tandem.api"):
        assert temperature_of_a_resend(ClientMatch("open_webui", session="secret-id")) == 0.7
    assert "temperature=0.7 top_p=0.95 top_k=20" in caplog.text
    assert "river" not in caplog.text
    assert "secret-id" not in caplog.text
