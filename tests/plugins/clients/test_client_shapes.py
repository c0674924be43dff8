"""Each shape against requests as its client sends them, retold short; and all of them in the manifest's order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tandem.api.clients import Clients
from tandem.config import MANIFESTS
from tandem.core.engine.options import SECTIONS
from tandem.core.kernel import Registry, load_manifest
from tandem.core.plugin import ClientMatch
from tandem.testing.box import Box

ORDER = ["opencode", "open_webui", "hermes", "openai_sdk", "curl", "plain"]
Json = dict[str, Any]


REGISTRY = Registry()


def shapes(**options: Json) -> Clients:
    """All shapes in the order of the manifests, with these options; a fault is an error."""
    built = []
    for name in ORDER:
        part = REGISTRY.load("clients", name)
        defaults = {key: schema["default"] for key, schema in part.options.items()}
        built.append((name, part.build({**defaults, **options.get(name, {})})))

    def fault(name: str) -> None:
        raise AssertionError(f"{name} raised")

    return Clients(built, fault)


ALL = shapes()


def recognised(headers: Mapping[str, str], body: Json) -> ClientMatch:
    return ALL.recognise({name.lower(): value for name, value in headers.items()}, body)


def system(text: str) -> Json:
    return {"role": "system", "content": text}


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def tools(*names: str) -> list[Json]:
    return [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in names]


# ---------------------------------------------------------------------------------------------------------- opencode

OPENCODE = {
    "User-Agent": "opencode/1.18.33 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14",
    "x-session-affinity": "ses_4b1",
    "x-session-id": "ses_4b1",
    "Authorization": "Bearer none",
}
OPENCODE_TURN: Json = {
    "model": "tandem",
    "max_tokens": 32000,
    "messages": [
        system("You are opencode, an interactive CLI tool that helps users with software engineering tasks. Use the "),
        user("Fix the test."),
    ],
    "tools": tools("bash", "edit", "glob", "grep", "read", "skill", "task", "todowrite", "write"),
    "tool_choice": "auto",
    "stream": True,
    "stream_options": {"include_usage": True},
}
TITLE = system(
    "You are a title generator. You output ONLY a thread title. Nothing else.\n\n<task>\nGenerate a brief title"
)
TITLE_REQUEST: Json = {
    "model": "tandem",
    "max_tokens": 32000,
    "messages": [TITLE, user("Generate a title for this conversation:\n"), user("Fix the test.")],
    "stream": True,
}


def opencode(side: str | None = None, session: str | None = "ses_4b1") -> ClientMatch:
    words = frozenset({"stop", "length", "tool_calls"})
    return ClientMatch("opencode", session, "reasoning_content", words, side)


def one_message(text: str) -> Json:
    return {"messages": [user(text)], "max_tokens": 32000, "stream": True}


def with_system(text: str) -> Json:
    return {"messages": [system(text), user("Here is the conversation so far:\n\n<conversation>")], "stream": True}


@pytest.mark.parametrize(
    ("headers", "session"),
    [
        (OPENCODE, "ses_4b1"),
        ({**OPENCODE, "x-opencode-session-id": "ses_4b1"}, "ses_4b1"),
        ({**OPENCODE, "x-parent-session-id": "ses_parent"}, "ses_4b1"),
        ({"User-Agent": "opencode/0.9", "x-opencode-session": "ses_a", "x-opencode-request": "r1"}, "ses_a"),
        ({"User-Agent": "ai-sdk/openai-compatible/1.0", "x-session-affinity": "ses_b"}, "ses_b"),
        ({"User-Agent": "proxy/1", "x-opencode-client": "cli"}, None),
        ({"User-Agent": "proxy/1"}, None),
    ],
)
def test_an_opencode_turn(headers: Json, session: str | None) -> None:
    assert recognised(headers, OPENCODE_TURN) == opencode(session=session)


@pytest.mark.parametrize(
    ("body", "side"),
    [
        (TITLE_REQUEST, "title"),
        (
            with_system("Summarize what was done in this conversation. Write like a pull request description.\n"),
            "summary",
        ),
        (
            with_system(
                "You are a context summarization agent. You are given a conversation between a user and an agent. "
            ),
            "compaction",
        ),
        (one_message("the history " * 200), "compaction"),
        (
            with_system("You are a helpful AI assistant tasked with summarizing conversations.\n\nWhen asked"),
            "compaction",
        ),
    ],
)
def test_an_opencode_side_request(body: Json, side: str) -> None:
    assert recognised(OPENCODE, body) == opencode(side)
    # With tools on offer it is a turn, whatever it says.
    assert recognised(OPENCODE, {**body, "tools": tools("bash")}) == opencode()


def test_an_opencode_side_request_is_known_without_its_headers_where_its_words_are_its_own() -> None:
    assert recognised({}, TITLE_REQUEST) == opencode("title", None)
    spread = {**TITLE_REQUEST, "messages": [system("  You are a title\n generator.  You output\tONLY a thread title.")]}
    assert recognised({}, spread) == opencode("title", None)
    others = with_system("You are a helpful AI assistant tasked with summarizing conversations.")
    assert recognised({}, others).kind == "plain"
    # A pasted document is a message like any other, from whomever else it comes.
    assert recognised({}, one_message("a document " * 400)) == ClientMatch("plain", None, "reasoning_content")


def test_a_short_message_without_a_system_prompt_is_no_compaction() -> None:
    assert recognised(OPENCODE, one_message("hello")) == opencode()


# -------------------------------------------------------------------------------------------------------- Open WebUI

AIOHTTP = {"User-Agent": "Python/3.11 aiohttp/3.14.5", "Accept-Encoding": "gzip, deflate, br"}
FORWARDED = {**AIOHTTP, "X-OpenWebUI-User-Id": "u1", "X-OpenWebUI-User-Role": "admin", "X-OpenWebUI-Chat-Id": "c-77"}
WEB_TOOLS = tools("get_current_timestamp", "calculate_timestamp", "ask_user", "search_chats", "view_chat", "write_note")
WEB_TURN: Json = {"stream": True, "model": "tandem", "messages": [user("Hi")], "tools": WEB_TOOLS}
HISTORY = "\n### Chat History:\n<chat_history>\nUSER: Hi\nASSISTANT: \n</chat_history>"
TASKS = {
    "Generate a concise title summarizing the chat history.": "title",
    "Generate a concise, 3-5 word title with an emoji summarizing the chat history.": "title",
    "Create a concise, 3-5 word title for the chat history.": "title",
    "Generate 1-3 broad tags categorizing the main themes of the chat history.": "tags",
    "Generate 1-3 tags for the chat history.": "tags",
    "Predict 3-5 useful messages this user might naturally send next.": "follow_ups",
    "Suggest 3-5 relevant follow-up questions or prompts that the user might naturally ask next": "follow_ups",
    "Summarize the conversation history that will be compacted out of the context.": "compaction",
}


def web(session: str | None = None, side: str | None = None) -> ClientMatch:
    return ClientMatch("open_webui", session, "reasoning_content", None, side)


def task(text: str) -> Json:
    return {"stream": False, "model": "tandem", "messages": [user(f"### Task:\n{text}{HISTORY}")], "max_tokens": 1000}


def test_an_open_webui_turn_by_its_headers() -> None:
    assert recognised(FORWARDED, {"stream": True, "messages": [user("Hi")]}) == web("c-77")
    call_of_its_api = {name: value for name, value in FORWARDED.items() if name != "X-OpenWebUI-Chat-Id"}
    assert recognised(call_of_its_api, {"messages": [user("Hi")]}) == web()
    assert recognised({"X-OpenWebUI-Chat-Id": "c-1"}, {"messages": [user("Hi")]}) == web("c-1")


def test_an_open_webui_turn_by_its_tools() -> None:
    assert recognised(AIOHTTP, WEB_TURN) == web()
    assert recognised({"User-Agent": "proxy/1"}, WEB_TURN) == web()
    few = {**WEB_TURN, "tools": tools("search_chats", "view_chat", "my_own")}
    assert recognised(AIOHTTP, few) == web()
    assert recognised({"User-Agent": "proxy/1"}, few).kind == "plain"


def test_an_open_webui_chat_after_its_compaction() -> None:
    body = {"stream": True, "messages": [system("[CONVERSATION SUMMARY]\nThey met."), user("Go on.")]}
    assert recognised(AIOHTTP, body) == web()


def test_a_bare_aiohttp_program_is_nobody_in_particular() -> None:
    assert recognised(AIOHTTP, {"stream": True, "messages": [user("Hi")]}).kind == "plain"


@pytest.mark.parametrize("asked", TASKS)
def test_an_open_webui_side_request(asked: str) -> None:
    assert recognised(AIOHTTP, task(asked)) == web(None, TASKS[asked])
    assert recognised(FORWARDED, task(asked)) == web("c-77", TASKS[asked])
    filtered = {**task(asked), "messages": [system("It is Monday."), *task(asked)["messages"]]}
    assert recognised(AIOHTTP, filtered) == web(None, TASKS[asked])


@pytest.mark.parametrize("asked", TASKS)
def test_a_person_who_writes_such_a_task_has_a_turn(asked: str) -> None:
    streamed = {**task(asked), "stream": True}
    assert recognised(FORWARDED, streamed) == web("c-77")
    assert recognised(FORWARDED, {**task(asked), "tools": WEB_TOOLS}) == web("c-77")
    later = {
        "stream": False,
        "messages": [user("Hi"), {"role": "assistant", "content": "Hi!"}, *task(asked)["messages"]],
    }
    assert recognised(FORWARDED, later) == web("c-77")


def test_a_chat_about_documents_is_a_turn_although_it_begins_like_a_task() -> None:
    asked = "Respond to the user query using the provided context, incorporating inline citations."
    assert recognised(AIOHTTP, task(asked)) == web()


# ------------------------------------------------------------------------------------------------------------ Hermes

SDK = {
    "User-Agent": "OpenAI/Python 2.24.0",
    "X-Stainless-Lang": "python",
    "x-stainless-retry-count": "0",
    "x-stainless-read-timeout": "1800.0",
}
HERMES_PROMPT = system(
    "You are Hermes Agent, an intelligent AI assistant created by Nous Research. You are helpful, knowledgeable"
)
HERMES_TOOLS = tools(
    "browser_back", "clarify", "delegate_task", "read_file", "session_search", "skill_view", "terminal"
)


def hermes(side: str | None = None) -> ClientMatch:
    return ClientMatch("hermes", None, "tags", None, side)


def test_a_hermes_turn_by_its_prompt_or_its_tools() -> None:
    turn: Json = {"messages": [HERMES_PROMPT, user("Hi")], "max_tokens": 65536, "stream": True, "tools": HERMES_TOOLS}
    assert recognised(SDK, turn) == hermes()
    assert recognised(SDK, {**turn, "tools": []}) == hermes()
    assert recognised(SDK, {**turn, "messages": [system("You are a pirate."), user("Hi")]}) == hermes()
    assert recognised({"User-Agent": "proxy/1"}, turn) == hermes()
    other = {**turn, "messages": [system("You are a pirate."), user("Hi")], "tools": tools("terminal", "read_file")}
    assert recognised(SDK, other).kind == "openai_sdk"


@pytest.mark.parametrize(
    ("messages", "side"),
    [
        (
            [system("Generate a short, descriptive title (3-7 words) for a conversation that starts with"), user("x")],
            "title",
        ),
        (
            [
                system(
                    "You name chat sessions. Given the user's opening message, write a title that lets them find this "
                    "conversation again in a list."
                ),
                user("x"),
            ],
            "title",
        ),
        (
            [user("You are a summarization agent creating a context checkpoint. Treat the\n\nTURNS TO SUMMARIZE:\n")],
            "compaction",
        ),
    ],
)
def test_a_hermes_side_request(messages: list[Json], side: str) -> None:
    assert recognised(SDK, {"messages": messages, "model": "tandem"}) == hermes(side)
    assert recognised(SDK, {"messages": messages, "tools": tools("mine")}).kind == "openai_sdk"


# ------------------------------------------------------------------------------------------ SDKs, curl, everybody else


@pytest.mark.parametrize(
    ("agent", "kind"),
    [
        ("OpenAI/Python 2.24.0", "openai_sdk"),
        ("AsyncOpenAI/Python 2.24.0", "openai_sdk"),
        ("AzureOpenAI/Python 1.2", "openai_sdk"),
        ("OpenAI/JS 6.49.0", "openai_sdk"),
        ("OpenAI/Go 3.1", "openai_sdk"),
        ("ai-sdk/openai/2.0.1", "plain"),
        ("curl/7.88.1", "curl"),
        ("curl/8.5.0", "curl"),
        ("my-curl/1.0", "plain"),
        ("python-requests/2.33.0", "plain"),
        ("", "plain"),
    ],
)
def test_libraries_and_tools_by_their_user_agent(agent: str, kind: str) -> None:
    match = recognised({"User-Agent": agent}, {"messages": [user("Hi")]})
    assert match == ClientMatch(kind, None, "reasoning_content")


def test_an_sdk_under_another_name_is_known_by_its_other_header() -> None:
    assert recognised({"User-Agent": "my-app/2", "x-stainless-lang": "js"}, {}).kind == "openai_sdk"


# ---------------------------------------------------------------------------------------------------------- sessions


@pytest.mark.parametrize("headers", [{}, {"User-Agent": "curl/8"}, SDK], ids=["plain", "curl", "sdk"])
@pytest.mark.parametrize(
    ("sent", "fields", "session"),
    [
        ({"X-Conversation-Id": "h1"}, {"conversation_id": "b1"}, "h1"),
        ({"X-Session-Id": "h2"}, {"session_id": "b2"}, "h2"),
        ({}, {"conversation_id": "b1", "session_id": "b2", "user": "u"}, "b1"),
        ({}, {"session_id": "b2", "user": "u"}, "b2"),
        ({}, {"user": "u"}, "u"),
        ({}, {"conversation_id": 17}, "17"),
        ({"X-Conversation-Id": "  "}, {"conversation_id": None, "session_id": ["x"], "user": True}, None),
        ({}, {"conversation_id": "x" * 257, "session_id": "x" * 256}, "x" * 256),
        ({}, {"session_id": "two\nlines"}, None),
        ({}, {"session_id": 10**30}, None),
    ],
)
def test_any_client_may_name_its_conversation(headers: Json, sent: Json, fields: Json, session: str | None) -> None:
    assert recognised({**headers, **sent}, {"messages": [user("Hi")], **fields}).session == session


# ------------------------------------------------------------------------------------------------------ odd requests

WORDS = st.sampled_from(
    [
        "system",
        "user",
        "### Task:\nGenerate a concise title",
        "You are opencode",
        "terminal",
        "skill_view",
        "session_search",
        "view_chat",
        "search_chats",
        "ses_1",
    ]
)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["role", "content", "text", "type", "function", "name"]), inner, max_size=4)
    ),
    max_leaves=20,
)
BODIES = st.dictionaries(
    st.sampled_from(["messages", "tools", "stream", "user", "session_id", "conversation_id", "prompt"])
    | st.text(max_size=5),
    ANY,
)
HEADERS = st.dictionaries(
    st.sampled_from(["user-agent", "x-session-id", "x-openwebui-chat-id", "x-opencode-session", "x-conversation-id"]),
    st.text(st.characters(max_codepoint=255), max_size=20) | WORDS,
)


@given(HEADERS, BODIES)
def test_no_request_however_odd_makes_a_shape_raise(headers: dict[str, str], body: Json) -> None:
    match = ALL.recognise(headers, body)
    assert match.kind in ORDER
    assert match.session is None or (match.session == match.session.strip() != "" and len(match.session) <= 256)


@given(ANY)
def test_a_known_client_stays_known_whatever_its_messages_are(value: Any) -> None:
    for field in ("messages", "tools", "stream"):
        assert recognised(OPENCODE, {**OPENCODE_TURN, field: value}).kind == "opencode"
        assert recognised(FORWARDED, {**WEB_TURN, field: value}).kind == "open_webui"


# ------------------------------------------------------------------------------------------------- in the whole house


@pytest.mark.parametrize("name", ["default", "scripted"])
def test_the_shipped_manifests_ask_the_shapes_in_the_order_that_works(name: str) -> None:
    sections = SECTIONS
    manifest = load_manifest(MANIFESTS / f"{name}.yaml", overrides=["model={plugin: scripted}"], sections=sections)
    assert list(manifest.enabled("clients")) == ORDER


def test_the_answer_names_the_client() -> None:
    with Box(clients=ORDER) as box:
        for headers, kind in ((OPENCODE, "opencode"), (FORWARDED, "open_webui"), ({"User-Agent": "curl/8"}, "curl")):
            assert box.chat("Hi", headers=headers).headers["x-tandem-client"] == kind
        hermes_turn = box.chat([HERMES_PROMPT, user("Hi")], headers=SDK)
        assert hermes_turn.headers["x-tandem-client"] == "hermes"
        assert 'client="opencode"' in box.get("/metrics").text


def test_a_manifest_may_choose_another_reasoning_format_for_one_client() -> None:
    chosen = shapes(hermes={"reasoning_format": "reasoning_content"}, curl={"reasoning_format": "tags"})
    body = {"messages": [HERMES_PROMPT, user("Hi")]}
    assert chosen.recognise({}, body).reasoning_format == "reasoning_content"
    assert chosen.recognise({"user-agent": "curl/8"}, {}).reasoning_format == "tags"
    assert chosen.recognise({}, {}).reasoning_format == "reasoning_content"
