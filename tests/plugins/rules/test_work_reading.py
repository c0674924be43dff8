"""What a call did is read off the declaration, the command and the form of the result."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tandem.core.plugin import PastCall, Tool
from tandem.plugins.rules._work import deed, exit_code, failed, gates, names_file, runs_things, writes_files


def tool(name: str, *names: str, **hints: bool) -> Tool:
    schema = {"type": "object", "properties": {key: {"type": "string"} for key in names}, "required": list(names[:1])}
    return Tool(name, "", schema, hints)


BASH, WRITE, READ = tool("bash", "command"), tool("write", "content", "filePath"), tool("read", "filePath")
EDIT = tool("edit", "filePath", "oldString", "newString")
TOOLS = {one.name: one for one in (BASH, WRITE, READ, EDIT)}


def done(name: str, result: str | None = "ok", **arguments: Any) -> PastCall:
    return PastCall("c", name, arguments, json.dumps(arguments), result)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (WRITE, True),
        (EDIT, True),
        (tool("write_file", "path", "content", destructiveHint=True), True),
        (tool("patch", "path", "old_string", "new_string"), True),
        (tool("apply_patch", "patchText"), True),
        (Tool("write_file"), True),
        (READ, False),
        (BASH, False),
        (tool("todowrite", "todos"), False),
        (tool("write_note", "title", "content"), False),
        (tool("search", "path", "text"), False),
        (tool("send_email", "to", "body"), False),
        (tool("look_at", "path", "content", readOnlyHint=True), False),
    ],
    ids=lambda value: value.name if isinstance(value, Tool) else None,
)
def test_a_tool_writes_files_when_it_takes_a_path_with_a_body_or_a_patch(declared: Tool, expected: bool) -> None:
    assert writes_files(declared) is expected


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (tool("execute_code", "code"), True),
        (tool("browser_click", "ref"), True),
        (tool("run_tests"), True),
        (tool("python", "code"), True),
        (READ, False),
        (WRITE, False),
        (tool("webfetch", "url"), False),
    ],
    ids=lambda value: value.name if isinstance(value, Tool) else None,
)
def test_a_tool_runs_something_by_its_name_or_its_code(declared: Tool, expected: bool) -> None:
    assert runs_things(declared) is expected


@pytest.mark.parametrize(
    ("command", "writes", "runs"),
    [
        ("ls -la && cat a.py | head -20", False, False),
        ("grep -rn foo src", False, False),
        ("python test.py", False, True),
        ("cd app && npm test 2>&1 | tail -20", False, True),
        ("cat > a.py <<'EOF'\nprint(1)\nEOF", True, False),
        ("cat > a.py <<'EOF'\nprint(1)\nEOF\npython a.py", True, True),
        ("sed -i s/a/b/ a.py", True, False),
        ("make > /dev/null 2>&1", False, True),
        ("make > /tmp/log 2>&1; tail /tmp/log", False, True),
        ("mkdir -p src", False, False),
        ("", False, False),
        ("echo 'unclosed", False, False),
    ],
)
def test_a_shell_command_says_whether_it_writes_and_runs(command: str, writes: bool, runs: bool) -> None:
    did = deed(done("bash", command=command), TOOLS)
    assert (did.writes, did.runs) == (writes, runs)


def test_a_write_that_failed_wrote_nothing() -> None:
    assert deed(done("write", filePath="a", content="b"), TOOLS).writes
    assert not deed(done("write", "Error: permission denied", filePath="a", content="b"), TOOLS).writes
    assert not deed(done("edit", "oldString not found in content", filePath="a"), TOOLS).writes
    assert not deed(done("write", "The write tool was called with invalid arguments: SchemaError(...)"), TOOLS).writes
    assert not deed(done("write", '{"error": "no space", "success": false}', filePath="a"), TOOLS).writes
    assert deed(done("write", '{"bytes_written": 5, "error": null}', filePath="a"), TOOLS).writes
    assert not deed(done("bash", "Exit code: 1", command="echo x > a"), TOOLS).writes


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ('{"output": "x", "exit_code": 3, "error": null}', 3),
        ('{"output": "ok", "metadata": {"exitCode": 0}}', 0),
        ("1 failed\n\nExit code: 1", 1),
        ("[exit: 2]", 2),
        ("Process exited with code 1", 1),
        ("Command failed with exit code 2", 2),
        ("FAIL pkg\nexit status 1", 1),
        ("<exit_code>1</exit_code>", 1),
        ("EXIT=0", 0),
        ("[terminal] ran `make` -> exit 0 (12 lines)", 0),
        ("the loop exits 5 times", None),
        ("exit\n12", None),
        ('{"exit_code": true}', None),
        ("x" * 2000 + "\nExit code: 1\n" + "y" * 2000, None),
        ("", None),
        (None, None),
    ],
)
def test_an_exit_code_is_read_where_clients_put_it(result: str | None, code: int | None) -> None:
    assert exit_code(result) == code
    assert failed(result) is bool(code)


def test_result_lines_are_gates_and_the_last_of_a_name_counts() -> None:
    result = "RESULT: FAIL <- unit\n...\nRESULT: PASS <- lint\nRESULT: PASS <- unit\nsaid RESULT: FAIL <- prose"
    assert [(gate.name, gate.passed) for gate in gates(done("bash", result, command="x"), BASH, True)] == [
        ("unit", True),
        ("lint", True),
    ]
    inside = json.dumps({"output": "RESULT: FAIL <- unit\nbye", "exit_code": 0})
    assert [(gate.name, gate.passed) for gate in gates(done("bash", inside, command="x"), BASH, True)] == [
        ("unit", False)
    ]


def test_without_them_the_command_is_the_gate_when_its_exit_code_is_told() -> None:
    def found(command: str, result: str | None) -> list[Any]:
        call = done("bash", result, command=command)
        return gates(call, BASH, deed(call, TOOLS).runs)

    [first], [again] = found("make  check", "Exit code: 2"), found("make check\n", "Exit code: 0")
    assert (first.key, first.passed, again.passed) == (again.key, False, True)
    assert found("make check", "no code here") == []
    assert found("make check", None) == []
    assert found("grep foo a.py", "Exit code: 1") == []
    assert found("curl -s localhost:3000", "Exit code: 7") == []


def test_a_file_is_named_as_a_path_or_in_a_command_and_not_in_a_body() -> None:
    assert names_file(done("read", filePath="/home/u/PROGRESS.yaml"), "PROGRESS.yaml")
    assert names_file(done("bash", command="cat PROGRESS.yaml | head"), "PROGRESS.yaml")
    assert names_file(done("read_many", paths=["a", "./PROGRESS.yaml"]), "PROGRESS.yaml")
    assert not names_file(done("write", filePath="a", content="see PROGRESS.yaml"), "PROGRESS.yaml")
    assert not names_file(done("read", filePath="OLD-PROGRESS.yaml"), "PROGRESS.yaml")
    assert not names_file(done("read", filePath="PROGRESS.yaml.bak"), "PROGRESS.yaml")
    assert not names_file(PastCall("c", "x", None, "{", "ok"), "PROGRESS.yaml")


@given(st.text(max_size=300), st.text(max_size=300), st.sampled_from(["bash", "write", "gone"]))
def test_nothing_that_a_client_sends_is_too_odd_to_be_read(command: str, result: str, name: str) -> None:
    call = done(name, result, command=command, filePath=command)
    did = deed(call, TOOLS)
    assert all(isinstance(gate.passed, bool) for gate in gates(call, TOOLS.get(name), did.runs))
    assert names_file(call, "PROGRESS.yaml") is ("PROGRESS.yaml" in command)


@pytest.mark.parametrize("piece", [" ", "exit ", "exit:", "command ", "-> exit", "_", "RESULT: "])
def test_reading_a_long_result_takes_no_time(piece: str) -> None:
    result = piece * 200_000
    began = time.process_time()
    assert exit_code(result) is None
    assert gates(done("bash", result, command="make"), BASH, True) == []
    assert time.process_time() - began < 1
