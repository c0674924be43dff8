from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tandem.core.answer import SecretMask
from tandem.core.engine.request import Piece
from tandem.core.plugin import ActionKind, FinishEvent
from tandem.plugins.rules import secret_mask
from tandem.plugins.rules.secret_mask import tandem_rules
from tandem.testing.rules import Stand, call, only, request

USER = {"role": "user", "content": "What is the key?"}


def stand(**params: Any) -> Stand:
    return Stand(tandem_rules()[0], **params)


def conversation(*results: Any) -> Any:
    return request([USER, *(m for n, result in enumerate(results) for m in call("bash", {"n": n}, result, id=f"c{n}"))])


def test_secrets_of_tool_results_are_masked() -> None:
    action = only(stand().check(conversation("OPENAI_API_KEY=sk-abc123\nDB_PASSWORD=hunter2\n")))
    assert action.kind is ActionKind.MASK
    assert action.detail["words"] == {"sk-abc123": "sk-[redacted]", "hunter2": "[redacted]"}
    assert action.detail["kinds"] == {"api_key": 1, "assigned": 1}
    assert action.reason == "secrets(2)"


def test_the_words_fit_the_filter_of_the_answer() -> None:
    mask = SecretMask(only(stand().check(conversation("KEY sk-abc123"))).detail["words"])
    out = mask.feed(Piece("The key is sk-abc")) + mask.feed(Piece("123.")) + mask.end()
    assert "".join(piece.text for piece in out) == "The key is sk-[redacted]."


def test_what_a_user_or_the_model_wrote_is_no_secret() -> None:
    messages = [
        {"role": "system", "content": "password=hunter2"},
        {"role": "user", "content": "my key is sk-abc123"},
        {"role": "assistant", "content": "token: ab12cd"},
        *call("bash", {"password": "hunter3"}, "done"),
    ]
    assert stand().check(request(messages)) is None


def test_the_text_parts_of_a_result_are_read() -> None:
    messages = [USER, *call("bash", {}, "")]
    messages[-1]["content"] = [{"type": "text", "text": "password="}, {"type": "text", "text": "hunter2"}]
    assert only(stand().check(request(messages))).detail["words"] == {"hunter2": "[redacted]"}


def test_each_result_is_read_once(monkeypatch) -> None:
    read: list[str] = []
    real = secret_mask.secrets_in
    monkeypatch.setattr(secret_mask, "secrets_in", lambda text, until: (read.append(text), real(text))[1])
    stood = stand()
    first = only(stood.check(conversation("password=hunter2")))
    again = only(stood.check(conversation("password=hunter2", "nothing", "nothing")))
    assert first.detail["words"] == again.detail["words"]
    assert sorted(read) == ["nothing", "password=hunter2"]


def test_two_platforms_share_no_memory(monkeypatch) -> None:
    read: list[str] = []
    real = secret_mask.secrets_in
    monkeypatch.setattr(secret_mask, "secrets_in", lambda text, until: (read.append(text), real(text))[1])
    stand().check(conversation("password=hunter2"))
    stand().check(conversation("password=hunter2"))
    assert len(read) == 2


def test_what_is_remembered_is_bounded() -> None:
    rule = tandem_rules()[0]
    stood = Stand(rule, remembered=3)
    for number in range(10):
        stood.check(conversation(f"password=hunter{number}"))
    assert len(rule.check.__self__._known) == 3  # type: ignore[attr-defined]


def test_of_many_secrets_the_newest_count() -> None:
    action = only(stand(most=2).check(conversation("password=hunter1", "password=hunter2", "password=hunter3")))
    assert set(action.detail["words"]) == {"hunter3", "hunter2"}


def test_a_conversation_without_secrets_passes() -> None:
    assert stand().check(conversation("token = tokenizer(text)", "")) is None
    assert stand().check(request("hello")) is None
    assert stand().check(request([])) is None


def test_when_the_time_is_up_the_next_request_reads_on(monkeypatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(secret_mask, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    monkeypatch.setattr(secret_mask, "secrets_in", lambda text, until, real=secret_mask.secrets_in: real(text))
    stood = stand(ms=1500)
    event = conversation("password=hunter1", "password=hunter2", "password=hunter3")
    actions = [only(stood.check(event)) for _ in range(3)]
    assert [(sorted(action.detail["words"]), action.detail["unread"]) for action in actions] == [
        (["hunter3"], 2),
        (["hunter2", "hunter3"], 1),
        (["hunter1", "hunter2", "hunter3"], 0),
    ]


def finish(answer: str, reasoning: str = "") -> FinishEvent:
    return FinishEvent(answer, 10, "stop", reasoning=reasoning)


def test_in_shadow_repetitions_are_counted_by_kind() -> None:
    stood = stand(mode="shadow")
    stood.check(conversation("sk-abc123 password=hunter2"))
    told = only(stood.check(finish("It is sk-abc123, and hunter23 is none.", "sk-abc123 or hunter2?")))
    assert told.kind is ActionKind.PASS
    assert told.reason == "would_mask(api_key=2, assigned=1)"
    assert stood.check(finish("Nothing here.")) is None


def test_while_it_acts_nothing_is_counted_at_the_end() -> None:
    stood = stand()
    stood.check(conversation("sk-abc123"))
    assert stood.check(finish("It is sk-abc123.")) is None
