"""What a tool changes is read off its declaration; an answer with two changes is asked back for their order."""

import pytest

from tandem.core.plugin import ActionKind, Tool
from tandem.plugins.rules._effects import Effect, effect, shell_parameter, verb_of
from tandem.plugins.rules.call_sequence import holds, tandem_rules
from tandem.testing.rules import Stand, request, written

(RULE,) = tandem_rules()


def tool(name: str, *names: str, description: str = "", required: tuple[str, ...] | None = None, **hints: bool) -> Tool:
    properties = {key: {"type": "string"} for key in names}
    needed = [*(names if required is None else required)]
    return Tool(name, description, {"type": "object", "properties": properties, "required": needed}, hints)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (tool("send_email", "to", "subject", "body"), Effect.SEND),
        (tool("slack", "channel", "text"), Effect.SEND),
        (tool("create_calendar_event", "title", "date", "time", "duration", "attendees"), Effect.SCHEDULE),
        (tool("set_reminder", "message", "datetime"), Effect.SCHEDULE),
        (tool("write", "content", "filePath"), Effect.WRITE),
        (tool("edit", "filePath", "oldString", "newString"), Effect.WRITE),
        (tool("str_replace_editor", "path", "new_str"), Effect.WRITE),
        (tool("create_issue", "title", "labels"), Effect.CREATE),
        (tool("mcp__github__create_issue", "title"), Effect.CREATE),
        (tool("linear_create_issue", "name"), Effect.CREATE),
        (tool("github.updateIssue", "id"), Effect.CREATE),
        (tool("deleteThread", "id"), Effect.DELETE),
        (tool("calendar-cancel-event", "id"), Effect.DELETE),
        (tool("tickets", "id", description="Deletes a ticket."), Effect.DELETE),
        (tool("anything", "x", destructiveHint=True), Effect.DELETE),
        (tool("create_report", "x", readOnlyHint=True), None),
        (tool("get_create_time", "to", "message"), None),
        (tool("search_calendar_events", "date", "title"), None),
        (tool("read_file", "path", "content"), None),
        (tool("bash", "command", "timeout", required=("command",)), None),
        (tool("run_command", "command"), None),
        (tool("glob", "pattern", "path"), None),
        (tool("grep", "pattern", "path", "include"), None),
        (tool("webfetch", "url", "format"), None),
        (tool("search_web", "query"), None),
        (tool("fetch_url", "url"), None),
        (tool("web_search", "query"), None),
        (tool("get_weather", "location", "date"), None),
        (tool("calculator", "expression"), None),
        (tool("search_files", "query"), None),
        (tool("get_contacts", "query"), None),
        (tool("translate_text", "text", "to"), None),
        (tool("get_stock_price", "ticker"), None),
        (tool("run_code", "code", "language"), None),
        (tool("x"), None),
        (Tool("odd", 5, {"properties": {"to": 1, "message": None}}), Effect.SEND),  # type: ignore[arg-type]
    ],
    ids=lambda value: value.name if isinstance(value, Tool) else None,
)
def test_the_declaration_says_what_a_tool_changes(declared, expected):
    assert effect(declared) is expected


@pytest.mark.parametrize(
    ("name", "verb"),
    [
        ("createIssue", "create"),
        ("HTTPGet", "get"),
        ("post", "post"),
        ("user_post_list", ""),
        ("a_b_c_delete", ""),
        ("mcp__set__list", "list"),
        ("", ""),
        ("__", ""),
    ],
)
def test_the_verb_that_a_name_opens_with(name, verb):
    assert verb_of(name) == verb


def test_a_shell_is_a_tool_that_needs_a_command():
    assert shell_parameter(tool("bash", "command", "timeout", required=("command",))) == "command"
    assert shell_parameter(tool("task", "prompt", "command", required=("prompt",))) is None
    assert shell_parameter(tool("run", "command", required=())) == "command"


MAIL, EVENT = tool("send_email", "to", "body"), tool("create_event", "title", "date")
READ, BASH = tool("get_contacts", "query"), tool("bash", "command")


def stand(*tools: Tool) -> Stand:
    return Stand(RULE, event=request(tools=tools or (MAIL, EVENT, READ, BASH)))


def found(where: Stand, *names: str, **fields) -> list:
    calls = [(name, {"n": place}) for place, name in enumerate(names)]
    actions = [where.check(written(where.request, *calls, index=i, **fields)) for i in range(len(calls))]
    return [(i, action) for i, action in enumerate(actions) if action is not None]


def test_the_second_change_of_an_answer_is_asked_back_once():
    where = stand()
    ((place, action),) = found(where, "get_contacts", "send_email", "create_event", "send_email")
    assert place == 2
    assert (action.kind, action.reason) == (ActionKind.REGENERATE_CALL, "mutations(3)")
    assert action.detail["fallback"] == "release"
    assert "send_email, create_event" in action.text


@pytest.mark.parametrize(
    "names",
    [
        ("get_contacts", "get_contacts"),
        ("get_contacts", "send_email"),
        ("bash", "bash"),
        ("bash", "send_email"),
        ("create_event",),
        ("unknown", "send_email"),
    ],
)
def test_reads_and_a_read_beside_one_change_pass(names):
    assert found(stand(), *names) == []


def test_the_answer_that_was_written_anew_is_judged_by_itself():
    where = stand()
    assert len(found(where, "send_email", "create_event")) == 1
    assert found(where, "send_email") == []
    assert len(found(where, "create_event", "create_event")) == 1
    assert len(found(where, "create_event", "create_event")) == 1


def test_equal_calls_are_told_apart_by_their_place():
    where = stand()
    calls = [("send_email", {}), ("create_event", {}), ("send_email", {}), ("create_event", {})]
    actions = [where.check(written(where.request, *calls, index=i)) for i in range(4)]
    assert [action is not None for action in actions] == [False, True, False, False]


def test_an_answer_without_its_end_token_goes_out_as_it_is():
    ((_, action),) = found(stand(), "send_email", "create_event", final=True)
    assert (action.kind, action.reason) == (ActionKind.PASS, "ended(mutations=2)")


def test_calls_are_held_only_where_a_tool_changes_something():
    where = stand()
    assert holds(where.request, where.task)
    assert not holds(request(tools=[READ, BASH]), where.task)
