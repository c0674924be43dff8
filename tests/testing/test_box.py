"""The host in a box: what it serves, what it tells, and how it ends."""

import contextlib
import threading
import time
from pathlib import Path

import httpx2
import pytest

from tandem.core.kernel import ManifestError
from tandem.core.plugin import Action, BlockEvent, Client, ClientMatch, Rule, SafePoint, hookimpl
from tandem.testing.answer import Answer
from tandem.testing.box import Box


class Interrupter:
    """Gives up as soon as the answer holds an exclamation mark."""

    @hookimpl
    def tandem_rules(self):
        def check(event: BlockEvent, task, sup):
            return Action.give_up(" Enough.", "too loud") if "!" in event.answer else Action.passed()

        return [Rule("interrupter", at=SafePoint.SP1, check=check, doc="Ends a loud answer.")]


class Raiser:
    """Its rule raises, its client shape can't be built."""

    @hookimpl
    def tandem_rules(self):
        def check(event, task, sup):
            raise KeyError("nothing there")

        return [Rule("raiser", at=SafePoint.SP2, check=check)]

    @hookimpl
    def tandem_clients(self):
        def build(options):
            raise ValueError("no such client")

        return [Client(name="raiser", build=build)]


def test_a_host_without_a_manifest_writes_the_script(platform):
    answer = platform().chat(script=["Hel", b"l\xc3", b"\xb6", {"sleep_ms": 5}, "."])
    answer.assert_status(200).assert_text("Hellö.").assert_finish("stop")
    assert answer.usage["completion_tokens"] == len("Hellö.".encode())
    assert answer.deltas == ["Hellö."]


def test_a_stream_gives_its_deltas_its_usage_and_its_end(platform):
    answer = platform().stream(script=["one ", "two ", "three"])
    answer.assert_text("one two three").assert_finish("stop")
    assert len(answer.deltas) >= 3
    assert answer.done
    assert answer.usage["completion_tokens"] == 13


def test_a_script_without_an_end_is_ended_by_max_tokens(platform):
    platform().chat(script=["ab"], end=False, max_tokens=5).assert_text("ababa").assert_finish("length")


def test_the_script_replaces_the_last_user_message_and_nothing_else(platform):
    seen = []

    class Witness:
        @hookimpl
        def tandem_rules(self):
            return [Rule("witness", at=SafePoint.SP4, check=lambda event, task, sup: seen.append(event.messages))]

    host = platform(rules=["witness"], plugins=[Witness()])
    host.chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], script=["Ho"])
    assert [message["role"] for message in seen[0]] == ["system", "user"]
    assert seen[0][0]["content"] == "Be brief."


def test_a_refusal_is_an_answer_with_its_status_and_error(platform):
    for ask in (platform().chat, platform().stream):
        answer = ask(max_tokens="many").assert_status(400)
        assert "max_tokens" in answer.error["message"]
        with pytest.raises(AssertionError, match="max_tokens"):
            answer.assert_text("anything")


