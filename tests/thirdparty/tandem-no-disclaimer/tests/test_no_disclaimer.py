from tandem.core.plugin import FinishEvent
from tandem.testing.rules import Stand, only

import tandem_no_disclaimer


def test_a_disclaimer_is_followed_by_the_sentence(platform):
    host = platform(rules={"no_disclaimer": {}}, plugins=[tandem_no_disclaimer])
    answer = host.chat("Is it good?", script=["As an AI, ", "I have no opinion."])
    answer.assert_text("As an AI, I have no opinion. (The answer above is a disclaimer.)").assert_finish("stop")


def test_a_plain_answer_is_left_alone(platform):
    host = platform(rules={"no_disclaimer": {}}, plugins=[tandem_no_disclaimer])
    host.chat("Is it good?", script=["Yes."]).assert_text("Yes.")


def test_the_phrase_is_the_manifests():
    [rule] = tandem_no_disclaimer.tandem_rules()
    stand = Stand(rule, phrase="no opinion")
    assert only(stand.check(FinishEvent("I have No Opinion.", 4, "stop"))).reason == "disclaimer(1)"
    assert stand.check(FinishEvent("As an AI I like it.", 5, "stop")) is None
