"""A call that was made several times with the same result is not made again."""

import pytest

from tandem.core.plugin import ActionKind, PastCall
from tandem.plugins.rules.same_call import holds, tandem_rules
from tandem.testing.rules import Stand, call, request, written

(RULE,) = tandem_rules()
USER = {"role": "user", "content": "Look at a.py."}
TOOLS = ["read", "bash"]


def reads(times: int, result: str = "same", arguments: object = '{"path": "a.py", "limit": 5}') -> list[dict]:
    return [message for i in range(times) for message in call("read", arguments, result, id=f"r{i}")]


def stand(messages: list[dict], **params) -> Stand:
    return Stand(RULE, event=request([USER, *messages], tools=TOOLS), **params)


def third(where: Stand, name: str = "read", arguments: str = '{"limit":5,"path":"a.py"}', **fields):
    return where.check(written(where.request, (name, arguments), **fields))


def test_the_third_identical_call_is_written_again():
    where = stand(reads(2))
    assert holds(where.request, where.task)
    action = third(where)
    assert (action.kind, action.reason) == (ActionKind.REGENERATE_CALL, "repeat(3)")
    assert "2 times" in action.text
    assert action.detail["fallback"] == "give_up"


def test_the_order_of_keys_and_blanks_do_not_count():
    assert third(stand(reads(2)), arguments='{ "path": "a.py",\n "limit": 5 }') is not None
    assert third(stand(reads(2, arguments={"limit": 5, "path": "a.py"}))) is not None


@pytest.mark.parametrize(
    "messages",
    [
        reads(1),
        [*reads(1), *reads(1, "another")],
        [*reads(2), *call("bash", {"command": "ls"}, "a.py", id="b")],
        [*reads(2), USER],
        [*reads(1), *reads(1)[:1]],
        [*reads(1), *call("read", {"path": "b.py"}, "same", id="x"), *reads(1)],
        [],
    ],
    ids=["one", "results differ", "another call last", "user message", "no result yet", "another between", "none"],
)
def test_what_is_no_run_is_neither_held_nor_stopped(messages):
    where = stand(messages)
    assert not holds(where.request, where.task)
    assert third(where) is None


def test_another_call_passes_and_so_does_a_repeat_behind_another_call():
    where = stand(reads(2))
    assert third(where, arguments='{"path": "b.py"}') is None
    assert third(where, name="bash") is None
    answer = [("bash", {"command": "touch a.py"}), ("read", {"path": "a.py", "limit": 5})]
    assert where.check(written(where.request, *answer, index=1)) is None
    assert where.check(written(where.request, *reversed(answer))) is not None


def test_a_wait_ends_the_run():
    def polled(*seconds: float | None) -> Stand:
        calls = tuple(PastCall(f"c{i}", "read", {}, "{}", "running", s) for i, s in enumerate(seconds))
        return Stand(RULE, event=request([USER], tools=TOOLS, turn_calls=calls, calls=calls))

    assert third(polled(1.0, 2.0), arguments="{}") is not None
    assert third(polled(None, 9.9), arguments="{}") is not None
    assert third(polled(1.0, 10.0), arguments="{}") is None
    assert third(polled(10.0, 1.0), arguments="{}") is None
    assert third(polled(1.0, 1.0, 30.0), arguments="{}") is None


def test_the_number_is_a_parameter():
    assert third(stand(reads(1), repeats=2)).reason == "repeat(2)"
    assert third(stand(reads(2), repeats=4)) is None


def test_arguments_that_are_no_object_are_compared_as_they_stand():
    where = stand(reads(2, arguments='{"path": '))
    assert third(where, arguments='{"path": ') is not None
    assert third(where, arguments='{"path":') is None


def test_an_answer_without_its_end_token_is_given_up():
    action = third(stand(reads(2)), final=True)
    assert action.kind is ActionKind.GIVE_UP
    assert action.text.startswith("[Tandem")
    assert "read" in action.text


def test_a_block_that_could_not_be_read_is_left_to_others():
    where = stand(reads(2))
    assert where.check(written(where.request, ("read", "{}"), problem="unreadable")) is None
