"""A call stays inside the project, keeps off what is declared read-only, and edits no file unseen."""

import re

import pytest
from hypothesis import given, strategies as st

from tandem.core.plugin import Action, ActionKind, Tool
from tandem.plugins.rules.project import REMEMBERED, holds, matches, tandem_rules
from tandem.testing.rules import Stand, call, request, written

(RULE,) = tandem_rules()
SYSTEM = "You help.\n<env>\n  Working directory: /home/u/app\n</env>\n"
RULES = SYSTEM + "Rules of this project:\n<!-- read-only-files: migrations/**, *.lock, docs/api.md -->\n"


def tool(name: str, *required: str) -> Tool:
    properties = {key: {"type": "string"} for key in required}
    return Tool(name, "", {"type": "object", "properties": properties, "required": [*required]})


WRITE, BASH = tool("write", "content", "filePath"), tool("bash", "command")
EDIT, READ = tool("edit", "filePath", "oldString", "newString"), tool("read", "filePath")
GREP, GLOB = tool("grep", "pattern"), tool("glob", "pattern")
TOOLS = (WRITE, BASH, EDIT, READ, GREP, GLOB)


def stand(*messages: dict, system: str = SYSTEM, text: str = "Fix the bug.", **params) -> Stand:
    told = [{"role": "system", "content": system}, {"role": "user", "content": text}, *messages]
    where = Stand(RULE, **params)
    assert where.check(request(told, tools=TOOLS)) is None
    return where


def judge(where: Stand, name: str, **arguments: object) -> str | None:
    action = where.check(written(where.request, (name, arguments)))
    if action is None:
        return None
    assert isinstance(action, Action)
    assert action.kind is ActionKind.REGENERATE_CALL
    return action.reason


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/home/u/app/a.py", None),
        ("a.py", None),
        ("./x/../a.py", None),
        ("/home/u/app/../app/a.py", None),
        ("/tmp/a.py", None),
        ("/home/u/ap/a.py", "outside"),
        ("/home/u/app2/a.py", "outside"),
        ("../a.py", "outside"),
        ("x/../../a.py", "outside"),
        ("~/a.py", "outside"),
        ("~/app/a.py", None),
        ("/app/a.py", "outside"),
    ],
)
def test_a_write_outside_the_project_is_stopped(path, reason):
    assert judge(stand(), "write", filePath=path, content="x") == reason


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("echo x > a.txt", None),
        ("echo x > ../a.txt", "outside"),
        ("cd .. && touch a", "outside"),
        ("cd sub && touch ../a", None),
        ("cp a.py /srv/b.py", "outside"),
        ("cp /srv/b.py .", None),
        ("cat /srv/b.py", None),
        ("tee -a /srv/x < a", "outside"),
        ("rm ../a", "outside"),
        ("sed -i s/a/b/ /srv/x", "outside"),
        ("echo '> /srv/x'", None),
        ("make > /dev/null 2>&1", None),
        ("touch $DIR/a", None),
    ],
)
def test_what_a_shell_writes_is_looked_at(command, reason):
    assert judge(stand(), "bash", command=command) == reason


def test_without_a_stated_project_only_a_way_out_is_certain():
    assert judge(stand(system=""), "write", filePath="/srv/a", content="x") is None
    assert judge(stand(system=""), "write", filePath="../a", content="x") == "outside"


def test_what_the_user_names_passes():
    where = stand(text="Write the report to /srv/report.md, not to /srv/old.md.")
    assert judge(where, "write", filePath="/srv/report.md", content="x") is None
    assert judge(where, "write", filePath="/srv/old.md", content="x") == "outside"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("migrations/2024/a.sql", "read_only"),
        ("/home/u/app/poetry.lock", "read_only"),
        ("sub/yarn.lock", "read_only"),
        ("docs/api.md", "read_only"),
        ("docs/api2.md", None),
        ("x/docs/api.md", None),
        ("migrations2/a", None),
    ],
)
def test_what_the_project_declares_read_only_is_left_alone(path, reason):
    assert judge(stand(system=RULES), "write", filePath=path, content="x") == reason
    assert judge(stand(system=RULES), "bash", command=f"echo x >> {path}") == reason
    assert judge(stand(), "write", filePath=path, content="x") is None