def test_reasoning_and_calls_are_read_from_both_kinds_of_answer():
    piece = {"index": 0, "id": "c", "function": {"name": "look", "arguments": '{"q": '}}
    deltas = [
        {"reasoning_content": "Let me "},
        {"reasoning_content": "see."},
        {"tool_calls": [piece]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {"tool_calls": [{"index": 1, "id": "d", "function": {"name": "go", "arguments": '{"to": "so'}}]},
    ]
    streamed = Answer(200, {}, chunks=tuple({"choices": [{"index": 0, "delta": delta}]} for delta in deltas))
    calls = [{"function": {"name": "look", "arguments": '{"q": 1}'}}, {"function": {"name": "go", "arguments": '{"to'}}]
    message = {"content": None, "reasoning_content": "Let me see.", "tool_calls": calls}
    plain = Answer(200, {}, body={"choices": [{"index": 0, "message": message}]})
    assert streamed.reasoning == plain.reasoning == "Let me see."
    assert streamed.calls == [("look", {"q": 1}), ("go", '{"to": "so')]
    assert plain.calls == [("look", {"q": 1}), ("go", '{"to')]
    assert streamed.text == plain.text == ""


def test_assertions_say_what_they_saw(platform):
    answer = platform().chat(script=["yes"])
    with pytest.raises(AssertionError, match=r"is: +'yes'\n +should be: 'no'"):
        answer.assert_text("no")
    with pytest.raises(AssertionError, match="finish_reason is 'stop', not 'length'"):
        answer.assert_finish("length")
    with pytest.raises(AssertionError, match="status 200, not 503"):
        answer.assert_status(503)


def test_a_plugin_that_is_not_installed_works_from_its_object(platform):
    host = platform(rules={"interrupter": {"mode": "act"}}, plugins=[Interrupter()])
    host.stream(script=["Be ", "quiet!", " Please."]).assert_text("Be quiet! Enough.").assert_finish("stop")
    record = host.plugin("rules", "interrupter")
    assert (record["state"], record["distribution"]) == ("active", "Interrupter")
    assert [(e["rule"], e["action"], e["reason"], e["done"]) for e in host.events] == [
        ("interrupter", "give_up", "too loud", True)
    ]


def test_a_shadow_rule_is_journaled_and_not_done(platform):
    host = platform(rules={"interrupter": {"mode": "shadow"}}, plugins=[Interrupter()])
    host.chat(script=["Hey!", " There."]).assert_text("Hey! There.")
    assert {event["done"] for event in host.events} == {False}


def test_a_part_that_fails_at_the_start_fails_the_test_with_its_reason():
    threads = threading.active_count()
    with pytest.raises(AssertionError, match=r"clients.raiser: ValueError: no such client"):
        Box(clients=["raiser"], plugins=[Raiser()])
    assert threading.active_count() == threads


def test_a_failure_that_is_expected_is_only_listed(platform):
    host = platform(clients=["raiser"], rules=["raiser"], plugins=[Raiser()], failures_expected=True)
    assert host.plugin("clients", "raiser")["state"] == "failed"
    for _ in range(3):
        host.chat(script=["still here"]).assert_text("still here")
    assert [event["action"] for event in host.events] == ["fault"] * 3
    assert "KeyError" in host.plugin("rules", "raiser")["reason"]
    assert host.get("/v1/plugins").json()["data"] == host.plugins()


def test_building_what_failed_is_an_assertion_with_the_record(platform):
    host = platform(clients=["raiser"], plugins=[Raiser()], failures_expected=True)
    with pytest.raises(AssertionError, match="no such client"):
        host.build("clients", "raiser")
    with pytest.raises(KeyError, match=r"clients\.nobody is not installed"):
        host.build("clients", "nobody")


def test_an_object_without_a_hook_is_refused_with_the_hooks():
    with pytest.raises(TypeError, match="implements no hook; there are tandem_models, "):
        Box(plugins=[object()])


def test_two_plugins_of_one_name_are_both_refused(platform):
    class Twin(Interrupter):
        pass

    with pytest.raises(AssertionError, match=r"two plugins have this name.*Interrupter.*Twin"):
        Box(rules=["interrupter"], plugins=[Interrupter(), Twin()])


def test_a_manifest_may_be_a_text_a_file_or_a_shipped_name(platform, tmp_path: Path):
    text = "tandem: 1\nmodel: {plugin: scripted, reply: from a text}\n"
    platform(text).chat("hi").assert_text("from a text")
    file = tmp_path / "mine.yaml"
    file.write_text(text.replace("a text", "a file"))
    platform(file).chat("hi").assert_text("from a file")
    platform("scripted", model={"reply": "from a name"}).chat("hi").assert_text("from a name")


def test_a_wrong_manifest_is_refused_as_the_server_would(platform):
    with pytest.raises(ManifestError, match=r"no model called `scriptd` is installed.*scripted"):
        platform(model={"plugin": "scriptd"})


def test_the_wire_is_there_for_any_client(platform):
    from openai import OpenAI

    class Known:
        @hookimpl
        def tandem_clients(self):
            return [
                Client(
                    name="known",
                    build=lambda options: (
                        lambda headers, body: ClientMatch("known") if headers.get("x-who") == "me" else None
                    ),
                )
            ]

    host = platform(clients=["known"], plugins=[Known()])
    client = OpenAI(base_url=f"{host.url}/v1", api_key="none", default_headers={"X-Who": "me"})
    raw = client.chat.completions.with_raw_response.create(
        model="any", messages=[{"role": "user", "content": '{"script": ["Hi."]}'}]
    )
    assert raw.headers["x-tandem-client"] == "known"
    assert raw.parse().choices[0].message.content == "Hi."


SLOW = {"plugin": "scripted", "reply": "word " * 2000, "tokens_per_s": 100}
"""A model whose answer takes a hundred seconds."""

ASK = {"model": "x", "stream": True, "messages": [{"role": "user", "content": "Talk."}]}


def test_hanging_up_in_the_middle_ends_the_generation(platform):
    host = platform(model=SLOW, server={"parallel": 1})
    with host.streaming("/v1/chat/completions", ASK) as (response, data):
        assert response.status_code == 200
        next(data)
    host.chat(max_tokens=5).assert_text("word ")
    assert host.get("/health").json()["totals"]["requests_abandoned"] == 1


def test_closing_frees_every_thread_and_may_be_done_twice():
    threads = threading.active_count()
    with Box() as host:
        host.chat(script=["hello"])
        host.close()
    assert threading.active_count() == threads


def test_closing_does_not_wait_for_a_running_answer():
    box = Box(model=SLOW)
    with contextlib.suppress(httpx2.TransportError, httpx2.StreamError):  # noqa: SIM117
        with box.streaming("/v1/chat/completions", ASK) as (_, data):
            next(data)
            started = time.monotonic()
            box.close()
    assert time.monotonic() - started < 10
    assert not [thread for thread in threading.enumerate() if thread.name in ("test-server", "tandem-engine")]