@given(st.text("ab*/", min_size=1, max_size=6), st.text("ab/", min_size=1, max_size=6).map(lambda t: t.strip("/")))
def test_a_pattern_matches_as_its_naive_twin(pattern, path):
    pattern = re.sub(r"\*+", "*", re.sub(r"/+", "/", pattern)).rstrip("/")
    path = re.sub(r"/+", "/", path)
    if not pattern.strip("/") or not path:
        return
    prefixes = ["/".join(path.split("/")[: n + 1]) for n in range(path.count("/") + 1)]
    suffixes = ["/".join(path.split("/")[n:]) for n in range(path.count("/") + 1)]
    tried = prefixes if "/" in pattern else [p for s in suffixes for p in (s, *[s.split("/")[0]])]
    wanted = re.compile("".join("[^/]*" if char == "*" else re.escape(char) for char in pattern.lstrip("/")))
    assert matches(path, pattern) == any(wanted.fullmatch(one) for one in tried)


EDITED = {"filePath": "/home/u/app/src/main.py", "oldString": "a", "newString": "b"}


@pytest.mark.parametrize(
    "messages",
    [
        call("read", {"filePath": "/home/u/app/src/main.py"}, "1: a"),
        call("write", {"filePath": "src/main.py", "content": "a"}, "ok"),
        call("bash", {"command": "cat src/main.py"}, "a"),
        call("bash", {"command": "git diff"}, "+++ b/src/main.py\n+a"),
        call("grep", {"pattern": "a"}, "src/main.py:1: a"),
        [{"role": "assistant", "content": "Next is main.py."}],
        [{"role": "user", "content": "Here is main.py:\na"}],
    ],
    ids=["read", "written", "shell", "diff", "grep", "told", "pasted"],
)
def test_an_edit_of_a_file_that_was_seen_passes(messages):
    assert judge(stand(*messages), "edit", **EDITED) is None


@pytest.mark.parametrize(
    "messages",
    [[], call("glob", {"pattern": "**"}, "src/main.py\nsrc/util.py"), call("read", {"filePath": "src/util.py"}, "a")],
    ids=["nothing", "listed", "another"],
)
def test_an_edit_of_a_file_unseen_is_stopped(messages):
    assert judge(stand(*messages), "edit", **EDITED) == "unread"


def test_an_edit_that_creates_a_file_passes():
    assert judge(stand(), "edit", **{**EDITED, "oldString": ""}) is None
    assert judge(stand(), "write", filePath="src/main.py", content="x") is None


def test_what_was_read_before_a_compaction_is_remembered():
    where = stand(*call("read", {"filePath": "src/main.py"}, "a", id="r"))
    where.next_request(request([{"role": "system", "content": SYSTEM}, {"role": "user", "content": "go"}], tools=TOOLS))
    assert judge(where, "edit", **EDITED) is None
    assert "main" not in str(where.session.data)


def test_a_session_remembers_a_bounded_number_of_paths():
    messages = [m for i in range(REMEMBERED + 10) for m in call("read", {"filePath": f"f{i}"}, "a", id=f"c{i}")]
    assert len(stand(*messages).session.data["paths"]) == REMEMBERED


def test_each_check_can_be_left_out():
    where = stand(system=RULES, checks=["unread"])
    assert judge(where, "write", filePath="/srv/a", content="x") is None
    assert judge(where, "write", filePath="a.lock", content="x") is None
    assert judge(where, "edit", **EDITED) == "unread"
    assert judge(stand(checks=["outside"]), "edit", **EDITED) is None
    assert judge(stand(inside=["/srv"]), "write", filePath="/srv/a", content="x") is None


def test_an_answer_that_has_ended_otherwise_is_given_up_and_the_rule_starts_in_shadow():
    where = stand()
    action = where.check(written(where.request, ("write", {"filePath": "/srv/a", "content": "x"}), final=True))
    assert action.kind is ActionKind.GIVE_UP
    assert RULE.options["mode"]["default"] == "shadow"


def test_calls_are_held_only_where_a_tool_has_a_path_or_a_command():
    where = stand()
    assert holds(where.request, where.task)
    assert not holds(request(tools=[GREP, GLOB]), where.task)


def test_odd_calls_pass():
    where = stand()
    for arguments in ({}, {"filePath": 5, "content": "x"}, {"filePath": "", "content": "x"}):
        assert judge(where, "write", **arguments) is None
    for arguments in ({"filePath": None, "oldString": "a"}, {"oldString": "a"}, {"filePath": "/", "oldString": "a"}):
        assert judge(where, "edit", **arguments) in (None, "outside")
